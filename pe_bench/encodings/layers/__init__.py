"""Encodings that differ from layer to layer."""
