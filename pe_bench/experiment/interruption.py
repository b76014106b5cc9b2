"""A message for an interrupted command: what of its run is saved."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pe_bench.system.signals import Stopped
from pe_bench.training.checkpoint import latest_checkpoint


@contextmanager
def say_what_is_kept(run: Path, steps: int) -> Iterator[None]:
    """Turn a request to stop inside into one that says what is kept of a run of `steps`."""
    try:
        yield
    except (Stopped, KeyboardInterrupt) as stopped:
        raise Stopped(str(stopped) or f"interrupted; {_what_is_kept(run, steps)}") from stopped


def _what_is_kept(run: Path, steps: int) -> str:
    found = latest_checkpoint(run / "checkpoints")
    if found is None:
        return "no step was saved yet, so the same command starts from the beginning"
    if found.meta.step < steps:
        return f"step {found.meta.step} of {steps} is saved, and the same command continues from there"
    scored = "the lengths scored so far" if any((run / "scores").glob("*")) else "no scores yet"
    return f"the trained weights are saved, and {scored}; the same command continues from there"
