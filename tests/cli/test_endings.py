"""How a command ends that something else ends: a full disk, Ctrl-C, a reader that is gone."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.commands import Command, files_in, only_run

from pe_bench.runs.folder import locked
from pe_bench.training.trainer import Trainer

MORE = ("encoding=rope", "eval.lengths=[16,32,64]")


def test_a_lock_and_a_full_disk_are_one_line_and_exit_1_and_nothing_is_lost(
    begin: Command, train: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_space(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    begin("encoding=rope")
    before = files_in(only_run(folder))
    with locked(only_run(folder)):
        outcome = train(*MORE)
    assert outcome.code == 1 and "another process is working on" in outcome.line
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", no_space)
        outcome = train(*MORE)
    assert outcome.code == 1 and "No space left on device" in outcome.line
    assert files_in(only_run(folder)) == before
    assert train(*MORE).code == 0


def test_ctrl_c_ends_with_130_and_says_how_to_go_on(train: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    step = Trainer.step

    def interrupted(self: Trainer, number: int, seconds: float) -> Any:
        if number == 5:
            raise KeyboardInterrupt
        return step(self, number, seconds)

    monkeypatch.setattr(Trainer, "step", interrupted)
    outcome = train("encoding=rope")
    assert outcome.code == 130 and "continues from" in outcome.line


def test_a_reader_that_is_gone_ends_a_command_without_a_word() -> None:
    command = [sys.executable, "-m", "pe_bench", "train", "--cfg", "job"]
    done = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert done.stdout is not None and done.stderr is not None
    done.stdout.close()
    assert done.stderr.read() == ""
    done.stderr.close()
    assert done.wait() in (0, 1)


@pytest.mark.parametrize(
    ("ends", "code", "told"), [("atexit.register(print, 'written') and 3", 3, "written\n"), ("1 / 0", 1, "")]
)
def test_a_command_ends_with_its_code_and_with_all_that_was_left_to_do(
    ends: str, code: int, told: str
) -> None:
    lines = ("import atexit", "from pe_bench.cli import program", f"program.run = lambda _: {ends}")
    program = "\n".join((*lines, "program.main()"))
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (code, told)
    assert ("ZeroDivisionError" in ended.stderr) == (code == 1)
