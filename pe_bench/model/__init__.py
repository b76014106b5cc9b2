"""The decoder, its loss, and attention: the reference and its fast paths."""
