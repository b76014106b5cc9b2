"""The commands `cite`, `export` and `import`, which exchange results with others."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pe_bench import api
from pe_bench.cli.options import command
from pe_bench.errors import RunError, UserError, require
from pe_bench.system.terminal import say, write_out

if TYPE_CHECKING:
    from pe_bench.report.records import Table

OWN_ENTRY = """@software{{pe_bench,
  title = {{{{pe-bench: train short, test long}}}},
  author = {{{{pe-bench contributors}}}},
  year = {{2026}},
  version = {{{version}}}
}}"""
CITED_FIELD = re.compile(r"^  (eprint|url|note) = {(.*)}", re.MULTILINE)


@command("cite")
def cite(runs: Sequence[str] = (), *, results_dir: Path = Path("results")) -> None:
    """Print BibTeX for pe-bench and for what a table compares.

    Entries are for the table's encodings, scalings and data. Without RUN, the table is the newest run's. An
    encoding's name without a run of it cites its paper.

    runs RUN: Runs by encoding, name, the beginning of a name, or path; or encodings.
    results_dir DIR: The folder of runs and results.csv.

    Examples:
      pe-bench cite
      pe-bench cite rope alibi > papers.bib
      pe-bench cite --results-dir results
    """
    from pe_bench.config.groups import names_in
    from pe_bench.report.build import read_report
    from pe_bench.runs.find import finished_runs
    from pe_bench.runs.folder import encoding_in
    from pe_bench.system.version import own_version

    tables: list[Table] = []
    finished = finished_runs(results_dir)
    trained = {encoding_in(run.name) for run in finished}
    shipped = {*names_in("encoding"), *names_in("modifier")}
    untrained = [name for name in runs if name in shipped - trained]
    named = [name for name in runs if name not in untrained]
    if named or (finished and not runs):
        tables = read_report(results_dir, named, everything=False, numbers_only=True).tables
    elif not runs:
        say(f"{results_dir} has no finished run: pe-bench alone is cited")
    for name in _unshipped_names(tables):
        say(f"{name} is not one of pe-bench's encodings: add its paper yourself")
    entries = bibliography()
    printed = [OWN_ENTRY.format(version=own_version())]
    printed += [entries[cited] for cited in _cited_papers(tables, untrained)]
    write_out("\n\n".join(dict.fromkeys(printed)) + "\n")


def bibliography() -> dict[str, str]:
    """Return the shipped entries by arXiv:ID or address, as the docstrings of encodings cite them."""
    from pe_bench.config.groups import config_dir

    entries = {}
    for entry in (config_dir() / "papers.bib").read_text(encoding="utf-8").strip().split("\n\n"):
        for kind, text in CITED_FIELD.findall(entry):
            entries["arXiv:" * (kind == "eprint") + text.replace("\\", "")] = entry
    return entries


def _labels_of_lines(tables: "Sequence[Table]") -> set[str]:
    """Return the names under which the lines of tables were trained and scored."""
    labels: set[str] = set()
    for table in tables:
        for line in table.lines:
            labels |= {line.encoding, line.scored_with}
    return labels


def _unshipped_names(tables: "Sequence[Table]") -> list[str]:
    """Return the names in tables of encodings and modifiers that pe-bench does not ship, without papers."""
    from pe_bench.config.groups import names_in

    named_parts: list[str] = []
    for label in _labels_of_lines(tables):
        named_parts += re.split(r"[\s,]", label)[0].split("+")
    shipped = {*names_in("encoding"), *names_in("modifier")}
    return sorted({part.partition("@")[0] for part in named_parts} - shipped)


def _cited_papers(tables: "Sequence[Table]", encodings: Sequence[str] = ()) -> Iterator[str]:
    """Yield the papers of encodings, of the encodings and scalings in tables, and of their data.

    A paper is a key of `bibliography`.
    """
    from pe_bench.config.groups import names_in, paper
    from pe_bench.inspection.catalogue import paper_of, shipped

    labels = [*_labels_of_lines(tables), *encodings]
    words = re.split(r"[\s+,=]+", " ".join(labels))
    named = [name for name in names_in("encoding") if name in words]
    if named:
        yield from map(paper_of, shipped(names=named))
    for data in {table.key.data for table in tables} & {*names_in("data")}:
        if cited := paper(data, "data"):
            yield cited


@command("export")
def export(name: str, *, folder: Path, with_: str | None = None, results_dir: Path = Path("results")) -> None:
    """Write a trained run as a Hugging Face model.

    The encoding must be one that transformers has: rope and its scalings, p_rope, nope,
    sliding_window, smollm3, cohere2, or local_global of rope and nope. A Hugging Face model (hf:FOLDER)
    is written with a scaling of its rotation, which --with names.

    name RUN: A run by encoding, name, the beginning of a name, or path; or hf:FOLDER.
    folder DIR: The folder to write; it must be new or empty.
    with_ NAME: The scaling of a Hugging Face model, such as 'yarn factor=2'.

    Examples:
      pe-bench export rope --hf FOLDER
      pe-bench export results/runs/rope-s0-1a2b3c4d --hf FOLDER
      pe-bench export nope --hf FOLDER --results-dir results
      pe-bench export hf:FOLDER --with 'yarn factor=2' --hf OTHER
    """
    from pe_bench.commands.export import export_hf_model, export_run
    from pe_bench.runs.find import is_hf_name

    if not is_hf_name(name):
        require(with_ is None, "--with is for a Hugging Face model (hf:FOLDER): leave it out")
        export_run(name, folder, results_dir)
        return
    if with_ is None:
        raise UserError(f"{name} is a Hugging Face model already: give --with 'yarn factor=2'")
    export_hf_model(name, with_, folder, results_dir)


@command("import", api.import_runs)
def import_(folders: Sequence[Path], **options: Any) -> None:
    """Copy finished runs from elsewhere into the folder of results.

    Each run is checked as if it came from a stranger, and copied whole or not at all. A run that
    already exists is left as it is.

    folders FOLDER: Runs, folders of runs, or folders of results.

    Examples:
      pe-bench import /mnt/other/results
      pe-bench import copies/runs other/results/runs
      pe-bench import rope-s0-1a2b3c4d --results-dir results
    """
    imported = api.import_runs(folders, **options)
    for name, why in imported.refused.items():
        say(f"not imported: {name}: {why}")
    say(f"{len(imported.copied)} imported, {len(imported.present)} here already")
    if imported.refused:
        raise RunError(f"{len(imported.refused)} not imported: the lines above say why")
