"""Killing a run at any moment and repeating its command loses nothing and changes nothing."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from support.commands import tiny_overrides
from support.run_contents import contents

PROGRAM = Path(__file__).parents[1] / "support" / "crashing.py"
ARGUMENTS = ("encoding=shaw", "train.steps=4", "train.checkpoint_every=2", "eval.lengths=[16]")


@pytest.fixture
def unbroken(train, folder):
    assert train(*ARGUMENTS).code == 0
    return contents(folder / "results")


Crashed = dict[str, list[dict[str, object]]]


def crash(folder: Path, counts: dict[str, int]) -> Crashed:
    """Return the final contents of the results folder of each series, by the kind of crash."""
    kinds, times = ",".join(counts), ",".join(map(str, counts.values()))
    arguments = ["train", *tiny_overrides(folder), *ARGUMENTS]
    command = [sys.executable, str(PROGRAM), str(folder / "crashed"), kinds, times, "--", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    ends = json.loads(done.stdout)
    for kind, found in ends.items():
        assert found and set(found) == {0}, (kind, found)
    return {
        kind: [contents(one / "results") for one in sorted((folder / "crashed" / kind).iterdir())]
        for kind in counts
    }


def require_same(crashed: Crashed, unbroken: dict[str, object]) -> None:
    """Training and scoring that were killed end as they would have; gathering loses and doubles nothing."""
    for kind in ("training", "scoring"):
        for number, found in enumerate(crashed[kind]):
            assert found == unbroken, f"killed in {kind}, series {number}"
    rows = unbroken["results.csv"]
    assert isinstance(rows, list)
    for kind in ("gathering", "together"):
        for number, found in enumerate(crashed[kind]):
            runs = sorted({name.split("/")[1] for name in found if name.startswith("runs/")})
            assert len(runs) == 8
            wanted = [{**row, "run": run} for run in runs for row in rows]
            assert found["results.csv"] == wanted, f"{kind}, series {number}"
            left = [name for name in found if not name.startswith("runs/")]
            assert sorted(left) == ["results.csv", "results.csv.lock"], "nothing half written stays"


def test_dying_at_any_rename_and_repeating_ends_in_the_same_run(folder, unbroken):
    ends = crash(folder, {"renames": 1})["renames"]
    # Two checkpoints rename a meta.json and a folder each; data, scores, rows and others come on top.
    assert len(ends) >= 2 * 15
    for number, end in enumerate(ends):
        assert end == unbroken, f"dying at point {number}"


def test_being_killed_at_random_moments_changes_nothing(folder, unbroken):
    require_same(crash(folder, {"training": 2, "scoring": 2, "gathering": 3, "together": 3}), unbroken)


@pytest.mark.full
def test_being_killed_at_many_random_moments_changes_nothing(folder, unbroken):
    require_same(crash(folder, {"training": 50, "scoring": 50, "gathering": 50, "together": 100}), unbroken)
