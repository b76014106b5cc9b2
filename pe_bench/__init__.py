"""pe-bench: train short, test long. A runner for length-extrapolation experiments."""
