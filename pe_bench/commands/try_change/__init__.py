"""`try`: a change and its baseline, trained seed by seed and compared by a sequential test."""
