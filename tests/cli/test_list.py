"""The lists: what each row says, for people and for programs."""

import json
import re
import subprocess
import sys
from typing import Any

import pytest
from support.commands import Command
from support.results import add_run

from pe_bench.cli.completion import complete_word
from pe_bench.inspection import catalogue


def rows_of(command: Command, *arguments: str) -> list[dict[str, Any]]:
    outcome = command("list", *arguments, "--json")
    assert outcome.code == 0, outcome.err
    return json.loads(outcome.out)["rows"]


def test_every_encoding_has_a_row_with_its_facts_in_one_line_of_80_columns(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = catalogue.catalogue()
    monkeypatch.setattr(catalogue, "catalogue", lambda: records)  # building all encodings takes seconds
    rows = {row["encoding"]: row for row in rows_of(command, "encodings")}
    assert list(rows) == [argument.removeprefix("encoding=") for argument in complete_word("encoding=")]
    assert all(row[fact] for row in rows.values() for fact in ("family", "paper", "what_it_is"))
    parameters = {"nope": 0, "rope": 0, "learned": 128 * 128, "t5": 4 * 32, "cope": 4 * 64 * 32}
    assert {name: rows[name]["parameters"] for name in parameters} == parameters
    past = {"learned": "undefined", "t5": "clamps", "logn": "defined", "longrope": "defined"}
    assert {name: rows[name]["past_training"] for name in past} == past, "of the part that says most"
    biases = rows_of(command, "encodings", "--family", "bias")
    assert catalogue.families() == sorted({row["family"] for row in catalogue.catalogue()})
    assert biases == [row for row in rows.values() if row["family"] == "bias"] and 1 < len(biases) < len(rows)

    monkeypatch.setattr("pe_bench.system.terminal.PIPED_WIDTH", 80)
    header, *lines = command("list", "encodings").out.splitlines()
    assert re.split(" {2,}", header) == ["encoding", "family", "parameters", "what it is"]
    for line, record in zip(lines, records, strict=True):
        assert line.split()[0] == record["encoding"] and line.endswith(record["what_it_is"])
        assert len(line) <= 80
    text = command("list", "encodings", "--papers").out
    assert all(record["paper"] in text for record in records if len(record["paper"]) <= 24)
    assert max(map(len, text.splitlines())) <= 80
    monkeypatch.setattr("pe_bench.system.terminal.PIPED_WIDTH", 200)
    wide = command("list", "encodings", "--papers").out
    assert "rope+logn; also as modifier" in wide and "also called ape" in wide


def test_lists_and_a_report_do_not_load_torch(tmp_path) -> None:
    add_run(tmp_path / "results", "rope", {64: 3.1, 128: 3.0})
    program = (
        "import sys; from pe_bench.cli.program import run; lists = ('models', 'data', 'keys'); "
        "codes = [run(['list', name]) for name in lists] + [run(['report', '--csv', '-'])]; "
        "print(codes, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout.splitlines()[-1] == "[0, 0, 0, 0] False", done.stderr
