"""Scores of content against distance."""
