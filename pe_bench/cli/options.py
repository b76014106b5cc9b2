"""Options of commands: how they are written, read and completed. Nothing heavy is imported here."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

Completion = Callable[..., list[str]]


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
