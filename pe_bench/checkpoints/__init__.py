"""Hugging Face checkpoints: find and load them, ask what they do, attend for them, write our own as one."""
