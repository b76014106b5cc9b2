"""Help fits 80 columns, in plain words; its examples and defaults are true, and it is there at once."""

import re
import shlex
import subprocess
import sys
from importlib.metadata import version
from typing import get_args

import typer
from support.commands import Command

from pe_bench.cli.app import app
from pe_bench.cli.completion import LISTS
from pe_bench.cli.options import ADVANCED_OPTIONS
from pe_bench.config.groups import keys
from pe_bench.values import AtLeast2, ProbeDepths, Range

NAMES = sorted(typer.main.get_command(app).commands)  # pyright: ignore[reportAttributeAccessIssue]


def test_the_list_of_commands_cuts_no_summary(command: Command) -> None:
    for arguments in ([], ["-h"], ["help"]):
        outcome = command(*arguments)
        assert outcome.code == 0 and outcome.err == ""
        listed = outcome.out.partition("\nCommands:\n")[2].splitlines()
        assert sorted(line.split()[0] for line in listed) == NAMES
        assert all(line.endswith(".") and not line.endswith("...") and len(line) < 80 for line in listed)
    assert command("--version").out.strip() == f"pe-bench {version('pe-bench')}"


def test_help_fits_80_columns_and_its_examples_and_defaults_are_there(command: Command) -> None:
    for name in NAMES:
        text = command(name, "--help").out
        assert max(map(len, text.splitlines())) <= 80
        assert not re.search(r"<(str|int|float|path|file|list)", text) and "[[" not in text.splitlines()[0]
        explained, _, examples = text.partition("\n  Examples:\n")
        assert len(examples.splitlines()) >= 3
        for line in examples.splitlines():
            program, called, *arguments = shlex.split(line, comments=True)
            assert (program, called) == ("pe-bench", name)
            assert all(argument in explained for argument in arguments if argument.startswith("--"))
    text = " ".join(command("train", "--help").out.split())
    defaults = re.findall(r"([\w.]+)=([\w.]+?)[,.] ", text.partition("defaults")[2])
    assert len(defaults) == 10 and {*defaults} <= {(key.name, key.default) for key in keys()}
    assert all(name in command("list", "--help").out for name in LISTS)


def test_a_range_in_a_help_is_the_one_that_the_command_checks(command: Command) -> None:
    depths: Range = get_args(ProbeDepths)[1]
    assert f"[{depths.least}<=x<={depths.most}]" in command("probe", "--help").out
    reference: Range = get_args(AtLeast2)[1]
    text = " ".join(command("eval", "--help").out.split())
    assert f"[default: its training length] [x>={reference.least}]" in text


def test_help_imports_nothing_heavy() -> None:
    heavy = ("torch", "datasets", "pandas", "hydra", "omegaconf", "matplotlib", "scipy", "numpy", "yaml")
    program = (
        "import sys; from pe_bench.cli.program import run; "
        "codes = {run([*name.split(), '--help']) for name in sys.argv[1:]}; "
        f"print(codes, [name for name in {heavy} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program, "", *NAMES], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "{0} []", done.stderr


def test_the_longest_helps_have_what_most_need_first_and_every_option_once(command: Command) -> None:
    for name, params in ADVANCED_OPTIONS.items():
        text = command(name, "--help").out
        first, _, advanced = text.partition("\n\nAdvanced options:\n")
        advanced = advanced.partition("\n\n  Examples:")[0]
        options = [re.findall(r"^  (?:-\w, )?(--[\w-]+)", part, re.MULTILINE) for part in (first, advanced)]
        called = typer.main.get_command(app).commands[name]  # pyright: ignore[reportAttributeAccessIssue]
        expected = [param.opts[0] for param in called.params if param.param_type_name == "option"]
        assert sorted([*options[0], *options[1]]) == sorted([*expected, "--help"])
        assert len(options[1]) == len(params) and len(options[0]) <= 12
