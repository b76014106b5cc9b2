"""Signals that stop a run: its step is finished and saved, and the same command continues from there."""

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import termios
from contextlib import suppress

import pytest
from support.commands import only_run, start, stop_before, tiny_overrides, write_corpus
from support.run_contents import contents

import pe_bench.scoring.rows
from pe_bench.system import signals
from pe_bench.system.signals import Stopped
from pe_bench.training.checkpoint import latest_checkpoint
from pe_bench.training.trainer import Trainer


def test_a_signal_outside_of_a_step_ends_at_once_and_is_over_with_what_it_ended():
    before = [signal.getsignal(number) for number in signals.STOP_SIGNALS]
    for number in (signal.SIGINT, *signals.FROM_OTHERS):
        with pytest.raises(Stopped), signals.stop_on_signal():
            os.kill(os.getpid(), number)
    with signals.finish_step_on_signal() as is_asked:
        assert not is_asked()
    assert [signal.getsignal(number) for number in signals.STOP_SIGNALS] == before


def test_a_signal_in_a_step_is_noted_and_a_second_ends_at_once(capfd, monkeypatch):
    with signals.stop_on_signal(), suppress(Stopped), signals.finish_step_on_signal() as is_asked:
        assert not is_asked()
        os.kill(os.getpid(), signal.SIGTERM)
        assert is_asked()
        assert "Ctrl-C again to quit now" in capfd.readouterr().err
        os.kill(os.getpid(), signal.SIGINT)  # one request may come twice
        monkeypatch.setattr("pe_bench.system.signals.DEBOUNCE_SECONDS", 0.0)
        signals.send_sigterm_to_self()  # a thread never acts as a second signal
        with pytest.raises(Stopped):
            os.kill(os.getpid(), signal.SIGINT)


def test_a_lost_terminal_is_ignored_under_nohup():
    with signals.handling_signals((signal.SIGHUP,), signal.SIG_IGN), signals.stop_on_signal():
        os.kill(os.getpid(), signal.SIGHUP)


def signal_at_call(patch: pytest.MonkeyPatch, target: object, name: str, call: int, number: int) -> None:
    """Have a function send this process a signal when it is called so often."""
    original, calls = getattr(target, name), []

    def signalling(*arguments, **named):
        calls.append(1)
        if len(calls) == call:
            os.kill(os.getpid(), number)
        return original(*arguments, **named)

    patch.setattr(target, name, signalling)


@pytest.mark.parametrize(
    ("method", "call", "number"),
    [*(("step", 4, number) for number in signals.STOP_SIGNALS), ("validation_loss", 1, signal.SIGINT)],
)
def test_a_stopped_run_saves_its_step_and_ends_the_same(train, folder, monkeypatch, method, call, number):
    with monkeypatch.context() as patch:
        signal_at_call(patch, Trainer, method, call, number)
        outcome = train("encoding=randomized")
    assert outcome.code == 130
    assert "stopped at step 4 of 8, which is saved; the same command continues from there" in outcome.line
    run = only_run(folder)
    checkpoint = latest_checkpoint(run / "checkpoints")
    assert checkpoint is not None and checkpoint.step == 4
    assert not (run / "result.json").exists() and not (run / "error.txt").exists()
    assert train("encoding=randomized").code == 0
    continued = contents(folder / "results")
    shutil.rmtree(folder / "results")
    assert train("encoding=randomized").code == 0
    assert contents(folder / "results") == continued


def test_scoring_interrupted_by_a_signal_keeps_the_scored_lengths(train, folder, monkeypatch):
    arguments = ("encoding=alibi", "eval.lengths=[16,32,64]")
    with monkeypatch.context() as patch:
        signal_at_call(patch, pe_bench.scoring.rows, "save_scores", 2, signal.SIGTERM)
        outcome = train(*arguments)
    assert outcome.code == 130 and "the same command continues from there" in outcome.line
    (kept,) = (only_run(folder) / "scores").glob("paired-16-*")
    written = kept.stat().st_mtime_ns
    assert train(*arguments).code == 0
    assert len(list((only_run(folder) / "scores").iterdir())) == 3
    assert kept.stat().st_mtime_ns == written


@pytest.mark.parametrize(
    ("at", "kept"),
    [(0, "nothing was saved yet, so the same command starts"), (5, "step 4 of 8 is saved, and the same")],
)
def test_an_end_at_once_says_what_is_kept(train, monkeypatch, at, kept):
    stop_before(monkeypatch, at)
    outcome = train("encoding=alibi")
    assert outcome.code == 130 and f"interrupted; {kept}" in outcome.line


def test_a_run_whose_terminal_is_lost_saves_its_step(tmp_path):
    write_corpus(tmp_path / "corpus")
    ours, theirs = os.openpty()
    long = [f"train.{key}=20000" for key in ("steps", "validate_every", "checkpoint_every")]

    def at_terminal():
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        fcntl.ioctl(theirs, termios.TIOCSCTTY, 0)

    standard = dict.fromkeys(("stdin", "stdout", "stderr"), theirs)
    run = start(tmp_path, "encoding=nope", *long, preexec_fn=at_terminal, **standard)
    os.close(theirs)
    shown = b""
    while b"step 5" not in shown:
        shown += os.read(ours, 1000)
    os.close(ours)
    assert run.wait(timeout=60) == 130
    saved = latest_checkpoint(only_run(tmp_path) / "checkpoints")
    assert saved is not None and saved.step >= 5


def test_a_script_without_a_main_guard_runs_once_where_child_processes_train(tmp_path):
    write_corpus(tmp_path / "corpus")
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, pe_bench\n"
        "print('script', flush=True)\n"
        "run = pe_bench.train('encoding=rope', *sys.argv[1:])\n"
        "pe_bench.extend(run.path, '2x', 'yarn', tokens=64, overrides=['train.warmup_steps=0'])\n"
        "pe_bench.train('encoding=alibi', *sys.argv[1:], 'train.processes=2')\n"
    )
    command = [sys.executable, str(script), *tiny_overrides(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "script\n"), done.stderr
