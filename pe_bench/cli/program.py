"""The program: run one command, and turn its end into an exit code."""

import atexit
import os
import shlex
import sys
from contextlib import suppress

import typer

from pe_bench.cli.app import app
from pe_bench.errors import RunError, UserError, first_line
from pe_bench.runs.typed import COMMAND_VARIABLE
from pe_bench.system.signals import (
    INTERRUPTED_EXIT_CODE,
    Stopped,
    local_rank,
    rank,
    stop_on_signal,
    world_size,
)
from pe_bench.system.terminal import say
from pe_bench.values import check_utf8


def main() -> None:
    """Run a command; exit with 0 done, 1 failed, 2 misused, 130 interrupted."""
    # A closed stream, as after `>&-`, is None: its output is dropped.
    sys.stdout = sys.stdout or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    code = 1  # the exit code of a traceback
    # Registered first and so called last, when threads and children have ended: what is left is to take
    # PyTorch down, which takes a second and frees what the system frees anyway.
    atexit.register(lambda: _flush_and_exit(code))
    code = run(sys.argv[1:])
    sys.exit(code)


def _flush_and_exit(code: int) -> None:
    with suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def run(arguments: list[str]) -> int:
    """Run a command and return its exit code; an error is one line on standard error."""
    if arguments[:1] == ["help"]:
        arguments = [*arguments[1:], "--help"]
    if "#" in arguments:  # a comment, which zsh does not leave out of what is typed
        arguments = arguments[: arguments.index("#")]
    try:
        check_utf8(arguments, "an argument")
        os.environ[COMMAND_VARIABLE] = shlex.join(
            ["pe-bench", *arguments]
        )  # as typed, before Hydra adds its own
        with stop_on_signal():
            command = typer.main.get_command(app)
            code = command.main(arguments or ["--help"], "pe-bench", standalone_mode=False) or 0
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has seen enough, as in `pe-bench report | head -3`
        return 1
    except SystemExit as done:  # raised by Typer's completion
        return int(done.code or 0)
    except UserError as error:
        return _print_failure(str(error), 2)
    except (RunError, OSError) as error:
        return _print_failure(first_line(error), 1)
    except (Stopped, typer.Abort) as error:
        return _print_failure(str(error) or "interrupted", INTERRUPTED_EXIT_CODE)
    except Exception as error:  # Typer's usage errors, and any fault
        code, message = getattr(error, "exit_code", None), getattr(error, "format_message", None)
        if code is None or message is None:
            raise
        text = message()
        if arguments[:1] == ["train"] and "No such option" in text:
            text += "; keys are KEY=VALUE: `pe-bench list keys`"
        return _print_failure(text, code)
    return _print_failure("interrupted", INTERRUPTED_EXIT_CODE) if code == INTERRUPTED_EXIT_CODE else code


def _print_failure(message: str, code: int) -> int:
    """Print the message of an error on one line, and return the exit code `code`."""
    line = f"pe-bench: {' '.join(message.split())}"
    say(line)
    # `say` prints only in the first of torchrun's processes. Those of one machine make the same mistake.
    if rank() > 0 and (code == 1 or (code == 2 and local_rank() == 0)):
        print(f"{line} (rank {rank()} of {world_size()} processes)", file=sys.stderr)
    return code
