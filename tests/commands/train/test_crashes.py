"""Killing a run at any moment and repeating its command loses nothing and changes nothing."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from support.commands import tiny_overrides
from support.run_contents import contents

PROGRAM = Path(__file__).parents[2] / "support" / "crashing.py"
ARGUMENTS = ("encoding=shaw", "train.steps=4", "train.checkpoint_every=2", "eval.lengths=[16]")


@pytest.mark.parametrize(
    "counts",
    [
        {"renames": 1, "training": 2, "scoring": 2},
        pytest.param({"training": 50, "scoring": 50}, marks=pytest.mark.full),
    ],
)
def test_dying_at_any_moment_and_repeating_ends_in_the_same_run(train, folder, counts):
    assert train(*ARGUMENTS).code == 0
    unbroken = contents(folder / "results")
    arguments = ["train", *tiny_overrides(folder), *ARGUMENTS]
    command = [sys.executable, str(PROGRAM), str(folder / "crashed"), json.dumps(counts), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for kind, ends in json.loads(done.stdout).items():
        # Two checkpoints rename a meta.json and a folder each; data, scores, rows and others come on top.
        assert set(ends) == {0} and len(ends) >= (2 * 15 if kind == "renames" else counts[kind]), (kind, ends)
        for series in sorted((folder / "crashed" / kind).iterdir()):
            assert contents(series / "results") == unbroken, series
