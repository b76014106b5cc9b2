"""The commands that made a run, as they were typed, in its `commands.json`, and its tags in `tags.json`."""

import hashlib
import json
import os
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from pe_bench.errors import RunError
from pe_bench.system.terminal import CONTROL_SIGNS

# A variable, because a launcher may run the jobs of a sweep in processes of their own.
COMMAND_VARIABLE = "PE_BENCH_COMMAND"
DEFAULT_RESULTS_DIR = Path("results")
COMMANDS_FILE = "commands.json"
TAGS_FILE = "tags.json"


def results_option(results_dir: Path) -> str:
    """Return ` --results-dir FOLDER` for a command to type; empty for the default folder."""
    return "" if results_dir == DEFAULT_RESULTS_DIR else f" --results-dir {shlex.quote(str(results_dir))}"


def suggested_eval_command(run: Path) -> str:
    """Return the command that would score a run, in backquotes for a message: `pe-bench eval NAME`."""
    name = shlex.quote(run.name)
    return f"`pe-bench eval {name}{results_option(run.parent.parent)}`"


def group_of_command() -> str | None:
    """Return a name for the runs of the current command; None for a single training, or without a command."""
    command = os.environ.get(COMMAND_VARIABLE, "")
    arguments = shlex.split(command)
    is_sweep = "-m" in arguments or "--multirun" in arguments
    is_single = arguments[1:2] == ["train"] and not is_sweep
    if is_single or not arguments:
        return None
    digest = hashlib.sha256(command.encode()).hexdigest()
    return f"{arguments[1]}-{digest[:8]}"


@contextmanager
def called_with(overrides: Sequence[str]) -> Iterator[None]:
    """Within the context, record the command `train` with these overrides, unless a command is running."""
    is_command = COMMAND_VARIABLE in os.environ
    if not is_command:
        os.environ[COMMAND_VARIABLE] = shlex.join(["pe-bench", "train", *overrides])
    try:
        yield
    finally:
        if not is_command:
            os.environ.pop(COMMAND_VARIABLE, None)


def record_command(run: Path) -> None:
    """Add the present command to the run's `commands.json`, once.

    Only the holder of the run's lock may call this.
    """
    from pe_bench.system.files import write_text  # which `--help` should not wait for

    arguments = shlex.split(os.environ.get(COMMAND_VARIABLE, ""))
    recorded = recorded_commands(run)
    is_eval = arguments[1:2] == ["eval"]
    has_name = len(arguments) > 2 and not arguments[2].startswith("-")
    if is_eval and not has_name:
        arguments.insert(
            2, run.name
        )  # the command scored the newest run; another run may be the newest later
    command = shlex.join(arguments)
    if command and command not in recorded:
        text = json.dumps([*recorded, command], indent=1, ensure_ascii=False)
        write_text(run / COMMANDS_FILE, f"{text}\n")


def record_tag(run: Path, tag: str | None) -> None:
    """Make a tag the newest in the run's `tags.json`; only the holder of the run's lock may call this."""
    from pe_bench.system.files import write_text  # which `--help` should not wait for

    if tag is None:
        return
    tags = tags_of(run)
    new = [each for each in tags if each != tag]
    new.append(tag)
    if new != tags:
        text = json.dumps(new, ensure_ascii=False)
        write_text(run / TAGS_FILE, f"{text}\n")


def tags_of(run: Path) -> list[str]:
    """Return a run's tags, the newest at the end; none if the file is missing or unreadable."""
    from pe_bench.config.schema import NAME
    from pe_bench.runs.untrusted import read_regular  # imports PyYAML, which `--help` should not wait for

    with suppress(RunError, OSError, ValueError, RecursionError, TypeError):
        tags = map(str, json.loads(read_regular(run / TAGS_FILE)))
        return [tag for tag in tags if NAME.fullmatch(tag)]
    return []


def recorded_commands(run: Path) -> list[str]:
    """Return a run's commands in the order of their first use; none if the file is missing or unreadable."""
    from pe_bench.runs.untrusted import read_regular  # imports PyYAML, which `--help` should not wait for

    with suppress(RunError, OSError, ValueError, RecursionError, TypeError):
        commands = json.loads(read_regular(run / COMMANDS_FILE))
        return [command for command in commands if _is_ours(str(command))]
    return []


def _is_ours(command: str) -> bool:
    """Return whether a shell that gets this command would run only pe-bench; it may come from a stranger."""
    with suppress(ValueError):
        arguments = shlex.split(command)
        is_quoted = command == shlex.join(arguments)
        is_plain = is_quoted and not CONTROL_SIGNS.search(command)
        return is_plain and arguments[:1] == ["pe-bench"]
    return False
