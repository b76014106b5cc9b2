"""Signals that stop a run: its step is finished and saved, and the same command continues from there."""

import fcntl
import os
import signal
import subprocess
import sys
import termios
from contextlib import suppress
from pathlib import Path

import pytest
from safetensors.torch import load_file
from support.commands import only_run, tiny_overrides, write_corpus

from pe_bench.errors import RunError, UserError
from pe_bench.system.signals import (
    FROM_OTHERS,
    STOP_SIGNALS,
    Stopped,
    ask_to_end,
    finish_step_on_signal,
    stop_on_signal,
)
from pe_bench.training.checkpoint import final_checkpoint, latest_checkpoint
from pe_bench.training.trainer import Trainer

ASKED_AT = 3  # steps that were done before the signal came


def test_a_signal_outside_of_a_step_ends_at_once():
    for number in (signal.SIGINT, *FROM_OTHERS):
        with stop_on_signal(), pytest.raises(Stopped):
            os.kill(os.getpid(), number)


def test_a_signal_in_a_step_is_noted_and_a_second_ends_at_once(capfd, monkeypatch):
    with stop_on_signal(), suppress(Stopped), finish_step_on_signal() as is_asked:
        assert not is_asked()
        os.kill(os.getpid(), signal.SIGTERM)
        assert is_asked()
        assert "Ctrl-C again to quit now" in capfd.readouterr().err
        os.kill(os.getpid(), signal.SIGINT)  # one request may come twice
        monkeypatch.setattr("pe_bench.system.signals.DEBOUNCE_SECONDS", 0.0)
        with pytest.raises(Stopped):
            os.kill(os.getpid(), signal.SIGINT)


def test_a_thread_can_ask_to_end_only_once_and_never_acts_as_a_second_signal(monkeypatch):
    monkeypatch.setattr("pe_bench.system.signals.DEBOUNCE_SECONDS", 0.0)
    with stop_on_signal(), suppress(Stopped), finish_step_on_signal() as is_asked:
        ask_to_end()
        ask_to_end()
        assert is_asked()


def test_a_signal_that_the_steps_did_not_check_for_ends_the_program_after_them():
    went_on = False
    with stop_on_signal(), suppress(Stopped):
        with finish_step_on_signal():
            os.kill(os.getpid(), signal.SIGTERM)
        went_on = True
    assert not went_on


def test_a_signal_is_obeyed_even_if_nobody_can_read_the_message():
    program = (
        "import os, signal\n"
        "from pe_bench.system.signals import Stopped, stop_on_signal, finish_step_on_signal\n"
        "read, write = os.pipe()\n"
        "os.dup2(write, 2); os.close(read)\n"
        "with stop_on_signal():\n"
        "    try:\n"
        "        with finish_step_on_signal() as is_asked:\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "            assert is_asked()\n"
        "    except Stopped:\n"
        "        os._exit(7)\n"
    )
    assert subprocess.run([sys.executable, "-c", program]).returncode == 7


def test_signal_handlers_are_restored():
    before = [signal.getsignal(number) for number in STOP_SIGNALS]
    with stop_on_signal():
        assert [signal.getsignal(number) for number in STOP_SIGNALS] != before
    assert [signal.getsignal(number) for number in STOP_SIGNALS] == before


def test_a_request_is_over_with_what_it_ended() -> None:
    with pytest.raises(Stopped), stop_on_signal():
        os.kill(os.getpid(), signal.SIGTERM)
    with finish_step_on_signal() as is_asked:
        assert not is_asked()


def asked_in_step(monkeypatch: pytest.MonkeyPatch, method: str, number: int) -> None:
    """Send the signal during a step or its validation."""
    original = getattr(Trainer, method)
    calls = []

    def asked(self, *arguments):
        calls.append(1)
        if len(calls) == ASKED_AT + 1 or method == "validation_loss":
            os.kill(os.getpid(), number)
        return original(self, *arguments)

    monkeypatch.setattr(Trainer, method, asked)


def weights(run: Path) -> dict[str, bytes]:
    checkpoint = final_checkpoint(run, 8)
    assert checkpoint is not None
    return {
        name: tensor.numpy().tobytes()
        for name, tensor in load_file(checkpoint.path / "weights.safetensors").items()
    }


def without_seconds(log: Path) -> list[list[str]]:
    return [line.split(",")[:-1] for line in log.read_text().splitlines()]


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_a_stopped_run_saves_its_step_and_continues_to_the_same_weights(train, folder, monkeypatch, number):
    with monkeypatch.context() as patched:
        asked_in_step(patched, "step", number)
        outcome = train("encoding=alibi")
    assert outcome.code == 130
    assert "stopped at step 4 of 8, which is saved; the same command continues from there" in outcome.line
    run = only_run(folder)
    found = latest_checkpoint(run / "checkpoints")
    assert found is not None and found.meta.step == ASKED_AT + 1
    assert not (run / "result.json").exists() and not (run / "error.txt").exists()
    assert train("encoding=alibi").code == 0
    assert train("encoding=alibi", f"results_dir={folder / 'other'}").code == 0
    never_stopped = folder / "other" / "runs" / run.name
    assert weights(run) == weights(never_stopped)
    assert without_seconds(run / "train.csv") == without_seconds(never_stopped / "train.csv")


