"""Signals that stop a run: its step is finished and saved, and the same command continues from there."""

import fcntl
import os
import signal
import subprocess
import sys
import termios
from contextlib import suppress

import pytest
from support.commands import only_run, tiny_overrides, write_corpus

import pe_bench.scoring.evaluate
from pe_bench.system.signals import (
    FROM_OTHERS,
    STOP_SIGNALS,
    Stopped,
    ask_to_end,
    finish_step_on_signal,
    stop_on_signal,
)
from pe_bench.training.checkpoint import latest_checkpoint
from pe_bench.training.trainer import Trainer


def test_a_signal_outside_of_a_step_ends_at_once_and_is_over_with_what_it_ended():
    before = [signal.getsignal(number) for number in STOP_SIGNALS]
    for number in (signal.SIGINT, *FROM_OTHERS):
        with pytest.raises(Stopped), stop_on_signal():
            os.kill(os.getpid(), number)
    with finish_step_on_signal() as is_asked:
        assert not is_asked()
    assert [signal.getsignal(number) for number in STOP_SIGNALS] == before


def test_a_signal_in_a_step_is_noted_and_a_second_ends_at_once(capfd, monkeypatch):
    with stop_on_signal(), suppress(Stopped), finish_step_on_signal() as is_asked:
        assert not is_asked()
        os.kill(os.getpid(), signal.SIGTERM)
        assert is_asked()
        assert "Ctrl-C again to quit now" in capfd.readouterr().err
        os.kill(os.getpid(), signal.SIGINT)  # one request may come twice
        monkeypatch.setattr("pe_bench.system.signals.DEBOUNCE_SECONDS", 0.0)
        ask_to_end()  # a thread never acts as a second signal
        with pytest.raises(Stopped):
            os.kill(os.getpid(), signal.SIGINT)


PROGRAM = """
import os, signal
from pe_bench.system.signals import Stopped, finish_step_on_signal, stop_on_signal
signal.signal(signal.SIGHUP, signal.SIG_IGN)
read, write = os.pipe()
os.dup2(write, 2); os.close(read)
with stop_on_signal():
    os.kill(os.getpid(), signal.SIGHUP)
    try:
        with finish_step_on_signal():
            os.kill(os.getpid(), signal.SIGINT)
    except Stopped:
        os._exit(7)
"""


def test_a_lost_terminal_is_ignored_under_nohup_and_a_signal_is_obeyed_if_nobody_reads_of_it():
    assert subprocess.run([sys.executable, "-c", PROGRAM]).returncode == 7


@pytest.mark.parametrize(
    ("method", "call", "number"),
    [*(("step", 4, number) for number in STOP_SIGNALS), ("validation_loss", 1, signal.SIGINT)],
)
def test_a_stopped_run_saves_its_step_and_continues_to_the_same_weights(
    train, folder, monkeypatch, method, call, number
):
    original, calls = getattr(Trainer, method), []

    def asked(self, *arguments):
        calls.append(1)
        if len(calls) == call:
            os.kill(os.getpid(), number)
        return original(self, *arguments)

    with monkeypatch.context() as patched:
        patched.setattr(Trainer, method, asked)
        outcome = train("encoding=randomized")
    assert outcome.code == 130
    assert "stopped at step 4 of 8, which is saved; the same command continues from there" in outcome.line
    run = only_run(folder)
    checkpoint = latest_checkpoint(run / "checkpoints")
    assert checkpoint is not None and checkpoint.step == 4
    assert not (run / "result.json").exists() and not (run / "error.txt").exists()
    assert train("encoding=randomized").code == 0
    assert train("encoding=randomized", f"results_dir={folder / 'other'}").code == 0
    logs, weights = [], []
    for each in (run, folder / "other" / "runs" / run.name):
        logs.append([line.split(",")[:-1] for line in (each / "train.csv").read_text().splitlines()])
        weights.append((each / "checkpoints" / "step-00000008" / "weights.safetensors").read_bytes())
    assert logs[0] == logs[1] and weights[0] == weights[1]


def test_scoring_interrupted_by_a_signal_keeps_the_scored_lengths(train, folder, monkeypatch):
    original, scored = pe_bench.scoring.evaluate.save_scores, []

    def save(*arguments, **named):
        original(*arguments, **named)
        scored.append(1)
        if len(scored) == 2:
            os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patched:
        patched.setattr(pe_bench.scoring.evaluate, "save_scores", save)
        outcome = train("encoding=alibi", "eval.lengths=[16,32,64]")
    assert outcome.code == 130 and "the same command continues from there" in outcome.line
    kept = {path: path.stat().st_mtime_ns for path in (only_run(folder) / "scores").iterdir()}
    assert len(kept) == 2
    assert train("encoding=alibi", "eval.lengths=[16,32,64]").code == 0
    assert len(list((only_run(folder) / "scores").iterdir())) == 3
    (first,) = [path for path in kept if path.name.startswith("paired-16-")]
    assert first.stat().st_mtime_ns == kept[first]


def test_an_end_at_once_says_what_is_kept(train, monkeypatch):
    step, stop_at = Trainer.step, 0

    def take(self, number, seconds):
        if number == stop_at:
            raise Stopped
        return step(self, number, seconds)

    def stops(*_: object):
        raise Stopped

    monkeypatch.setattr(Trainer, "step", take)
    for at, kept in [
        (0, "nothing was saved yet, so the same command starts"),
        (5, "step 4 of 8 is saved, and the same command"),
        (None, "step 8 of 8 is saved, and the same command"),
    ]:
        stop_at = at
        if at is None:
            monkeypatch.setattr("pe_bench.scoring.evaluate.evaluate", stops)
        outcome = train("encoding=alibi")
        assert outcome.code == 130 and f"interrupted; {kept}" in outcome.line


def test_a_run_whose_terminal_is_lost_saves_its_step(tmp_path):
    write_corpus(tmp_path / "corpus")
    ours, theirs = os.openpty()
    long = [f"train.{key}=20000" for key in ("steps", "validate_every", "checkpoint_every")]

    def at_terminal():
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        fcntl.ioctl(theirs, termios.TIOCSCTTY, 0)

    run = subprocess.Popen(
        [sys.executable, "-m", "pe_bench", "train", *tiny_overrides(tmp_path), "encoding=nope", *long],
        cwd=tmp_path,
        start_new_session=True,
        preexec_fn=at_terminal,
        **dict.fromkeys(("stdin", "stdout", "stderr"), theirs),
    )
    os.close(theirs)
    shown = b""
    while b"step 5" not in shown:
        shown += os.read(ours, 1000)
    os.close(ours)
    assert run.wait(timeout=60) == 130
    saved = latest_checkpoint(only_run(tmp_path) / "checkpoints")
    assert saved is not None and saved.step >= 5
