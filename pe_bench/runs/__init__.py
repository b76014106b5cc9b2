"""A run on disk: identity, lock, rows and scores."""
