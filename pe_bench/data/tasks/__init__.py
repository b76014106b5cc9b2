"""The tasks: one idea, one file."""
