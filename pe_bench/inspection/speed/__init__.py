"""The cost of encodings: the time and memory of a pass at each length, relative to no encoding."""
