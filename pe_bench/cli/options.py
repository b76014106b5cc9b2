"""Options of commands: how they are written, read, completed and shown. Nothing heavy is imported here."""

import inspect
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

Completion = Callable[..., list[str]]

app = typer.Typer(
    name="pe-bench",
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def option(
    meaning: str,
    *names: str,
    kind: Any = str,
    many: bool = False,
    complete: Completion | None = None,
    **how: Any,
) -> Any:
    """Return the annotation of an option with one value; `many` may be repeated. how: as typer has it."""
    annotation = list[kind] if many else kind
    return Annotated[annotation | None, typer.Option(*names, help=meaning, autocompletion=complete, **how)]


def count(meaning: str) -> Any:
    return option(meaning, kind=int, parser=_whole_number, metavar="NUMBER")


def flag(name: str, meaning: str, **how: Any) -> Any:
    return Annotated[bool, typer.Option(*name.split(), help=meaning, **how)]


def arguments(metavar: str, meaning: str, complete: Completion) -> Any:
    return Annotated[list[str] | None, typer.Argument(metavar=metavar, help=meaning, autocompletion=complete)]


def _whole_number(text: str) -> int:
    if not text.strip().isdecimal() or int(text) == 0:
        raise typer.BadParameter(f"'{text}' is not a positive whole number")
    return int(text)


def number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise typer.BadParameter(f"'{text}' is not a number") from None


def results_folder(path: str) -> Path:
    from pe_bench.system.files import check_folder

    return check_folder(path, "--results-dir")


def config_folder(path: str) -> Path:
    from pe_bench.errors import require

    require(Path(path).is_dir(), f"--config-dir {path} is not a folder")
    return Path(path)


def first_of(*names: str) -> Completion:
    """Return a completion that offers those of the names that begin as typed."""
    return lambda incomplete: [name for name in names if name.startswith(incomplete)]


def complete_file(group: str) -> Completion:
    """Return a completion that offers the names of a group's files."""

    def completion(incomplete: str) -> list[str]:
        from pe_bench.config.groups import names_in

        return [name for name in names_in(group) if name.startswith(incomplete)]

    return completion


def complete_keys(ctx: typer.Context, incomplete: str) -> list[str]:
    from pe_bench.cli.completion import complete_typed

    return complete_typed(incomplete, ctx.params.get("overrides") or ctx.params.get("arguments") or [])


def complete_speed(ctx: typer.Context, incomplete: str) -> list[str]:
    return [*complete_file("encoding")(incomplete), *(complete_keys(ctx, incomplete) if incomplete else [])]


def complete_run(ctx: typer.Context, incomplete: str) -> list[str]:
    """Offer the runs in the folder of results, but for names in which a shell would read more."""
    from pe_bench.config.schema import NAME

    runs = sorted((Path(ctx.params["results_dir"]) / "runs").glob(f"{incomplete}*/config.yaml"))
    return [path.parent.name for path in runs if NAME.fullmatch(path.parent.name)]


MOST_USED = (
    *("encoding", "model", "data", "seed", "threads"),
    *("train.length", "train.steps", "train.lr", "eval.lengths", "results_dir"),
)
LONGEST_NAME = 32  # columns that a name may take beside its meaning


class Command(TyperCommand):
    """A command whose help shows no types of Python, and ends in its examples: the lines of `epilog`."""

    def records(self, ctx: Any) -> dict[str, list[tuple[str, str]]]:
        """Return arguments and options, each by what is typed and what it means."""
        arguments, options = [], []
        parameters: list[Any] = list(self.get_params(ctx))
        for param in parameters:
            if param.param_type_name == "argument":
                arguments.append((param.metavar, param.help))
                continue
            if param.metavar is None:
                param.metavar = "FILE" if "path" in param.display_type(ctx).lower() else "VALUE"
            if record := param.get_help_record(ctx):
                options.append(record)
        return {"Arguments": arguments, "Options": options}

    def format_options(self, ctx: Any, formatter: Any) -> None:
        for title, rows in self.records(ctx).items():
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows, col_max=LONGEST_NAME)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        if self.epilog:
            with formatter.section("Examples"):
                for line in self.epilog.splitlines():
                    formatter.write(f"{'':{formatter.current_indent}}{line}\n")


class TrainCommand(Command):
    """The command whose arguments are keys of the configuration."""

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        from pe_bench.config.groups import keys

        known = {key.name: key for key in keys()}
        with formatter.section("Most used keys, with their defaults (all: pe-bench list keys)"):
            formatter.write_dl([(f"{name}={known[name].default}", known[name].meaning) for name in MOST_USED])
        super().format_epilog(ctx, formatter)


def command(
    name: str, call: str, options: dict[str, Any], meaning: str, examples: str, kind: type[Command] = Command
) -> None:
    """Declare a command, which calls the function MODULE:FUNCTION with its options."""

    def function(**values: Any) -> None:
        module, _, called = call.partition(":")
        getattr(import_module(module), called)(**values)

    function.__signature__ = inspect.Signature(  # pyright: ignore[reportFunctionMemberAccess]
        [
            inspect.Parameter(
                key, inspect.Parameter.KEYWORD_ONLY, default=_default(key, annotation), annotation=annotation
            )
            for key, annotation in options.items()
        ]
    )
    app.command(name, cls=kind, help=inspect.cleandoc(meaning), epilog=inspect.cleandoc(examples))(function)


def _default(key: str, annotation: Any) -> Any:
    """Return the value of an option that is not given; one that may not be None has to be."""
    if key == "results_dir":
        return Path("results")
    kind = annotation.__origin__
    return False if kind is bool else inspect.Parameter.empty if kind in (str, Path) else None
