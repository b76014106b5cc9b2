"""From documents to batches: corpus -> split -> tokenizer -> packed token ids -> windows and targets."""
