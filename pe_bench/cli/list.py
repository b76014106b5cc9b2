"""The `list` command: what there is to choose from, and what was run."""

import csv
import io
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from pe_bench.config.compose import compose
from pe_bench.config.groups import aliases, config_dir, names_in
from pe_bench.config.parse import parse_config
from pe_bench.config.schema import ModelConfig
from pe_bench.errors import RunError, UserError
from pe_bench.runs.config_file import read_config
from pe_bench.runs.gather import read_result, require_results_folder, runs_folder
from pe_bench.runs.lock import ERROR
from pe_bench.runs.rows import POSITIONS, read_rows
from pe_bench.runs.untrusted import read_json
from pe_bench.system.terminal import printable, render, say, write_out
from pe_bench.values import unknown

BYTES = 257  # the vocabulary of tokenizer=bytes: every byte, and the end of a document
GPT2 = 50_257
STANDARD_OUTPUT = Path("-")


@dataclass(frozen=True)
class Listing:
    """A table: the columns' titles, and the cells of each row, whole numbers as numbers."""

    columns: tuple[str, ...]
    rows: list[tuple[str | int, ...]] = field(default_factory=list)

    def table(self) -> Table:
        table = Table(box=None, pad_edge=False)
        for place, column in enumerate(self.columns):
            numeric = any(isinstance(row[place], int) for row in self.rows)
            table.add_column(column, overflow="fold", justify="right" if numeric else "left")
        for row in self.rows:
            # As text, for a run's name is its folder's: brackets in it are no marks.
            table.add_row(*(Text(f"{cell:,}" if isinstance(cell, int) else cell) for cell in row))
        return table

    def csv(self) -> str:
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(column.replace(" ", "_") for column in self.columns)
        writer.writerows(self.rows)
        return text.getvalue()


def print_list(
    what: str | None, results_dir: Path, family: str | None = None, csv: Path | None = None
) -> None:
    """Print one of the lists, or write it to the file `csv`; `-` prints CSV.

    `family` leaves only the encodings of that family. Raises `UserError` for a name that is none.
    """
    listing = _listing(what, results_dir, family, csv)
    if csv is None:
        write_out(render(listing.table()))
    elif csv == STANDARD_OUTPUT:
        write_out(listing.csv())
    else:
        from pe_bench.system.files import write_text

        write_text(csv, listing.csv())
        say(f"wrote {csv}")


def _listing(what: str | None, results_dir: Path, family: str | None, csv: Path | None) -> Listing:
    if what is None:
        raise UserError(f"name what to list: {', '.join(LISTS)}")
    if what not in LISTS:
        raise UserError(unknown(what, "list", LISTS))
    if csv is not None and csv != STANDARD_OUTPUT:
        from pe_bench.cli.outputs import Outputs, check_outputs

        check_outputs(Outputs(csv=csv))
    if family is None:
        return LISTS[what](results_dir)
    if LISTS[what] is not _encodings:
        raise UserError(f"--family narrows the list of encodings, and this is the list of {what}")
    return _of_family(_encodings(results_dir), family)


def _encodings(_: Path) -> Listing:
    """Built, for what an encoding does past the training length may follow from its options."""
    names, modifiers = names_in("encoding"), set(names_in("modifier"))
    # One configuration with all of them, for Hydra takes 50 ms for each.
    composed = compose([f"+encoding@catalogue.{name}={name}" for name in names])
    model = parse_config({key: value for key, value in composed.items() if key != "catalogue"}).model
    listing = Listing(("encoding", "family", "parameters", "past training", "paper", "is"))
    first_names = aliases()
    for name in names:
        config = composed["catalogue"][name]
        also = sorted(alias for alias, first in first_names.items() if first == name)
        is_what = _what_it_is(name, config, name in modifiers, also)
        listing.rows.append((name, *_facts(config, model.n_layers), is_what))
    return listing


def _facts(config: dict[str, Any], n_layers: int) -> tuple[str, int, str, str]:
    """Family, parameters, what happens past the training length, and the paper."""
    import torch

    from pe_bench.data.tokenizer import ByteTokenizer
    from pe_bench.encodings.load import build_encoding, part_classes, with_examples
    from pe_bench.inspection.resolve import parameter_count

    part = part_classes(config)[-1]
    with torch.random.fork_rng(devices=[]):
        built = build_encoding(with_examples(config), n_layers, vocabulary=ByteTokenizer().vocabulary)
    return part.family, parameter_count(built), built.past_training, part.paper


