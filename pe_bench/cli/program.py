"""The program: run one command, and turn its end into an exit code."""

import atexit
import os
import re
import sys
from contextlib import suppress
from typing import Any

import typer

from pe_bench.cli.app import app
from pe_bench.errors import RunError, UserError, first_line
from pe_bench.system.signals import EXIT_CODE, Stopped, stop_on_signal
from pe_bench.system.terminal import say

EXTRA_ARGUMENT = re.compile(r"unexpected extra argument\S* \((\S+)[ )]")


def main() -> None:
    """Run a command; exit with 0 done, 1 failed, 2 misused, 130 interrupted."""
    _replace_closed_streams()
    code = 1  # of a traceback
    # Registered first and so called last, when threads and children have ended: what is left is to take
    # PyTorch down, which takes a second and frees what the system frees anyway.
    atexit.register(lambda: _leave(code))
    code = run(sys.argv[1:])
    sys.exit(code)


def _replace_closed_streams() -> None:
    """Send what is for a closed stream, as after `>&-`, nowhere: Python has None in its place."""
    sys.stdout = sys.stdout or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115


def _leave(code: int) -> None:
    with suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def run(arguments: list[str]) -> int:
    """Run a command and return its exit code; what went wrong is one line on standard error."""
    if arguments[:1] == ["help"]:
        arguments = [*arguments[1:], "--help"]
    if arguments == ["version"]:
        arguments = ["--version"]
    odd = next((argument for argument in arguments if "\0" in argument), None)
    if odd is not None:  # no system takes such a name of a file
        return _fail(f"the argument {odd!a:.60} has a zero byte: give it without", 2)
    from pe_bench.runs.commands import remember_command

    remember_command(arguments)
    try:
        with stop_on_signal():
            command = typer.main.get_command(app)
            code = command.main(arguments or ["--help"], "pe-bench", standalone_mode=False) or 0
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has seen enough, as in `pe-bench report | head -3`
        return _leave_quietly()
    except UserError as error:
        return _fail(_answer(arguments, str(error), error.key), 2)
    except (RunError, OSError) as error:
        return _fail(first_line(error), 1)
    except (Stopped, typer.Abort) as error:
        return _stop(str(error))
    except Exception as error:
        # Typer's own errors of usage; they carry their exit code.
        code, message = getattr(error, "exit_code", None), getattr(error, "format_message", None)
        if code is None or message is None:
            raise
        # Our own parsers name the option themselves, and pydantic puts its words before that.
        of_parser = message().partition(": Value error, ")[2]
        return _fail(_answer_usage(arguments, error, of_parser or message()), code)
    return _stop("") if code == EXIT_CODE else code


def _answer(arguments: list[str], message: str, refused: str) -> str:
    """Return the message, or how the command spells the argument, option or key that was refused."""
    from pe_bench.cli.completion import respell

    return (refused and respell(typer.main.get_command(app), arguments, refused)) or message


def _answer_usage(arguments: list[str], error: Any, message: str) -> str:
    """Return the answer to an error of Typer's."""
    from pe_bench.cli.completion import describe_unknown_option

    if hasattr(error, "possibilities"):  # an unknown option
        option = error.option_name
        return _answer(
            arguments, describe_unknown_option(typer.main.get_command(app), arguments, option), option
        )
    # Typer says which argument is one too many in its English alone.
    extra = EXTRA_ARGUMENT.search(message)
    return _answer(arguments, message, extra[1] if extra else "")


def _leave_quietly() -> int:
    """Exit code 1; what is still buffered goes nowhere, for Python writes it once more when it ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
    return 1


def _stop(told: str) -> int:
    return _fail(told or "interrupted", EXIT_CODE)


def _fail(message: str, code: int) -> int:
    say(f"pe-bench: {' '.join(message.split())}")
    return code
