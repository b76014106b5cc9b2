"""The functions train, evaluate and results, which Python programs and the commands call."""
