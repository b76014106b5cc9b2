"""A message for an interrupted command: what of its run is saved."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pe_bench.system.signals import Stopped
from pe_bench.training.checkpoint import latest_checkpoint


@contextmanager
def say_what_is_kept(run: Path, steps: int | None = None) -> Iterator[None]:
    """Turn a request to stop inside into one that says what is kept of a run of `steps`.

    steps: None for a model that was trained elsewhere.
    """
    try:
        yield
    except (Stopped, KeyboardInterrupt) as stopped:
        kept = _what_is_scored(run) if steps is None else _what_is_kept(run, steps)
        raise Stopped(str(stopped) or f"interrupted; {kept}") from stopped


def _what_is_scored(run: Path) -> str:
    if any((run / "scores").glob("*")):
        return "the lengths scored so far are saved, and the same command continues from there"
    return "nothing was scored yet, so the same command starts from the beginning"


def _what_is_kept(run: Path, steps: int) -> str:
    found = latest_checkpoint(run / "checkpoints")
    if found is None:
        return "no step was saved yet, so the same command starts from the beginning"
    if found.meta.step < steps:
        return f"step {found.meta.step} of {steps} is saved, and the same command continues from there"
    scored = "the lengths scored so far" if any((run / "scores").glob("*")) else "no scores yet"
    return f"the trained weights are saved, and {scored}; the same command continues from there"
