"""A trained model and lengths in, rows and scores out: targets, protocols, controls."""
