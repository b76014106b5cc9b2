"""The `list` command: what there is to choose from, and what was run."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from rich.console import Console
from rich.table import Table

from pe_bench.config import ModelConfig, config_dir, parse_config, unknown
from pe_bench.errors import UserError
from pe_bench.hydra_app import compose
from pe_bench.results import read_result, read_rows, runs_folder


def print_list(what: str, results_dir: Path) -> None:
    """Print one of the lists; `UserError` for a name that is none."""
    if what not in LISTS:
        raise UserError(unknown(what, "list", LISTS))
    table = LISTS[what](results_dir)
    # Off a terminal nothing is cut or wrapped, so that other programs can read it.
    console = Console() if sys.stdout.isatty() else Console(width=240)
    console.print(table)


def choices(group: str) -> list[str]:
    """The names in a group of `configs/`."""
    return sorted(path.stem for path in (config_dir() / group).glob("*.yaml"))


def _encodings(_: Path) -> Table:
    from pe_bench.encodings.load import encoding_label, part_classes

    table = _table("encoding", "family", "past the training length", "paper", "is")
    for name in choices("encoding"):
        encoding = compose([f"encoding={name}"])["encoding"]
        part = part_classes(encoding)[-1]
        label = encoding_label(encoding)
        table.add_row(name, part.family, part.past_training, part.paper, "" if label == name else label)
    for name in choices("modifier"):
        part = part_classes({"class": _modifier_class(name)})[0]
        table.add_row(
            f"modifier={name}", part.family, part.past_training, part.paper, "on top of any encoding"
        )
    return table


def _models(_: Path) -> Table:
    table = _table("model", "parameters", "layers", "width", "heads", "vocabulary")
    for name in choices("model"):
        config = parse_config(compose([f"model={name}", "encoding=nope"]))
        vocabulary = 50_257 if name == "gpt2" else 257
        model = config.model
        count = f"{_parameters(model, vocabulary) / 1e6:.1f}M"
        table.add_row(
            name, count, str(model.n_layers), str(model.d_model), str(model.n_heads), f"{vocabulary:,}"
        )
    return table


def _data(_: Path) -> Table:
    table = _table("data", "what it is")
    for name in choices("data"):
        table.add_row(name, _first_comment(config_dir() / "data" / f"{name}.yaml"))
    return table


def _runs(results_dir: Path) -> Table:
    table = _table("run", "state", "steps", "loss", "lengths scored")
    for run in sorted(runs_folder(results_dir).glob("*/config.yaml")):
        table.add_row(run.parent.name, *_state(run.parent))
    return table


def _state(run: Path) -> Iterator[str]:
    result = read_result(run)
    if result is None:
        steps = sorted(path.name.removeprefix("step-") for path in (run / "checkpoints").glob("step-*"))
        return iter(("not finished", str(int(steps[-1])) if steps else "0", "", ""))
    lengths = sorted({row.length for row in read_rows(run / "eval.csv")})
    return iter(("finished", str(result["steps"]), f"{result['loss']:.3f}", ", ".join(map(str, lengths))))


def _parameters(model: ModelConfig, vocabulary: int) -> int:
    import torch

    from pe_bench.encodings.load import build_encoding
    from pe_bench.model import Decoder

    nope = compose(["encoding=nope"])["encoding"]
    with torch.device("meta"):
        return Decoder(model, vocabulary, build_encoding(nope, model.n_layers)).parameter_count


def _modifier_class(name: str) -> str:
    return compose(["encoding=nope", f"modifier=[{name}]"])["encoding"]["modifiers"][name]["class"]


def _first_comment(path: Path) -> str:
    line = path.read_text(encoding="utf-8").splitlines()[0]
    return line.lstrip("# ") if line.startswith("#") else ""


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


LISTS: dict[str, Callable[[Path], Table]] = {
    "encodings": _encodings,
    "models": _models,
    "data": _data,
    "runs": _runs,
}
