"""How a command ends that something else ends: a full disk, Ctrl-C, a reader that is gone."""

import os
import subprocess
import sys

import pytest
from support.commands import files_in, only_run


def test_two_processes_on_one_run_are_refused_with_exit_1(train, folder):
    from pe_bench.runs.folder import locked

    train("encoding=rope")
    with locked(only_run(folder)):
        outcome = train("encoding=rope", "eval.lengths=[16,32,64]")
    assert outcome.code == 1 and "another process is working on" in outcome.line
    assert train("encoding=rope", "eval.lengths=[16,32,64]").code == 0


def test_a_full_disk_is_one_line_and_exit_1_and_nothing_is_lost(train, folder, monkeypatch):
    assert train("encoding=rope").code == 0
    before = files_in(only_run(folder))
    monkeypatch.setattr(os, "fsync", _no_space)
    outcome = train("encoding=rope", "eval.lengths=[16,32,64]")
    assert outcome.code == 1 and "No space left on device" in outcome.line
    monkeypatch.undo()
    assert files_in(only_run(folder)) == before


def _no_space(descriptor: int) -> None:
    raise OSError(28, "No space left on device")


def test_ctrl_c_ends_with_130_and_says_how_to_go_on(train, folder, monkeypatch):
    from pe_bench.training.trainer import Trainer

    step = Trainer.step

    def interrupted(self, number, seconds):
        if number == 5:
            raise KeyboardInterrupt
        return step(self, number, seconds)

    monkeypatch.setattr(Trainer, "step", interrupted)
    outcome = train("encoding=rope")
    assert outcome.code == 130 and "continues from" in outcome.line
    monkeypatch.undo()
    assert train("encoding=rope").code == 0


@pytest.mark.parametrize("arguments", [["--help"], ["list", "models"], ["train", "--cfg", "job"]])
def test_a_reader_that_is_gone_ends_a_command_without_a_word(arguments):
    done = subprocess.Popen(
        [sys.executable, "-m", "pe_bench", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert done.stdout is not None and done.stderr is not None
    done.stdout.close()
    assert done.stderr.read() == ""
    done.stderr.close()
    assert done.wait() in (0, 1)


def test_an_error_of_the_system_is_said_in_plain_words(train, folder, monkeypatch):
    def not_there(*arguments):
        raise NotADirectoryError(20, "Not a directory", "afile/runs")

    monkeypatch.setattr("pe_bench.experiment.train", not_there)
    outcome = train("encoding=rope")
    assert (outcome.code, outcome.line) == (1, "pe-bench: afile/runs: not a directory")


@pytest.mark.parametrize(
    ("ends", "code", "told"),
    [
        ("atexit.register(print, 'written') and 3", 3, "written\n"),
        ("1 / 0", 1, ""),
    ],
)
def test_a_command_ends_with_its_code_and_with_all_that_was_left_to_do(ends, code, told):
    lines = ("import atexit", "from pe_bench.cli import program", f"program.run = lambda _: {ends}")
    program = "\n".join((*lines, "program.main()"))
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (code, told)
    assert ("ZeroDivisionError" in ended.stderr) == (code == 1)
