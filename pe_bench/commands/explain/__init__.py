"""Explain why a trained model fails at longer texts: change one thing, and score the same targets again."""
