"""The `list` command: what there is to choose from, and what was run."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pe_bench.config.compose import compose
from pe_bench.config.groups import aliases, description, keys, names_in, paper
from pe_bench.config.parse import parse_config
from pe_bench.config.schema import ModelConfig
from pe_bench.errors import UserError, require
from pe_bench.runs.gather import RunState, require_results_folder, runs_folder, states_of_runs
from pe_bench.system.grid import MIN_FOLDED, Cell, Column, Grid, draw, show, to_csv
from pe_bench.system.terminal import one_line, say, write_out
from pe_bench.values import unknown

COLUMNS = ("encoding", "family", "parameters", "what it is", "past training", "paper", "is")


def catalogue() -> Iterator[tuple[str | int, ...]]:
    """Yield a row of `COLUMNS` for each encoding; all are built, for their facts follow from options."""
    names, modifiers = names_in("encoding"), set(names_in("modifier"))
    # One configuration with all of them, because Hydra takes 50 ms for each.
    composed = compose([f"+encoding@catalogue.{name}={name}" for name in names])
    model = parse_config({key: value for key, value in composed.items() if key != "catalogue"}).model
    first_names = aliases()
    for name in names:
        config = composed["catalogue"][name]
        also = sorted(alias for alias, first in first_names.items() if first == name)
        family, parameters, past_training, cited = _facts(config, model.n_layers)
        parts = _parts_and_names(name, config, name in modifiers, also)
        yield (
            name,
            family,
            parameters,
            description("encoding", name),
            past_training,
            paper(name) or cited,
            parts,
        )


def _facts(config: dict[str, Any], n_layers: int) -> tuple[str, int, str, str]:
    """Return family, parameters, what happens past the training length, and the paper."""
    import torch

    from pe_bench.data.tokenizer import ByteTokenizer
    from pe_bench.encodings.spec import EncodingSpec
    from pe_bench.inspection.resolve import parameter_count

    spec = EncodingSpec(config).with_examples()
    with torch.random.fork_rng(devices=[]):
        built = spec.build(n_layers, ByteTokenizer().vocabulary)
    declared = [spec.base, *spec.modifiers.values()][-1].encoding_class
    return declared.family, parameter_count(built), built.past_training, declared.paper


def _parts_and_names(name: str, config: dict[str, Any], is_modifier: bool, also: list[str]) -> str:
    """Name the parts of an encoding that has some, its use as a modifier, and its other names."""
    label = "+".join([config["name"], *config.get("modifiers", {})])
    parts = [
        label if label != name else "",
        "also as modifier" if is_modifier else "",
        f"also called {', '.join(also)}" if also else "",
    ]
    return "; ".join(part for part in parts if part)


BYTES = 257  # the vocabulary of tokenizer=bytes: every byte, and the end of a document
GPT2 = 50_257
MAX_LENGTHS = 3  # how many lengths of a run a terminal shows by name
STANDARD_OUTPUT = Path("-")
LEAST = {"paper": len("https://kexue.fm/archives/8823")}  # a link is not broken
PAPERS = ("encoding", "past training", "paper", "is")  # the columns that --papers shows


@dataclass(frozen=True)
class Listing:
    """A table: the columns' titles, and the cells of each row, whole numbers as numbers."""

    columns: tuple[str, ...]
    rows: list[tuple[str | int, ...]] = field(default_factory=list)
    shown: tuple[str, ...] = ()  # on a terminal, if not all; a file has all columns
    remarks: tuple[str, ...] = ()  # said below the table
    shorten: Callable[[str, str], str] = lambda column, text: text  # for a terminal

    def grid(self) -> Grid:
        """Return it for people: the first column holds names, which are never broken."""
        indexes = [self.columns.index(column) for column in self.shown or self.columns]
        columns = [
            Column(
                self.columns[index].replace("past training", "past\ntraining"),
                is_left=not any(isinstance(row[index], int) for row in self.rows),
                least=LEAST.get(self.columns[index], MIN_FOLDED) if place else 0,
            )
            for place, index in enumerate(indexes)
        ]
        return Grid(columns, [[self._cell(self.columns[i], row[i]) for i in indexes] for row in self.rows])

    def _cell(self, column: str, cell: str | int) -> Cell:
        return Cell(f"{cell:,}" if isinstance(cell, int) else one_line(self.shorten(column, cell)))

    def csv(self) -> str:
        """Return it for programs."""
        return to_csv((column.replace(" ", "_") for column in self.columns), self.rows)


def print_list(
    name: str | None,
    results_dir: Path,
    family: str | None = None,
    csv: Path | None = None,
    *,
    papers: bool = False,
) -> None:
    """Print one of the lists, or write it to the file `csv`; `-` prints CSV.

    `family` leaves only the encodings of that family, `papers` shows where each is from. Raises `UserError`
    for a name that is none.
    """
    listing = _listing(name, results_dir, family, csv, papers)
    if csv is None:
        show(lambda width: draw(listing.grid(), width))
        for remark in listing.remarks:
            say(remark)
    elif csv == STANDARD_OUTPUT:
        write_out(listing.csv())
    else:
        from pe_bench.system.files import write_text

        write_text(csv, listing.csv())
        say(f"wrote {csv}")


