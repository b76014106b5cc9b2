"""Hydra's overrides in, a checked configuration out; the keys that there are."""
