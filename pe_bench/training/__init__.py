"""A configuration in, checkpoints and train.csv out; in one process or several."""
