"""Published experiments at our scale: their runs, their claims, and our results held against both."""
