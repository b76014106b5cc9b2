"""Faults and damage end in a clear line or are repaired, and nothing is lost."""

import errno
import os
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import pytest
from support.commands import Command, Outcome, only_run
from support.results import edit_rows
from support.run_contents import contents

from pe_bench.runs.folder import locked
from pe_bench.runs.rows import read_rows

ARGUMENTS = ("encoding=shaw", "train.steps=6")


@pytest.fixture
def run(begin: Command, folder: Path) -> Path:
    """A finished run in the folder."""
    assert begin(*ARGUMENTS).code == 0
    return only_run(folder)


@pytest.fixture
def rescore(command: Command, folder: Path, run: Path) -> Callable[[], Outcome]:
    arguments = ("--lengths", "16,32", "--threads", "1", "--results-dir", str(folder / "results"))
    return lambda: command("eval", str(run), *arguments)


def test_a_disk_that_fills_up_at_any_write_is_reported_and_the_run_continues_once_there_is_space(
    train, folder, monkeypatch
):
    """Every file is flushed before it is named; the disk is full from a flush on."""
    assert train(*ARGUMENTS).code == 0
    unbroken, flush, flushes = contents(folder / "results"), os.fsync, []
    shutil.rmtree(folder / "results")

    def full(most: int, descriptor: int) -> None:
        flushes.append(descriptor)
        if len(flushes) >= most:
            raise OSError(errno.ENOSPC, "No space left on device")
        flush(descriptor)

    for most in (1, 9, 20):
        flushes.clear()
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", partial(full, most))
            outcome = train(*ARGUMENTS)
        assert outcome.code == 1 and ("No space left on device" in outcome.line or "is full" in outcome.line)
        assert str(folder) in outcome.line, "the file or the folder is named"
        assert not list(folder.rglob(".partial-*")), "half a file is no use where space is short"
    assert train(*ARGUMENTS).code == 0
    assert contents(folder / "results") == unbroken


@pytest.mark.usefixtures("run")
def test_a_disk_that_is_full_at_the_last_write_calls_nothing_failed_that_is_finished(train, monkeypatch):
    full = OSError(errno.ENOSPC, "No space left on device", "results.csv")
    monkeypatch.setattr("pe_bench.runs.folder.write_rows", Mock(side_effect=full))
    outcome = train(*ARGUMENTS)
    assert outcome.code == 0 and "warning: results.csv: no space left on device" in outcome.err


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


def halve(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


@pytest.mark.parametrize(("name", "damage"), [("weights", flip), ("weights", halve), ("meta", halve)])
def test_damaged_weights_are_reported_and_trained_again_when_needed(
    train, rescore, run, folder, name, damage
):
    unbroken, step = contents(folder / "results"), run / "checkpoints" / "step-00000006"
    (path,) = step.glob(f"{name}.*")
    damage(path)
    outcome = rescore()
    assert outcome.code == 2 and "has no whole checkpoint of step 6" in outcome.line
    again = train(*ARGUMENTS, "eval.lengths=[16,32,48]")
    assert again.code == 0 and f"warning: retraining {run.name}: its final weights are gone" in again.err
    found = contents(folder / "results")
    kept = [name for name in unbroken if name.endswith(".safetensors") and "means" not in name]
    assert kept and all(found[name] == unbroken[name] for name in kept)


def test_a_finished_run_needs_a_lost_file_only_for_work_that_uses_it(train, command, rescore, run, folder):
    arguments = ("--lengths", "48", "--threads", "1", "--results-dir", str(folder / "results"))
    assert command("eval", str(run), *arguments).code == 0
    unbroken = contents(folder / "results")
    for name, code in [("optimizer", 0), ("weights", 2)]:
        path = run / "checkpoints" / "step-00000006" / f"{name}.safetensors"
        path.rename(folder / "lost")
        again = train(*ARGUMENTS)
        assert again.code == 0 and "is already trained" in again.err
        assert rescore().code == code
        (folder / "lost").rename(path)
        assert contents(folder / "results") == unbroken
    score = min((run / "scores").iterdir())
    for change in (score.unlink, lambda: os.truncate(score, 50)):
        change()
        assert train(*ARGUMENTS).code == 0 and contents(folder / "results") == unbroken
    shutil.rmtree(run / "checkpoints")
    edit_rows(run, lambda row: replace(row, scored_with="stale"))
    again = train(*ARGUMENTS, "eval.lengths=[16,64]")
    assert "its final weights are gone, and its scores are discarded" in again.err
    assert {row.scored_with for row in read_rows(run / "eval.csv")} == {"shaw"}


def test_a_damaged_configuration_is_named_and_made_whole_by_the_training_command(train, rescore, run):
    path = run / "config.yaml"
    for damage in (flip, halve, Path.unlink):
        damage(path)
        outcome = rescore()
        assert outcome.code == 2 and (
            "config.yaml is missing or damaged" in outcome.line or not path.exists()
        )
        again = train(*ARGUMENTS)
        assert again.code == 0 and "already trained" in again.err
        assert rescore().code == 0
    path.write_text("".join(path.read_text().splitlines(True)[1:]))
    assert rescore().code == 0, "one that was written by hand has no checksum"


def test_a_second_process_on_a_run_gets_a_message_and_disturbs_nothing(train, rescore, run, folder):
    unbroken = contents(folder / "results")
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        with locked(run):
            os.write(theirs, b"held")
            signal.pause()
        os._exit(0)
    os.read(ours, 4)
    try:
        for outcome in (rescore(), train(*ARGUMENTS)):
            assert outcome.code == 1 and f"another process is working on {run}" in outcome.line
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)
    assert train(*ARGUMENTS).code == 0, "the lock of a killed process holds nobody up"
    assert contents(folder / "results") == unbroken
