"""A description of an encoding, as text and as a picture."""
