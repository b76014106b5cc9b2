"""The commands, each a story in the file or folder of its name, from top to bottom."""
