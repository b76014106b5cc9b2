"""Help fits 80 columns, in plain words, and its examples and defaults are true."""

import re
import shlex

import pytest
import typer
from support.commands import Command

from pe_bench.cli.app import LISTS, app
from pe_bench.cli.completion import complete_word
from pe_bench.cli.list import LISTS as LISTED
from pe_bench.cli.options import MOST_USED, first_of
from pe_bench.config.groups import keys

NAMES = sorted(typer.main.get_command(app).commands)  # pyright: ignore[reportAttributeAccessIssue]


def examples(text: str) -> list[str]:
    return text.partition("\nExamples:\n")[2].splitlines()


def test_the_list_of_commands_cuts_no_summary(command: Command) -> None:
    listed = command("--help").out.partition("\nCommands:\n")[2].splitlines()
    assert sorted(line.split()[0] for line in listed) == NAMES
    assert all(line.endswith(".") and not line.endswith("...") and len(line) < 80 for line in listed)


@pytest.mark.parametrize("name", NAMES)
def test_help_fits_80_columns_and_has_no_types_of_python(command: Command, name: str) -> None:
    text = command(name, "--help").out
    assert max(map(len, text.splitlines())) <= 80
    assert not re.search(r"<(str|int|float|path|file|list)", text)
    assert "[[" not in text.splitlines()[0]


@pytest.mark.parametrize("name", NAMES)
def test_each_example_is_a_line_of_its_own_with_options_that_are_there(command: Command, name: str) -> None:
    text = command(name, "--help").out
    lines = examples(text)
    assert len(lines) >= 3 and " | " not in "".join(lines)
    for line in lines:
        program, called, *arguments = shlex.split(line, comments=True)
        assert (program, called) == ("pe-bench", name)
        options = [argument for argument in arguments if argument.startswith("--") and name != "train"]
        assert all(option in text.partition("\nExamples:")[0] for option in options)


def test_help_of_train_has_the_most_used_keys_with_their_defaults(command: Command) -> None:
    text = command("train", "--help").out
    known = {key.name: key for key in keys()}
    assert len(MOST_USED) == 10
    for name in MOST_USED:
        assert f"{name}=" in complete_word(name)
        assert f"  {name}={known[name].default} " in text
        assert known[name].meaning in " ".join(text.split())


def test_help_and_version_are_commands_too(command: Command) -> None:
    assert command("help").out == command("--help").out
    assert command("help", "list").out == command("list", "--help").out
    assert command("version").out == command("--version").out
    outcome = command("help", "lst")
    assert outcome.code == 2 and "did you mean 'list'?" in outcome.line.lower()


def test_every_list_is_named_in_the_help_and_completed(command: Command) -> None:
    assert tuple(LISTED) == LISTS
    text = " ".join(command("list", "--help").out.split())
    assert all(name in text for name in LISTS)
    assert first_of(*LISTS)("mod") == ["modifiers", "models"]
