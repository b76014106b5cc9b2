"""Killing a run at any moment and repeating its command loses nothing and changes nothing."""

import csv
import json
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import files_in, tiny_words

PROGRAM = Path(__file__).with_name("crashing.py")
WORDS = ("encoding=shaw", "train.steps=6", "train.checkpoint_every=2", "eval.lengths=[16]")
# What depends on the clock or on the process, and not on what was computed.
CLOCK = {"seconds", "tokens_per_second", "peak_memory_mb", "date", "git"}


@pytest.fixture
def unbroken(train, folder):
    assert train(*WORDS).code == 0
    return contents(folder / "results")


def contents(results: Path) -> dict[str, object]:
    """What a finished results folder holds, without what the clock wrote."""
    found: dict[str, object] = {}
    for name in files_in(results):
        path = results / name
        if path.suffix == ".csv":
            with path.open() as file:
                found[name] = [
                    {k: v for k, v in row.items() if k not in CLOCK} for row in csv.DictReader(file)
                ]
        elif path.suffix == ".safetensors":
            found[name] = path.read_bytes()
        elif path.name in ("meta.json", "result.json"):
            values = json.loads(path.read_text())
            found[name] = {k: v for k, v in values.items() if k not in ("train_seconds", "finished")}
        elif path.name == "config.yaml":
            text = path.read_text().splitlines()
            found[name] = [line for line in text if not line.startswith(("results_dir", "cache_dir"))]
        else:
            found[name] = None
    return found


def crash(folder: Path, kind: str, count: int) -> list[dict[str, object]]:
    words = ["train", *tiny_words(folder), *WORDS]
    command = [sys.executable, str(PROGRAM), str(folder / "crashed"), kind, str(count), "--", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    ends = json.loads(done.stdout)
    assert ends and set(ends) == {0}, ends
    return [contents(series / "results") for series in sorted((folder / "crashed").iterdir())][: len(ends)]


def test_dying_at_any_rename_and_repeating_ends_in_the_same_run(folder, unbroken):
    ended = crash(folder, "renames", 500)
    # Three checkpoints rename a log, a meta.json and a folder each; six other files come on top.
    assert len(ended) >= 2 * 15
    for number, found in enumerate(ended, 1):
        assert found == unbroken, f"dying at point {number}"


def test_being_killed_at_random_moments_ends_in_the_same_run(folder, unbroken):
    for found in crash(folder, "kills", 3):
        assert found == unbroken


@pytest.mark.full
def test_being_killed_at_many_random_moments_ends_in_the_same_run(folder, unbroken):
    for found in crash(folder, "kills", 40):
        assert found == unbroken
