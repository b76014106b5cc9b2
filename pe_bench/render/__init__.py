"""The parts that all pictures share: style, scales, placement and the file."""
