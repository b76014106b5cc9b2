"""From documents to batches: corpus -> split -> tokenizer -> packed token ids -> training windows."""
