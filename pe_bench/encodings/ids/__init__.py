"""Other position ids than the count of tokens."""
