"""Making a command from a function: parameters become options, and the docstring becomes help.

A line `parameter METAVAR: meaning` of the docstring is an option's help, lines below `Examples:` end the
command's help, and the other lines begin it. Nothing heavy is imported here, so that help appears at once.
"""

import inspect
import re
import textwrap
from collections.abc import Callable, Sequence
from inspect import Parameter
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import typer
from typer.core import TyperCommand

from pe_bench.cli.completion import COMPLETIONS
from pe_bench.errors import require
from pe_bench.system.signals import world_size
from pe_bench.values import AtLeast2, ProbeDepths, check_folder

app = typer.Typer(
    name="pe-bench",
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
OPTION_HELP = re.compile(r"^(\w+)(?: (\S+))?: (.*(?:\n +.*)*)\n?", re.MULTILINE)
EXAMPLES_HEADING = "\nExamples:\n"
# Parameters of the Python interface that commands have as arguments.
POSITIONAL_PARAMETERS = ("run", "change", "overrides")
# Options that are not spelled like their parameters.
OPTION_SPELLINGS = {
    "everything": ("--all",),
    "multirun": ("--multirun", "-m"),
    "cfg": ("--cfg", "-c"),
    "verbose": ("--verbose", "-v"),
    "folder": ("--hf",),
    "listed": ("--list",),
    "as_json": ("--json",),
}
# The word for the value, and the help, of options that many commands have.
SHARED_OPTIONS = {
    "as_json": ("", "Print data for programs instead of tables (docs/json.md)."),
    "config_dir": ("DIR", "A folder with your encoding/NAME.yaml."),
    "results_dir": ("DIR", "The folder of runs and results.csv."),
    "runs": ("RUN", "Runs by encoding, name, the beginning of a name, or path."),
    "where": ("CONDITION", "Only runs that meet the condition, such as encoding=rope or seed<3; repeatable."),
}
# The ranges of options whose commands check them, with a message that names the value; the help shows them.
# All other options of whole numbers begin at 1.
CHECKED_RANGES = {"depths": ProbeDepths, "reference": AtLeast2}
# Options for the second part of a command's help.
ADVANCED_EVAL = (
    *("protocol", "max_length", "stride", "controls", "per_position", "precision", "half", "force"),
    *("plain", "reference", "key_tokens_of", "config_dir", "code", "data_path", "cache_dir", "as_json"),
)
ADVANCED_PROBE = (
    *("depths", "windows", "precision", "force", "plain", "config_dir", "code", "data_path"),
    *("cache_dir", "as_json"),
)
ADVANCED_OPTIONS = {
    "report": ("best", "margin", "protocol", "slice", "sort", "plot_of", "csv", "latex", "probe", "as_json"),
    "eval": ADVANCED_EVAL,
    "probe": ADVANCED_PROBE,
    "explain": ("targets", "device", "threads", "code", "data_path", "cache_dir", "as_json", "csv"),
}
# Commands that write to runs, and do not share the work among processes.
ONE_PROCESS_COMMANDS = ("eval", "probe", "explain", "try", "reproduce", "import", "export", "rm")


class Command(TyperCommand):
    """A command whose help has the `ADVANCED_OPTIONS` of the command under a heading of their own."""

    # Any: classes of click, which typer may contain.
    def format_options(self, ctx: Any, formatter: Any) -> None:
        plain_options: list[tuple[str, str]] = []
        advanced_options: list[tuple[str, str]] = []
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is None:
                continue
            if param.name in ADVANCED_OPTIONS.get(self.name or "", ()):
                advanced_options.append(record)
            else:
                plain_options.append(record)
        with formatter.section("Options"):
            formatter.write_dl(plain_options)
        if advanced_options:
            with formatter.section("Advanced options"):
                formatter.write_dl(advanced_options)


def command(name: str, *like: Callable[..., Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that makes a function the command `name`.

    like: a function of the Python interface, whose parameters become options too; then functions with the
    help of options that the first function does not describe.
    """

    def declare(function: Callable[..., None]) -> Callable[..., None]:
        meanings = dict(SHARED_OPTIONS)
        for source in (*reversed(like), function):
            for key, word, text in OPTION_HELP.findall(inspect.getdoc(source) or ""):
                meanings[key] = (word, " ".join(text.split()))
        parameters = _parameters(function)
        for key, parameter in _parameters(*like[:1]).items():
            if key not in POSITIONAL_PARAMETERS:
                parameters.setdefault(key, parameter.replace(kind=Parameter.KEYWORD_ONLY))
        text, _, examples = inspect.cleandoc(function.__doc__ or "").partition(EXAMPLES_HEADING)
        text = OPTION_HELP.sub(lambda line: "" if line[1] in parameters else line[0], text)
        arguments = [key for key, each in parameters.items() if not _is_option(each)]
        paragraphs = [": ".join(meanings[key]) for key in arguments]
        text = "\n\n".join([text.strip(), *paragraphs])

        def call(**values: Any) -> None:
            message = f"torchrun starts the processes of one training: start pe-bench {name} without it"
            require(name not in ONE_PROCESS_COMMANDS or world_size() == 1, message)
            for key, value in values.items():
                if value is None:
                    values[key] = parameters[key].default
            if "results_dir" in values:
                values["results_dir"] = check_folder(values["results_dir"], "--results-dir")
            function(**values)

        call.__signature__ = inspect.Signature(  # pyright: ignore[reportFunctionMemberAccess]
            [_typer_parameter(each, *meanings[key]) for key, each in parameters.items()]
        )
        epilog = f"\b{EXAMPLES_HEADING}{textwrap.dedent(examples)}"
        app.command(name, cls=Command, help=text, epilog=epilog)(call)
        return function

    return declare


def _parameters(*functions: Callable[..., Any]) -> dict[str, Parameter]:
    """Return the parameters of functions by their names, without `**options`."""
    parameters: dict[str, Parameter] = {}
    for function in functions:
        parameters |= inspect.signature(function).parameters
    return {key: each for key, each in parameters.items() if each.kind is not Parameter.VAR_KEYWORD}


def _is_option(parameter: Parameter) -> bool:
    return parameter.kind is Parameter.KEYWORD_ONLY


def _typer_parameter(parameter: Parameter, metavar: str, meaning: str) -> Parameter:
    """Return a parameter that typer makes an option; a positional parameter becomes an argument."""
    kind = _option_type(parameter.annotation)
    is_required = parameter.default is parameter.empty
    typed = kind if kind is bool or is_required else kind | None
    typer_settings: dict[str, Any] = {"help": meaning, "autocompletion": COMPLETIONS.get(metavar)}
    if kind is not bool:
        typer_settings["metavar"] = metavar
    if parameter.name in CHECKED_RANGES:
        _, allowed = get_args(CHECKED_RANGES[parameter.name])
        typer_settings["help"] = f"{meaning}  [{allowed.inequality}]"
    elif kind is int:
        typer_settings["min"] = 1
    if _is_option(parameter):
        usual = f"--{parameter.name.strip('_').replace('_', '-')}"
        info = typer.Option(*OPTION_SPELLINGS.get(parameter.name, (usual,)), **typer_settings)
    else:  # the command's help has its arguments
        info = typer.Argument(hidden=True, **typer_settings)
    default = None if parameter.default == () else parameter.default
    return parameter.replace(annotation=Annotated[typed, info], default=default, kind=Parameter.KEYWORD_ONLY)


def _option_type(annotation: Any) -> Any:
    """Return the type of a command's option for a parameter's annotation, which may be a union."""
    kinds = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    if {list[Path], Sequence[Path]} & {*kinds}:
        return list[Path]
    if any(get_origin(kind) in (Sequence, list) for kind in kinds):
        return list[str]
    return next((kind for kind in (bool, str, float, int, Path) if kind in kinds), str)


@app.callback(invoke_without_command=True)
def options(
    version: Annotated[bool, typer.Option("--version", help="Show the version.")] = False,
) -> None:
    """Train short, test long: compare positional encodings by length extrapolation."""
    if version:
        from pe_bench.system.version import own_version

        print(f"pe-bench {own_version()}")
