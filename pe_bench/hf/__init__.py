"""Hugging Face checkpoints: load them, learn what their layers do, replace their attention, export runs."""
