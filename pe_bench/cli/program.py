"""The program: run one command, and turn its end into an exit code."""

import atexit
import os
import sys
from contextlib import suppress

import typer

from pe_bench.cli.app import app
from pe_bench.errors import RunError, UserError, first_line
from pe_bench.system.signals import EXIT_CODE, Stopped, rank, stop_on_signal, world_size
from pe_bench.system.terminal import say


def main() -> None:
    """Run a command; exit with 0 done, 1 failed, 2 misused, 130 interrupted."""
    # A closed stream, as after `>&-`, is None: what is for it goes nowhere.
    sys.stdout = sys.stdout or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    code = 1  # of a traceback
    # Registered first and so called last, when threads and children have ended: what is left is to take
    # PyTorch down, which takes a second and frees what the system frees anyway.
    atexit.register(lambda: _leave(code))
    code = run(sys.argv[1:])
    sys.exit(code)


def _leave(code: int) -> None:
    with suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def run(arguments: list[str]) -> int:
    """Run a command and return its exit code; what went wrong is one line on standard error."""
    from pe_bench.runs.commands import remember_command

    if arguments[:1] == ["help"]:
        arguments = [*arguments[1:], "--help"]
    remember_command(arguments)
    try:
        with stop_on_signal():
            command = typer.main.get_command(app)
            code = command.main(arguments or ["--help"], "pe-bench", standalone_mode=False) or 0
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has seen enough, as in `pe-bench report | head -3`
        return _leave_quietly()
    except UserError as error:
        return _refuse(arguments, str(error), 2)
    except (RunError, OSError) as error:
        return _fail(first_line(error), 1)
    except (Stopped, typer.Abort) as error:
        return _fail(str(error) or "interrupted", EXIT_CODE)
    except Exception as error:  # of usage, by Typer
        code, message = getattr(error, "exit_code", None), getattr(error, "format_message", None)
        if code is None or message is None:
            raise
        return _refuse(arguments, message(), code)
    return _fail("interrupted", EXIT_CODE) if code == EXIT_CODE else code


def _refuse(arguments: list[str], message: str, code: int) -> int:
    """Say what is wrong, and how this command spells an option or a key of that name, if it has it."""
    from pe_bench.cli.completion import respell

    return _fail(respell(typer.main.get_command(app), arguments, message) or message, code)


def _leave_quietly() -> int:
    """Exit code 1; what is still buffered goes nowhere, for Python writes it once more when it ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
    return 1


def _fail(message: str, code: int) -> int:
    line = f"pe-bench: {' '.join(message.split())}"
    say(line)
    if rank() > 0 and code == 1:  # else the first of torchrun's processes alone speaks
        print(f"{line} (rank {rank()} of {world_size()} processes)", file=sys.stderr)
    return code