def test_a_validation_loss_interrupted_by_a_signal_is_computed_when_the_run_continues(
    train, folder, monkeypatch
):
    with monkeypatch.context() as patched:
        asked_in_step(patched, "validation_loss", signal.SIGINT)
        assert train("encoding=alibi").code == 130
    run = only_run(folder)
    assert (run / "train.csv").read_text().splitlines()[-1].split(",")[3] == ""
    assert train("encoding=alibi").code == 0
    assert train("encoding=alibi", f"results_dir={folder / 'other'}").code == 0
    logs = [without_seconds(place / "train.csv") for place in (run, folder / "other" / "runs" / run.name)]
    assert logs[0] == logs[1]


def test_scoring_interrupted_by_a_signal_keeps_the_scored_lengths(train, folder, monkeypatch):
    import pe_bench.scoring.evaluate

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
    run = only_run(folder)
    kept = {path: path.stat().st_mtime_ns for path in (run / "scores").iterdir()}
    assert len(kept) == 2
    assert train("encoding=alibi", "eval.lengths=[16,32,64]").code == 0
    assert len(list((run / "scores").iterdir())) == 3
    (first,) = [path for path in kept if path.name.startswith("paired-16-")]
    assert first.stat().st_mtime_ns == kept[first]


def test_an_end_before_the_first_checkpoint_promises_nothing(train, folder, monkeypatch):
    def interrupted(self, number, seconds):
        raise Stopped

    with monkeypatch.context() as patched:
        patched.setattr(Trainer, "step", interrupted)
        outcome = train("encoding=alibi")
    assert outcome.code == 130
    told = "interrupted; nothing was saved yet, so the same command starts from the beginning"
    assert outcome.line == f"pe-bench: {told}"
    assert latest_checkpoint(only_run(folder) / "checkpoints") is None


def test_an_end_at_once_names_the_step_that_is_saved_and_then_the_scores(train, command, folder, monkeypatch):
    step = Trainer.step

    def interrupted(self, number, seconds):
        if number == 5:
            raise Stopped
        return step(self, number, seconds)

    with monkeypatch.context() as patched:
        patched.setattr(Trainer, "step", interrupted)
        outcome = train("encoding=alibi")
    assert "interrupted; step 4 of 8 is saved, and the same command continues from there" in outcome.line
    with monkeypatch.context() as patched:
        patched.setattr("pe_bench.scoring.evaluate.evaluate", lambda *given: (_ for _ in ()).throw(Stopped))
        outcome = train("encoding=alibi")
        assert "the trained weights are saved, and no scores yet; the same command" in outcome.line
    assert train("encoding=alibi").code == 0
    with monkeypatch.context() as patched:
        patched.setattr("pe_bench.scoring.evaluate.evaluate", lambda *given: (_ for _ in ()).throw(Stopped))
        outcome = command("eval", str(only_run(folder)), "--lengths", "24")
        assert "saved, and the lengths scored so far; the same command continues" in outcome.line


# An error in place of a signal


class InterruptedPath(type(Path())):
    """A file that a signal interrupts while it is opened."""

    def open(self, *arguments, **named):
        raise Stopped("stopped by a signal")


def test_a_signal_while_hydra_opens_a_file_is_a_signal_and_no_error_of_hydras():
    from hydra._internal.core_plugins.importlib_resources_config_source import ImportlibResourcesConfigSource

    source = ImportlibResourcesConfigSource("test", "pkg://hydra.conf")
    with pytest.raises(UnboundLocalError):  # the fault of Hydra's that a signal runs into
        source._read_config(InterruptedPath("config.yaml"))
    with pytest.raises(Stopped, match="stopped by a signal"), stop_on_signal():
        source._read_config(InterruptedPath("config.yaml"))


@pytest.mark.parametrize("error", [RunError("the disk is full"), UserError("no"), OSError("no space")])
def test_an_error_for_people_after_a_signal_is_not_lost(error):
    def fails():
        try:
            raise Stopped
        finally:
            raise error

    with pytest.raises(type(error)), stop_on_signal():
        fails()


def test_an_error_without_a_signal_is_an_error():
    with pytest.raises(ZeroDivisionError), stop_on_signal():
        raise ZeroDivisionError


def test_a_run_whose_terminal_is_lost_saves_its_step(tmp_path):
    write_corpus(tmp_path / "corpus")
    ours, theirs = os.openpty()
    arguments = [
        *tiny_overrides(tmp_path),
        "encoding=nope",
        "train.steps=20000",
        "train.validate_every=20000",
    ]

    def at_terminal():
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        fcntl.ioctl(theirs, termios.TIOCSCTTY, 0)

    run = subprocess.Popen(
        [sys.executable, "-m", "pe_bench", "train", *arguments, "train.checkpoint_every=20000"],
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
    assert saved is not None and saved.meta.step >= 5


def test_losing_the_terminal_does_not_end_a_process_that_ignores_the_signal():
    program = (
        "import os, signal\n"
        "from pe_bench.system.signals import stop_on_signal\n"
        "signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
        "with stop_on_signal():\n"
        "    os.kill(os.getpid(), signal.SIGHUP)\n"
        "print('went on')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "went on\n"
