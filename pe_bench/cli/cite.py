"""The `cite` command: BibTeX of pe-bench, and of the encodings and the data that a table has."""

import re
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path

from pe_bench import api
from pe_bench.config.groups import config_dir, names_in, paper
from pe_bench.report.records import Table
from pe_bench.runs.find import finished_runs
from pe_bench.system.terminal import say, write_out

OWN = """@software{{pe_bench,
  title = {{{{pe-bench: train short, test long}}}},
  author = {{{{pe-bench contributors}}}},
  year = {{2026}},
  version = {{{version}}}
}}"""
CITED = re.compile(r"^  (eprint|url|note) = {(.*)}", re.MULTILINE)
NO_TABLE = dict.fromkeys(("where", "by", "best", "baseline", "margin", "protocol", "slice"))


def cite(runs: Sequence[str], results_dir: Path) -> None:
    """Print the entries of the newest run's table, or of all tables of the named runs."""
    tables: list[Table] = []
    if runs or finished_runs(results_dir):
        report = api.read_report(results_dir, runs, everything=False, numbers_only=True, **NO_TABLE)
        tables = report.tables
    entries, printed = bibliography(), [OWN.format(version=version("pe-bench"))]
    for name, cited in dict.fromkeys(_cited(tables)):
        if cited in entries:
            printed.append(entries[cited])
        else:
            say(f"{name}: no BibTeX entry is known for {cited}")
    write_out("\n\n".join(dict.fromkeys(printed)) + "\n")


def bibliography() -> dict[str, str]:
    """Return the entries that are shipped, by what an encoding's docstring cites: arXiv:ID, or an address."""
    entries = {}
    for entry in (config_dir() / "papers.bib").read_text(encoding="utf-8").strip().split("\n\n"):
        for kind, text in CITED.findall(entry):
            entries["arXiv:" * (kind == "eprint") + text.replace("\\", "")] = entry
    return entries


def _cited(tables: Sequence[Table]) -> Iterator[tuple[str, str]]:
    """Yield the encodings that lines were trained or scored with, and the data, with their papers."""
    from pe_bench.inspection.catalogue import catalogue

    lines = [line for table in tables for line in table.lines]
    labels = [label for line in lines for label in (line.encoding, line.scored_with)]
    words = {word for label in labels for word in re.split(r"[\s+,=]+", label)}
    for record in catalogue() if words else ():
        if record["encoding"] in words:
            yield record["encoding"], record["paper"]
    for data in {table.key.data for table in tables} & {*names_in("data")}:
        if cited := paper(data, "data"):
            yield data, cited
