"""`cite`: BibTeX of what a table compares."""

import re
from pathlib import Path

import pytest
import yaml
from support.commands import Command
from support.golden_results import FOLDERS
from support.results import add_run

from pe_bench.cli.exchange import bibliography
from pe_bench.config.groups import names_in, paper
from pe_bench.inspection.catalogue import catalogue


def test_every_paper_has_an_entry_and_cite_prints_those_of_a_table(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries, papers = bibliography(), {record["paper"] for record in catalogue()}
    papers |= {paper(name, "data") for name in names_in("data")} - {""}
    assert entries.keys() == papers, "each is cited by somebody"
    for entry in entries.values():
        assert re.match(r"@misc{\w+,\n  title = {{.+}},\n(.*\n)*  year = {(19|20)\d\d},\n", entry), entry
        assert entry.count("{") == entry.count("}")
    without_authors = {cited for cited, entry in entries.items() if "\n  author = " not in entry}
    assert without_authors == {"arXiv:2512.13961", "arXiv:2605.10414", "modded-nanogpt#169"}, (
        "no page names theirs"
    )
    monkeypatch.chdir(tmp_path)
    alone = command("cite")
    assert (alone.code, alone.out.count("@")) == (0, 1) and "@software{pe_bench," in alone.out
    assert alone.err == "results has no finished run: pe-bench alone is cited\n"
    citation = yaml.safe_load((Path(__file__).parents[2] / "CITATION.cff").read_text(encoding="utf-8"))
    for fact in (citation["title"], citation["authors"][0]["name"], f"{citation['date-released'].year}"):
        assert f"{{{fact}}}" in alone.out
    FOLDERS["scalings"][0](tmp_path / "results")
    outcome = command("cite")
    cited = re.findall(r"^@\w+{(\w+),", outcome.out, re.MULTILINE)
    assert {"su2021roformer", "peng2023yarn", "pe_bench"} <= {*cited}
    assert len(cited) == len({*cited}) and not any("alibi" in name for name in cited)
    for label in ("rope, then yarn x4 at 512 (131k)", "alibi+mine@2222", "Own@1111 strength=2"):
        add_run(tmp_path / "others", "some", {128: 2.0}, label=label)
    message = " is not one of pe-bench's encodings: add its paper yourself\n"
    of_others = command("cite", "--results-dir", "others")
    assert outcome.err == "" and of_others.err == f"Own{message}mine{message}"


def test_an_encodings_name_cites_its_paper_without_a_run(
    command: Command, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = command("cite", "rope", "alibi")
    cited = re.findall(r"^@\w+{(\w+),", outcome.out, re.MULTILINE)
    assert (outcome.code, outcome.err, len(cited)) == (0, "", 3) and "su2021roformer" in cited
    add_run(tmp_path / "results", "rope", {128: 2.0})
    assert {*re.findall(r"^@\w+{(\w+),", command("cite", "rope", "alibi").out, re.MULTILINE)} == {*cited}
    assert command("cite", "no_such").code == 2
