"""Factors of the logits, and a logit beside those of keys."""
