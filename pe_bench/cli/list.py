"""The `list` command: what there is to choose from, and what was run."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from pe_bench.cli.completion import LISTS
from pe_bench.cli.data import print_data
from pe_bench.cli.report import Outputs
from pe_bench.config.compose import compose
from pe_bench.config.groups import description, keys, names_in
from pe_bench.config.parse import parse_config
from pe_bench.config.schema import ModelConfig
from pe_bench.errors import UserError, require
from pe_bench.runs.gather import RunState, require_results_folder, runs_folder, states_of_runs
from pe_bench.studies.study import Progress, read_study, study_names
from pe_bench.system.grid import MIN_FOLDED, Cell, Column, Grid, draw, show, to_csv
from pe_bench.system.terminal import one_line, say, write_out
from pe_bench.values import unknown

Row = Sequence[str | int]
COLUMNS = ("encoding", "family", "parameters", "what it is", "past training", "paper", "is")
SHOWN = COLUMNS[:4]  # on a terminal; a file has all
OF_PAPERS = ("encoding", "past training", "paper", "is")
BYTES = 257  # the vocabulary of tokenizer=bytes: every byte, and the end of a document
GPT2 = 50_257
MAX_LENGTHS = 3  # how many lengths of a run a terminal shows by name
LEAST = {"paper": len("https://kexue.fm/archives/8823")}  # a link is not broken
RUN_COLUMNS = ("run", "encoding", "state", "steps", "of", "loss", "lengths scored", "problem")
STUDY_COLUMNS = ("study", "minutes", "runs done", "question")
ABOUT_STUDIES = (
    "minutes: an estimate for two cores, and of gpu for one GPU; --quick takes a few.\n"
    "Start one: pe-bench reproduce STUDY"
)


class Listing(NamedTuple):
    """A table: its columns, its rows, the columns that a terminal shows, and lines below it there.

    records: the same rows as a program reads them, where these say more; a list with its names is one.
    """

    columns: Sequence[str]
    rows: Sequence[Row]
    shown: Sequence[str]
    remarks: Sequence[str] = ()
    records: Sequence[Any] = ()

    def data(self) -> list[Any]:
        """Return the rows for a program, by their columns."""
        names = [column.replace(" ", "_") for column in self.columns]
        return [*self.records] or [dict(zip(names, row, strict=True)) for row in self.rows]


def print_list(
    name: str,
    results_dir: Path,
    family: str | None = None,
    csv: Path | None = None,
    *,
    papers: bool = False,
    as_json: bool = False,
) -> None:
    """Print one of the lists, or write it to the file `csv`; `-` prints CSV.

    `family` leaves only the encodings of that family, `papers` shows where each is from. Raises `UserError`
    for a name that is none.
    """
    if name not in LISTS:
        raise UserError(unknown(name, "list", LISTS) if name else f"name what to list: {', '.join(LISTS)}")
    outputs = Outputs({} if csv is None else {"--csv": csv}, as_json=as_json)
    for option in [*(["--family"] if family else []), *(["--papers"] if papers else [])]:
        require(name == "encodings", f"{option} is for the list of encodings, and this is the list of {name}")
    listing = _encodings(family) if name == "encodings" else _listing(name, results_dir)
    if as_json:
        print_data("list", list=name, rows=listing.data())
    elif outputs.printed:
        write_out(_csv(listing))
    elif csv is None:
        grid = _grid(listing, OF_PAPERS if papers else listing.shown)
        show(lambda width: draw(grid, width))
        for remark in listing.remarks:
            say(remark)
    outputs.write({"--csv": lambda: _csv(listing)})


def _csv(listing: Listing) -> str:
    return to_csv((column.replace(" ", "_") for column in listing.columns), listing.rows)


def _grid(listing: Listing, shown: Sequence[str]) -> Grid:
    """Return a list for people: the first column holds names, which are never broken."""
    indexes = [listing.columns.index(column) for column in shown]
    columns = [
        Column(
            name.replace("past training", "past\ntraining"),
            is_left=not any(isinstance(row[index], int) for row in listing.rows),
            least=LEAST.get(name, MIN_FOLDED) if index else 0,
        )
        for index, name in zip(indexes, shown, strict=True)
    ]
    rows = [
        [Cell(_shown(row[index], name)) for index, name in zip(indexes, shown, strict=True)]
        for row in listing.rows
    ]
    return Grid(columns, rows)


def _shown(value: str | int, column: str) -> str:
    """Return a cell for a terminal: of a run's lengths all if they are few, else the first and the last."""
    if isinstance(value, int):
        return f"{value:,}"
    lengths = value.split(", ")
    if column != "lengths scored" or len(lengths) <= MAX_LENGTHS:
        return one_line(value)
    return f"{lengths[0]} to {lengths[-1]} ({len(lengths)})"


