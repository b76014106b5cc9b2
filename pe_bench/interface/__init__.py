"""The calls of a Python program, which the commands make too: train, evaluate, results."""
