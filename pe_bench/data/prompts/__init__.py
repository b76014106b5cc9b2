"""Prompts whose answers are known, one in each file: `prompt(rng, size)` and the smallest size."""
