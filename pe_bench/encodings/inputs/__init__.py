"""Vectors of positions that are added to the embeddings, or mixed into them."""
