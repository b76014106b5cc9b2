"""`cite`: BibTeX of what a table compares."""

import re
from pathlib import Path

import pytest
import yaml
from support.commands import Command
from support.golden_results import FOLDERS

from pe_bench.cli.exchange import bibliography
from pe_bench.config.groups import names_in, paper
from pe_bench.inspection.catalogue import catalogue


def test_every_encoding_and_data_set_has_an_entry_with_its_title_and_year() -> None:
    entries = bibliography()
    papers = {record["paper"] for record in catalogue()} | {
        paper(name, "data") for name in names_in("data")
    } - {""}
    assert sorted(papers - entries.keys()) == []
    assert sorted(entries.keys() - papers) == [], "an entry that nothing cites"
    keys = [re.findall(r"^@misc{(\w+),$", entry, re.MULTILINE) for entry in entries.values()]
    assert len({key for [key] in keys}) == len(entries)
    for entry in entries.values():
        assert re.search(r"^  title = {{.+}},$", entry, re.MULTILINE), entry
        assert re.search(r"^  year = {(19|20)\d\d},$", entry, re.MULTILINE), entry
        assert entry.count("{") == entry.count("}")


def test_cite_prints_what_a_table_compares_and_pe_bench_alone_without_one(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    alone = command("cite")
    assert (alone.code, alone.out.count("@")) == (0, 1) and "@software{pe_bench," in alone.out
    citation = yaml.safe_load((Path(__file__).parents[2] / "CITATION.cff").read_text(encoding="utf-8"))
    for fact in (citation["title"], citation["authors"][0]["name"], f"{citation['date-released'].year}"):
        assert f"{{{fact}}}" in alone.out
    FOLDERS["scalings"][0](tmp_path / "results")
    cited = command("cite")
    assert cited.code == 0, cited.err
    assert {"su2021roformer", "peng2023yarn", "pe_bench"} <= {
        *re.findall(r"^@\w+{(\w+),", cited.out, re.MULTILINE)
    }
    assert "alibi" not in cited.out
