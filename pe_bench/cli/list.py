"""The `list` command: names to choose from, keys, runs and studies."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

from pe_bench.cli.completion import LISTS
from pe_bench.cli.data import print_data
from pe_bench.cli.options import command
from pe_bench.errors import UserError, require
from pe_bench.system.terminal import say
from pe_bench.values import unknown

Record = Mapping[str, Any]
MAX_LENGTHS = 3  # the most lengths of a run to show one by one
ABOUT_STUDIES = (
    "minutes: an estimate for two cores (for gpu: one GPU)",
    "stored: the number of runs whose levels come with pe-bench",
    "Start one: pe-bench reproduce STUDY",
)


class Listing(NamedTuple):
    """The content of a list."""

    records: Sequence[Record]  # the records for programs
    # The columns for people, each with a function that returns a record's text.
    columns: Mapping[str, Callable[[Record], Any]]
    remarks: Sequence[str] = ()  # lines below the table


@command("list")
def list_(
    name: str | None = None,
    *,
    family: str | None = None,
    papers: bool = False,
    tag: str | None = None,
    as_json: bool = False,
    results_dir: Path = Path("results"),
) -> None:
    """List what you can choose from, and what was run.

    name LIST: encodings, modifiers, models, data, tasks, tokenizers, experiments, keys, runs or studies.
    family NAME: List only encodings of this family.
    papers: Show papers, other names, and what happens past the training length.
    tag NAME: List only the runs with this tag.

    Examples:
      pe-bench list encodings --family rotary
      pe-bench list encodings --papers
      pe-bench list runs --tag first-try
    """
    from pe_bench.render.grid import plain_grid, show

    if not name:
        raise UserError(f"name what to list: {', '.join(LISTS)}")
    require(name in LISTS, unknown(name, "list", LISTS))
    message = f"--family and --papers are for pe-bench list encodings: leave them out of list {name}"
    require(name == "encodings" or not (family or papers), message)
    require(name == "runs" or tag is None, f"--tag is for pe-bench list runs: leave it out of list {name}")
    match name:
        case "encodings":
            listing = _list_encodings(family, papers=papers)
        case "runs":
            listing = _list_runs(results_dir, tag)
        case "studies":
            listing = _list_studies(results_dir)
        case _:
            listing = _list_configurations(name)
    if as_json:
        print_data("list", list=name, rows=listing.records)
        return
    rows = []
    for record in listing.records:
        rows.append([read(record) for read in listing.columns.values()])
    show([plain_grid([*listing.columns], rows).draw])
    for remark in listing.remarks:
        say(remark)


def _list_configurations(name: str) -> Listing:
    """Return the keys of a configuration, or the names of one of its groups."""
    from pe_bench.config.groups import description, keys, names_in

    if name == "keys":
        names = ("key", "default", "meaning")
        return Listing([dict(zip(names, key, strict=True)) for key in keys()], _field_columns(*names))
    group = name.removesuffix("s")
    records = [{group: each, "what_it_is": description(group, each)} for each in names_in(group)]
    return Listing(records, _field_columns(group, "what_it_is"))


def _field_columns(*names: str) -> dict[str, Callable[[Record], Any]]:
    """Return columns with the values of these fields, for `Listing.columns`."""
    return {name.replace("_", " "): itemgetter(name) for name in names}


def _list_encodings(family: str | None, *, papers: bool) -> Listing:
    """Return all encodings, or the encodings of a family. Raises `UserError` for an unknown family."""
    from pe_bench.inspection.catalogue import catalogue, families

    # Before all encodings are built, which takes seconds.
    require(family in (None, *families()), unknown(family or "", "family", families()))
    records = catalogue()
    chosen = [record for record in records if family in (None, record["family"])]
    if papers:
        past = {"past\ntraining": itemgetter("past_training")}
        return Listing(
            chosen,
            {**_field_columns("encoding"), **past, **_field_columns("paper"), "other names": other_names},
        )
    return Listing(chosen, _field_columns("encoding", "family", "parameters", "what_it_is"))


def other_names(record: Record) -> str:
    """Return an encoding's label, if it is not the name, and its aliases as text between semicolons."""
    parts = []
    if record["label"] != record["encoding"]:
        parts.append(record["label"])
    if record["modifier"]:
        parts.append("also as modifier")
    if record["aliases"]:
        parts.append(f"also called {', '.join(record['aliases'])}")
    return "; ".join(parts)


def _list_runs(results_dir: Path, tag: str | None) -> Listing:
    """Return all runs, finished or not, or the runs with a tag. Raises `UserError` if there is no run."""
    from pe_bench.runs.folder import folders_of_runs, state_of

    states = [state_of(run) for run in folders_of_runs(results_dir)]
    message = f"no run in {results_dir / 'runs'}: make one with `pe-bench train encoding=rope`"
    require(bool(states), message)
    if tag is not None:
        states = [state for state in states if tag in state.tags]
        require(bool(states), f"no run in {results_dir / 'runs'} has the tag {tag}: tag={tag} gives it one")
    columns = _field_columns("run", "encoding", "state") | {"steps": _steps_text} | _field_columns("loss")
    columns |= {"lengths\nscored": _lengths_text}
    if any(state.tags for state in states):
        columns["tags"] = lambda record: ", ".join(record["tags"])
    # The problems have no room in the table.
    problems = [f"{state.run}: {state.problem}" for state in states if state.problem]
    return Listing([*map(asdict, states)], columns, problems)


def _steps_text(record: Record) -> str:
    """Return the number of steps done as text, for an unfinished run with the number of all steps."""
    steps, total = record["steps"], record["total"]
    if steps is None:
        return ""
    return f"{steps:,}" if steps == total else f"{steps:,} of {total:,}"


def _lengths_text(record: Record) -> str:
    """Return the lengths of a run as text: all if they are few, else the first and the last."""
    lengths = record["lengths"]
    if len(lengths) > MAX_LENGTHS:
        return f"{lengths[0]} to {lengths[-1]} ({len(lengths)})"
    return ", ".join(map(str, lengths))


def _list_studies(results_dir: Path) -> Listing:
    """Return the studies. `done`, in the JSON alone, is the number of runs of a finished study, else 0.

    A study is finished if the folder of results has its picture, which `reproduce` draws last.
    """
    from pe_bench.commands.reproduce.outcomes import count_stored_runs
    from pe_bench.commands.reproduce.study import read_study, study_names

    records = []
    for study in map(read_study, study_names()):
        done = study.n_runs if study.picture_path(results_dir).exists() else 0
        facts = {
            "study": study.name,
            "minutes": study.minutes,
            "stored": count_stored_runs(study),
            "done": done,
        }
        records.append(facts | {"runs": study.n_runs, "question": study.question})
    return Listing(records, _field_columns("study", "minutes", "stored", "runs", "question"), ABOUT_STUDIES)
