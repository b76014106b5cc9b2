"""The commands that made a run, as they were typed, in its `commands.json`, and its tags in `tags.json`."""

import hashlib
import json
import os
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from pe_bench.errors import RunError
from pe_bench.system.terminal import CONTROL

# A variable, because a launcher may run the jobs of a sweep in processes of their own.
VARIABLE = "PE_BENCH_COMMAND"
DEFAULT_FOLDER = Path("results")
FILE = "commands.json"
TAGS = "tags.json"


def results_option(results_dir: Path) -> str:
    """Return the option that a command to type needs, with a blank before; empty for the default folder."""
    return "" if results_dir == DEFAULT_FOLDER else f" --results-dir {shlex.quote(str(results_dir))}"


def eval_command(run: Path) -> str:
    """Return the command to type that scores a run."""
    return f"`pe-bench eval {shlex.quote(run.name)}{results_option(run.parent.parent)}`"


def group_of_command() -> str | None:
    """Return a name for the group of runs of the current command; None if it trains only one."""
    command = os.environ.get(VARIABLE, "")
    arguments = shlex.split(command)
    is_single = arguments[1:2] == ["train"] and not {"-m", "--multirun"} & {*arguments}
    digest = hashlib.sha256(command.encode()).hexdigest()[:8]
    return None if is_single or not arguments else f"{arguments[1]}-{digest}"


@contextmanager
def called_with(overrides: Sequence[str]) -> Iterator[None]:
    """Keep what a Python program asks `train` for as the command that asks for the same."""
    is_command = VARIABLE in os.environ
    if not is_command:
        os.environ[VARIABLE] = shlex.join(["pe-bench", "train", *overrides])
    try:
        yield
    finally:
        if not is_command:
            os.environ.pop(VARIABLE, None)


def record_command(run: Path) -> None:
    """Add the command at work to the run's, once; only the holder of the run's lock may call this."""
    from pe_bench.system.files import write_text  # which `--help` should not wait for

    arguments = shlex.split(os.environ.get(VARIABLE, ""))
    recorded = recorded_commands(run)
    if arguments[1:2] == ["eval"] and (len(arguments) == 2 or arguments[2].startswith("-")):
        arguments.insert(2, run.name)  # it was of the newest run, and another may be the newest later
    command = shlex.join(arguments)
    if command and command not in recorded:
        write_text(run / FILE, json.dumps([*recorded, command], indent=1, ensure_ascii=False) + "\n")


def record_tag(run: Path, tag: str | None) -> None:
    """Add a tag to the run's, as the newest of them; only the holder of the run's lock may call this."""
    from pe_bench.system.files import write_text  # which `--help` should not wait for

    tags = tags_of(run)
    if tag is not None and tags[-1:] != [tag]:
        kept = [each for each in tags if each != tag]
        write_text(run / TAGS, json.dumps([*kept, tag], ensure_ascii=False) + "\n")


def tags_of(run: Path) -> list[str]:
    """Return a run's tags, the newest at the end; none where they are missing or unreadable."""
    from pe_bench.config.schema import NAME
    from pe_bench.runs.untrusted import read_regular  # with PyYAML, which `--help` should not wait for

    with suppress(RunError, OSError, ValueError, RecursionError, TypeError):
        return [tag for tag in map(str, json.loads(read_regular(run / TAGS))) if NAME.fullmatch(tag)]
    return []


def recorded_commands(run: Path) -> list[str]:
    """Return a run's commands in the order of their first use; none where they are missing or unreadable."""
    from pe_bench.runs.untrusted import read_regular  # with PyYAML, which `--help` should not wait for

    with suppress(RunError, OSError, ValueError, RecursionError, TypeError):
        return [command for command in json.loads(read_regular(run / FILE)) if _is_ours(str(command))]
    return []


def _is_ours(command: str) -> bool:
    """Return whether a shell would run pe-bench with it and nothing else: the file may be a stranger's."""
    with suppress(ValueError):
        arguments = shlex.split(command)
        is_plain = command == shlex.join(arguments) and not CONTROL.search(command)
        return is_plain and arguments[:1] == ["pe-bench"]
    return False
