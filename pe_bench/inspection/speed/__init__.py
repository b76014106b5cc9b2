"""What encodings cost: the time and memory of a pass at each length, relative to no encoding."""
