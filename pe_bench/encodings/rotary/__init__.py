"""Queries and keys that are turned by their positions."""
