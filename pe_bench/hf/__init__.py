"""Hugging Face models: load them, find their encodings, replace their attention, train them; export runs."""
