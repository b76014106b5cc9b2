"""An encoding without a run: show it, check it, time it."""