def _what_it_is(name: str, config: dict[str, Any], is_modifier: bool, also: list[str]) -> str:
    """Of what an encoding consists where it has parts, its use as a modifier, and its other names."""
    label = "+".join([config["name"], *config.get("modifiers", {})])
    words = [
        label if label != name else "",
        "also as modifier" if is_modifier else "",
        f"also called {', '.join(also)}" if also else "",
    ]
    return "; ".join(word for word in words if word)


def _of_family(listing: Listing, family: str) -> Listing:
    families = {str(row[1]) for row in listing.rows}
    if family not in families:
        raise UserError(unknown(family, "family", families))
    return Listing(listing.columns, [row for row in listing.rows if row[1] == family])


def _models(_: Path) -> Listing:
    listing = Listing(
        (
            "model",
            "parameters (bytes vocabulary)",
            f"with GPT-2's {GPT2:,} tokens",
            "layers",
            "width",
            "heads",
        )
    )
    for name in names_in("model"):
        model = parse_config(compose([f"model={name}", "encoding=nope"])).model
        counts = [f"{_parameters(model, vocabulary) / 1e6:.1f}M" for vocabulary in (BYTES, GPT2)]
        listing.rows.append((name, *counts, str(model.n_layers), str(model.d_model), str(model.n_heads)))
    return listing


def _data(_: Path) -> Listing:
    listing = Listing(("data", "what it is"))
    for name in names_in("data"):
        listing.rows.append((name, _first_comment(config_dir() / "data" / f"{name}.yaml")))
    return listing


def _runs(results_dir: Path) -> Listing:
    """Raises `UserError` where there is none, finished or not."""
    require_results_folder(results_dir)
    listing = Listing(("run", "encoding", "state", "steps", "of", "loss", "lengths scored"))
    folder = runs_folder(results_dir)
    for run in sorted(folder.glob("*/config.yaml")):
        listing.rows.append((printable(run.parent.name), *_state(run.parent)))
    if not listing.rows:
        raise UserError(f"no run in {folder}: make one with `pe-bench train encoding=rope`")
    return listing


def _state(run: Path) -> tuple[str, str, str, str, str, str]:
    """The encoding as tables call it, the state, steps done and asked for, loss and lengths with a number.

    A damaged run hides no other.
    """
    try:
        result, asked = read_result(run), read_config(run).train.total_steps
        if result is None:
            state = "failed" if (run / ERROR).exists() else "not finished"
            steps, loss = _of_newest_checkpoint(run)
        else:
            state, steps, loss = "finished", result["steps"], f"{result['loss']:.3f}"
        rows = read_rows(run / "eval.csv")
        label = rows[0].encoding if rows else ""
        scored = [row for row in rows if row.protocol != POSITIONS and row.bits_per_byte is not None]
        lengths = ", ".join(map(str, sorted({row.length for row in scored})))
        return (label, state, str(steps), str(asked), loss, lengths)
    except (UserError, RunError, KeyError, ValueError, TypeError):
        return ("", "damaged", "", "", "", "")


def _of_newest_checkpoint(run: Path) -> tuple[int, str]:
    """The step and the loss, where a run that is not finished has one."""
    found = sorted((run / "checkpoints").glob("step-*/meta.json"))
    if not found:
        return 0, ""
    meta = read_json(found[-1])
    return meta["step"], f"{meta['loss']:.3f}"


def _parameters(model: ModelConfig, vocabulary: int) -> int:
    import torch

    from pe_bench.encodings.load import build_encoding
    from pe_bench.model.decoder import Decoder

    nope = compose(["encoding=nope"])["encoding"]
    with torch.device("meta"):
        return Decoder(model, vocabulary, build_encoding(nope, model.n_layers)).parameter_count


def _first_comment(path: Path) -> str:
    line = path.read_text(encoding="utf-8").splitlines()[0]
    return line.lstrip("# ") if line.startswith("#") else ""


LISTS: dict[str, Callable[[Path], Listing]] = {
    "encodings": _encodings,
    "models": _models,
    "data": _data,
    "runs": _runs,
}
