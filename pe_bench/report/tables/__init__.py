"""Rows of results in, tables with verdicts out."""
