"""What an encoding is, in words and as a picture."""