def _listing(name: str, results_dir: Path) -> Listing:
    match name:
        case "models":
            columns = ("model", "parameters", f"with {GPT2:,} tokens", "layers", "width", "heads")
            models = [_model(model) for model in names_in("model")]
            records = [
                {**asdict(model), "parameters": decoder_parameters(model, BYTES), "vocabulary": BYTES}
                for model in models
            ]
            return Listing(columns, [*map(_sizes, models)], columns, records=records)
        case "keys":
            columns = ("key", "default", "meaning")
            return Listing(columns, keys(), columns)
        case "studies":
            studies = [_study(study, results_dir) for study in study_names()]
            rows = [
                (study["study"], study["minutes"], f"{study['done']} of {study['runs']}", study["question"])
                for study in studies
            ]
            return Listing(STUDY_COLUMNS, rows, STUDY_COLUMNS, [ABOUT_STUDIES], studies)
        case "runs":
            return _runs(results_dir)
    group = name.removesuffix("s")
    columns = (group, "what it is")
    return Listing(columns, [(each, description(group, each)) for each in names_in(group)], columns)


def _encodings(family: str | None) -> Listing:
    """Return all encodings, or those of a family. Raises `UserError` for one that is none."""
    from pe_bench.inspection.catalogue import catalogue

    records = catalogue()
    if family is not None:
        families = {record["family"] for record in records}
        require(family in families, unknown(family, "family", families))
        records = [record for record in records if record["family"] == family]
    facts = ("encoding", "family", "parameters", "what_it_is", "past_training", "paper")
    rows = [(*(record[fact] for fact in facts), names_of(record)) for record in records]
    return Listing(COLUMNS, rows, SHOWN, records=records)


def names_of(record: dict[str, Any]) -> str:
    """Return what an encoding's name stands for, and by which others it goes."""
    parts = [
        record["label"] if record["label"] != record["encoding"] else "",
        "also as modifier" if record["modifier"] else "",
        f"also called {', '.join(record['aliases'])}" if record["aliases"] else "",
    ]
    return "; ".join(filter(None, parts))


def _runs(results_dir: Path) -> Listing:
    """Raises `UserError` where there is none, finished or not."""
    require_results_folder(results_dir)
    states = list(states_of_runs(results_dir))
    message = f"no run in {runs_folder(results_dir)}: make one with `pe-bench train encoding=rope`"
    require(bool(states), message)
    # People read the problems in lines below the table, which has no room for them.
    remarks = [f"{state.run}: {state.problem}" for state in states if state.problem]
    return Listing(RUN_COLUMNS, list(map(_run, states)), RUN_COLUMNS[:-1], remarks, [*map(asdict, states)])


def _run(state: RunState) -> Row:
    lengths = ", ".join(map(str, state.lengths))
    steps, total = ("" if count is None else str(count) for count in (state.steps, state.total))
    loss = "" if state.loss is None else f"{state.loss:.3f}"
    return (state.run, state.encoding, state.state, steps, total, loss, lengths, state.problem)


def _study(name: str, results_dir: Path) -> dict[str, Any]:
    study = read_study(name)
    progress = Progress(results_dir, study)
    steps = [progress.find(study.key(sweep)) for sweep in study.sweeps]
    done = sum(len(step.runs) for step in steps if step is not None)
    facts = {"study": study.name, "minutes": study.minutes, "done": done}
    return facts | {"runs": study.runs, "question": study.question}


def _model(name: str) -> ModelConfig:
    return parse_config(compose([f"model={name}", "encoding=nope"])).model


def _sizes(model: ModelConfig) -> Row:
    counts = [f"{decoder_parameters(model, vocabulary) / 1e6:.1f}M" for vocabulary in (BYTES, GPT2)]
    return model.name, *counts, str(model.n_layers), str(model.d_model), str(model.n_heads)


def decoder_parameters(model: ModelConfig, vocabulary: int) -> int:
    """Count the decoder's parameters without an encoding by arithmetic: PyTorch takes a second to load."""
    width = model.d_model
    attention = 2 * width * model.d_head * (model.n_heads + model.n_kv_heads)
    norms = 2 * width + (2 * model.d_head if model.qk_norm else 0)
    layer = attention + 3 * width * model.d_ff + norms
    embeddings = vocabulary * width * (1 if model.tie_embeddings else 2)
    return embeddings + model.n_layers * layer + width