def _listing(
    name: str | None, results_dir: Path, family: str | None, csv: Path | None, papers: bool
) -> Listing:
    if name is None:
        raise UserError(f"name what to list: {', '.join(LISTS)}")
    if name not in LISTS:
        raise UserError(unknown(name, "list", LISTS), name)
    if csv is not None and csv != STANDARD_OUTPUT:
        from pe_bench.cli.report import Outputs, check_outputs

        check_outputs(Outputs(csv=csv))
    for option in [*(["--family"] if family else []), *(["--papers"] if papers else [])]:
        require(name == "encodings", f"{option} is for the list of encodings, and this is the list of {name}")
    listing = LISTS[name](results_dir)
    if family is not None:
        listing = _with_family(listing, family)
    return replace(listing, shown=PAPERS) if papers else listing


def _encodings(_: Path) -> Listing:
    return Listing(COLUMNS, list(catalogue()), shown=COLUMNS[:4])


def _with_family(listing: Listing, family: str) -> Listing:
    """Leave only the encodings of a family. Raises `UserError` for one that none has."""
    families = {str(row[1]) for row in listing.rows}
    if family not in families:
        raise UserError(unknown(family, "family", families))
    return replace(listing, rows=[row for row in listing.rows if row[1] == family])


def _models(_: Path) -> Listing:
    listing = Listing(("model", "parameters", f"with {GPT2:,} tokens", "layers", "width", "heads"))
    for name in names_in("model"):
        model = parse_config(compose([f"model={name}", "encoding=nope"])).model
        counts = [f"{decoder_parameters(model, vocabulary) / 1e6:.1f}M" for vocabulary in (BYTES, GPT2)]
        listing.rows.append((name, *counts, str(model.n_layers), str(model.d_model), str(model.n_heads)))
    return listing


def decoder_parameters(model: ModelConfig, vocabulary: int) -> int:
    """Count the decoder's parameters without an encoding by arithmetic: PyTorch takes a second to load."""
    width = model.d_model
    attention = 2 * width * model.d_head * (model.n_heads + model.n_kv_heads)
    norms = 2 * width + (2 * model.d_head if model.qk_norm else 0)
    layer = attention + 3 * width * model.d_ff + norms
    embeddings = vocabulary * width * (1 if model.tie_embeddings else 2)
    return embeddings + model.n_layers * layer + width


def _group(group: str) -> Callable[[Path], Listing]:
    """Return the list of a group of the configuration: names, and what each is."""

    def listing(_: Path) -> Listing:
        return Listing((group, "what it is"), [(name, description(group, name)) for name in names_in(group)])

    return listing


def _keys(_: Path) -> Listing:
    return Listing(("key", "default", "meaning"), [tuple(key) for key in keys()])


def _studies(results_dir: Path) -> Listing:
    from pe_bench.studies.study import Progress, Variant, read_study, study_names

    listing = Listing(
        ("study", "minutes", "runs done", "question"),
        remarks=(
            "minutes: an estimate for two cores, and of gpu for one GPU; --quick takes a few. "
            "Start one: pe-bench reproduce STUDY",
        ),
    )
    for study in map(read_study, study_names()):
        variant = Variant(study)
        keys = map(variant.key, study.sweeps)
        done = Progress(results_dir, variant.progress_name).finished_runs(keys)
        listing.rows.append((study.name, study.minutes, f"{done} of {study.runs}", study.question))
    return listing


def _runs(results_dir: Path) -> Listing:
    """Raises `UserError` where there is none, finished or not."""
    require_results_folder(results_dir)
    states = list(states_of_runs(results_dir))
    if not states:
        raise UserError(f"no run in {runs_folder(results_dir)}: make one with `pe-bench train encoding=rope`")
    columns = ("run", "encoding", "state", "steps", "of", "loss", "lengths scored", "problem")
    # People read the problems in lines below the table, which has no room for them.
    remarks = tuple(f"{state.run}: {state.problem}" for state in states if state.problem)
    return Listing(columns, list(map(_cells, states)), columns[:-1], remarks, _shorten_lengths)


def _shorten_lengths(column: str, text: str) -> str:
    """Return the lengths of a run for a terminal: all if they are few, else the first and the last."""
    lengths = text.split(", ")
    if column != "lengths scored" or len(lengths) <= MAX_LENGTHS:
        return text
    return f"{lengths[0]} to {lengths[-1]} ({len(lengths)})"


def _cells(state: RunState) -> tuple[str, ...]:
    lengths = ", ".join(map(str, state.lengths))
    facts = (state.run, state.encoding, state.state, state.steps, state.total, state.loss)
    return (*facts, lengths, state.problem)


LISTS: dict[str, Callable[[Path], Listing]] = {
    "encodings": _encodings,
    "modifiers": _group("modifier"),
    "models": _models,
    "data": _group("data"),
    "tasks": _group("task"),
    "tokenizers": _group("tokenizer"),
    "experiments": _group("experiment"),
    "keys": _keys,
    "runs": _runs,
    "studies": _studies,
}
