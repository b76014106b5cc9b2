"""Positions that follow from the content."""
