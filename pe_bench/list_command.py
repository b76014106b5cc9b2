"""The `list` command: what there is to choose from, and what was run."""

import sys
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.table import Table

from pe_bench.checking import unknown
from pe_bench.completion import complete_word
from pe_bench.config import ModelConfig, config_dir, parse_config
from pe_bench.errors import RunError, UserError
from pe_bench.hydra_app import compose
from pe_bench.results import read_result, read_rows, require_results_folder, runs_folder
from pe_bench.terminal import write_out

BYTES = 257  # the vocabulary of tokenizer=bytes: every byte, and the end of a document
GPT2 = 50_257


def print_list(what: str, results_dir: Path) -> None:
    """Print one of the lists; `UserError` for a name that is none."""
    if what not in LISTS:
        raise UserError(unknown(what, "list", LISTS))
    table = LISTS[what](results_dir)
    # Off a terminal nothing is cut or wrapped, so that other programs can read it.
    console = Console() if sys.stdout.isatty() else Console(width=240)
    with console.capture() as captured:
        console.print(table)
    write_out(captured.get())


def _choices(group: str) -> list[str]:
    """The names in a group of `configs/`: what the shell offers after `GROUP=`."""
    return [word.removeprefix(f"{group}=") for word in complete_word(f"{group}=")]


def _encodings(_: Path) -> Table:
    from pe_bench.encodings.load import encoding_label, part_classes

    table = _table("encoding", "family", "past the training length", "paper", "is")
    for name in _choices("encoding"):
        encoding = compose([f"encoding={name}"])["encoding"]
        part = part_classes(encoding)[-1]
        label = encoding_label(encoding)
        table.add_row(name, part.family, part.past_training, part.paper, "" if label == name else label)
    for name in _choices("modifier"):
        part = part_classes({"class": _modifier_class(name)})[0]
        table.add_row(
            f"modifier={name}", part.family, part.past_training, part.paper, "on top of any encoding"
        )
    return table


def _models(_: Path) -> Table:
    table = _table(
        "model", "parameters (bytes vocabulary)", f"with GPT-2's {GPT2:,} tokens", "layers", "width", "heads"
    )
    for name in _choices("model"):
        model = parse_config(compose([f"model={name}", "encoding=nope"])).model
        counts = [f"{_parameters(model, vocabulary) / 1e6:.1f}M" for vocabulary in (BYTES, GPT2)]
        table.add_row(name, *counts, str(model.n_layers), str(model.d_model), str(model.n_heads))
    return table


def _data(_: Path) -> Table:
    table = _table("data", "what it is")
    for name in _choices("data"):
        table.add_row(name, _first_comment(config_dir() / "data" / f"{name}.yaml"))
    return table


def _runs(results_dir: Path) -> Table:
    require_results_folder(results_dir)
    table = _table("run", "state", "steps", "loss", "lengths scored")
    for run in sorted(runs_folder(results_dir).glob("*/config.yaml")):
        table.add_row(run.parent.name, *_state(run.parent))
    return table


def _state(run: Path) -> tuple[str, str, str, str]:
    """State, steps, loss and lengths; a damaged run hides no other."""
    try:
        result = read_result(run)
        if result is None:
            return ("not finished", _steps(run), "", "")
        lengths = sorted({row.length for row in read_rows(run / "eval.csv")})
        return ("finished", str(result["steps"]), f"{result['loss']:.3f}", ", ".join(map(str, lengths)))
    except (RunError, KeyError, ValueError, TypeError):
        return ("damaged", "", "", "")


def _steps(run: Path) -> str:
    """Of the newest checkpoint of a run that is not finished."""
    steps = [path.name.removeprefix("step-") for path in (run / "checkpoints").glob("step-*")]
    return str(max((int(step) for step in steps if step.isdecimal()), default=0))


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
