"""Biases that depend on the distance."""
