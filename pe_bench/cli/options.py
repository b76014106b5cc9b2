"""Options and arguments of the commands, with their help and completion; nothing heavy is imported here."""

from pathlib import Path
from typing import Annotated

import typer

from pe_bench.cli.help import first_of


def _whole_number(text: str) -> int:
    if not text.strip().isdecimal() or int(text) == 0:
        raise typer.BadParameter(f"'{text}' is not a positive whole number")
    return int(text)


def number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise typer.BadParameter(f"'{text}' is not a number") from None


LISTS = (
    *("encodings", "modifiers", "models", "data", "tasks", "tokenizers", "experiments", "keys", "runs"),
    "studies",
)
FAMILIES = (
    *("none", "input", "ids", "rotary", "bias", "relative"),
    *("content", "distance", "mask", "scale", "schedule"),
)
PROTOCOLS = ("paired", "nonoverlapping", "sliding", "task")
SLICES = ("all", "recall", "novel", "key")
SORTS = ("name", "parameters", "tokens_per_second", "peak_memory_mb")
Count = {"parser": _whole_number, "metavar": "NUMBER"}


def _folder(path: str) -> Path:
    from pe_bench.config.checks import check_folder

    return check_folder(path, "--results-dir")


def config_folder(path: str) -> Path:
    from pe_bench.errors import require

    require(Path(path).is_dir(), f"--config-dir {path} is not a folder")
    return Path(path)


ResultsDir = Annotated[
    Path,
    typer.Option("--results-dir", parser=_folder, metavar="DIR", help="The folder of runs and results.csv."),
]


def complete(ctx: typer.Context, incomplete: str) -> list[str]:
    from pe_bench.cli.completion import complete_typed

    return complete_typed(incomplete, ctx.params.get("overrides") or ctx.params.get("arguments") or [])


def complete_encodings(incomplete: str) -> list[str]:
    from pe_bench.config.groups import names_in

    return [name for name in names_in("encoding") if name.startswith(incomplete)]


def complete_speed(ctx: typer.Context, incomplete: str) -> list[str]:
    return [*complete_encodings(incomplete), *(complete(ctx, incomplete) if incomplete else [])]


def _complete_with(incomplete: str) -> list[str]:
    from pe_bench.cli.completion import complete_with

    return complete_with(incomplete)


def _complete_where(ctx: typer.Context, incomplete: str) -> list[str]:
    from pe_bench.cli.completion import complete_where

    return complete_where(incomplete, Path(ctx.params["results_dir"]))


def complete_runs(ctx: typer.Context, incomplete: str) -> list[str]:
    from pe_bench.cli.completion import complete_run

    return complete_run(incomplete, Path(ctx.params["results_dir"]))


def complete_baseline(ctx: typer.Context, incomplete: str) -> list[str]:
    from pe_bench.cli.completion import complete_baseline

    return complete_baseline(incomplete, Path(ctx.params["results_dir"]))


def complete_by(incomplete: str) -> list[str]:
    from pe_bench.cli.completion import complete_by

    return complete_by(incomplete)


Runs = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="RUN",
        help="Runs by encoding, name, the beginning of a name, or path.",
        autocompletion=complete_runs,
    ),
]

Where = Annotated[
    list[str] | None,
    typer.Option(
        metavar="CONDITION",
        help="Only what meets the condition, such as encoding=rope,alibi or seed<3; repeatable.",
        autocompletion=_complete_where,
    ),
]

Lengths = Annotated[
    str | None,
    typer.Option(metavar="N,N", help="Context lengths in tokens."),
]

Protocol = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="paired, nonoverlapping or sliding.",
        autocompletion=first_of(*PROTOCOLS),
    ),
]

Margin = Annotated[
    float | None,
    typer.Option(
        help="A change of up to this many bits per byte counts as holding.", parser=number, metavar="VALUE"
    ),
]

Slice = Annotated[
    str | None,
    typer.Option(
        "--slice",
        help=f"Only some of the targets: {', '.join(SLICES[1:])} (docs/measuring.md).",
        autocompletion=first_of(*SLICES),
    ),
]

KeyTokensOf = Annotated[
    str | None,
    typer.Option(
        "--key-tokens-of",
        metavar="RUN",
        help="Choose key targets by another run's scores (report --slice key).",
        autocompletion=complete_runs,
    ),
]

MaxLength = Annotated[
    int | None,
    typer.Option(
        help="Score the same targets at every length up to this.  [default: 16 x training length]",
        **Count,
    ),
]

Targets = Annotated[
    int | None,
    typer.Option(help="Target blocks at each length (paired). Only new blocks are scored.", **Count),
]

Stride = Annotated[
    int | None,
    typer.Option(help="Tokens between windows (sliding).", **Count),
]

Controls = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="auto (2 and 16 x training length), offset (auto, and moved positions), all or none (paired).",
        autocompletion=first_of("auto", "offset", "all", "none"),
    ),
]

PerPosition = Annotated[
    bool, typer.Option("--per-position", help="Also score by position, at the longest length.")
]

Precision = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="float32, or bfloat16 (bf16), which is coarser and has its own table.",
        autocompletion=first_of("float32", "bfloat16"),
    ),
]

Device = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="auto, cpu or cuda.", autocompletion=first_of("auto", "cpu", "cuda")),
]

Threads = Annotated[int | None, typer.Option(help="Processor cores.", **Count)]

With = Annotated[
    list[str] | None,
    typer.Option(
        "--with",
        metavar="NAME,NAME",
        help="Score the weights under other encodings too; 'NAME KEY=VALUE' sets options; repeatable.",
        autocompletion=_complete_with,
    ),
]

Force = Annotated[
    bool,
    typer.Option("--force", help="Score under incompatible encodings, or changed code, and label the rows."),
]

Plain = Annotated[
    bool,
    typer.Option("--plain", help="Score a checkpoint with its own attention, without --with."),
]

ConfigDir = Annotated[
    list[Path] | None,
    typer.Option(parser=config_folder, metavar="DIR", help="A folder with your encoding/NAME.yaml."),
]

Code = Annotated[
    list[Path] | None,
    typer.Option(metavar="FILE", help="Trust FILE as the code of a run's custom encoding."),
]

DataPath = Annotated[Path | None, typer.Option(metavar="DIR", help="The data's new location, if it moved.")]

CacheDir = Annotated[Path | None, typer.Option(metavar="DIR", help="Where tokenized data is kept.")]

Encodings = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="NAME | FILE.py:CLASS | KEY=VALUE",
        help="Encodings and their options.",
        autocompletion=complete_encodings,
    ),
]

EncodingsAndKeys = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="NAME | FILE.py:CLASS | KEY=VALUE",
        help="Encodings, and keys as in train.",
        autocompletion=complete_encodings,
    ),
]

AllEncodingsAndKeys = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="NAME | FILE.py:CLASS | KEY=VALUE",
        help="Encodings, and keys as in train.  [default: all encodings]",
        autocompletion=complete_speed,
    ),
]

Repeats = Annotated[
    int | None, typer.Option(help="Timed passes per encoding.  [default: 5 to 25, fewer if slow]", **Count)
]

SpeedFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="CSV file; the plot is saved next to it.  [default: RESULTS_DIR/speed.csv]"
    ),
]


def _show_version(value: bool) -> None:
    if value:
        from importlib.metadata import version

        print(f"pe-bench {version('pe-bench')}")
        raise typer.Exit


Version = Annotated[
    bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
]
