"""Tables as one picture: bits per byte by context length and, where scored, by position."""
