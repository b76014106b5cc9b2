"""A run on disk: identity, lock, rows, scores and provenance."""
