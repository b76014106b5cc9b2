"""`--json`: data for programs, by one schema."""

import csv
import io
import json
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from jsonschema.exceptions import best_match
from support import wrong_encodings
from support.commands import LEARNED, TRIED, Command, Outcome
from support.golden_results import FOLDERS

from pe_bench.cli.completion import LISTS
from pe_bench.cli.data import plain
from pe_bench.report.statistics import Interval

SCHEMA = Path(__file__).parents[2] / "docs" / "pe-bench.schema.json"
IN = ("--results-dir", "../results")


@cache
def schema() -> dict[str, Any]:
    """Return the schema. It allows names that it does not know: programs skip them; ours have none such."""
    text = SCHEMA.read_text(encoding="utf-8")
    jsonschema.Draft202012Validator.check_schema(json.loads(text))
    closed = {"additionalProperties": False}
    return json.loads(text, object_hook=lambda part: part | (closed if part.get("type") == "object" else {}))


def document_of(outcome: Outcome, code: int = 0) -> dict[str, Any]:
    """Return the one document that a command printed, which the schema describes to the last name."""
    assert outcome.code == code, outcome.err

    def refuse(word: str) -> float:
        raise ValueError(f"{word} is no JSON")

    document = json.loads(outcome.out, parse_constant=refuse)
    error = best_match(jsonschema.Draft202012Validator(schema()).iter_errors(document))
    assert error is None, f"{error.json_path}: {error.message:.300}"
    return document


@pytest.mark.parametrize("name", ["five_seeds", "scalings", "protocols"])
def test_a_report_is_told_as_data(
    name: str, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write, options = FOLDERS[name]
    write(tmp_path / "results")
    document = document_of(command("report", *options, "--json"))
    rows = csv.DictReader(io.StringIO(command("report", *options, "--csv", "-").out))
    told = [
        (line["encoding"], str(record["length"]), record["verdict"])
        for table in document["tables"]
        for line in [*table["lines"], *table["anchors"]]
        for record in line["records"]
    ]
    assert sorted(told) == sorted((row["encoding"], row["length"], row["verdict"]) for row in rows)


def test_what_is_scored_and_probed_is_told_as_data(train: Command, command: Command, folder: Path) -> None:
    one = document_of(train("encoding=rope", "--json"))
    (table,), (run,) = one["tables"], one["runs"]
    assert run["name"].startswith("rope-s0-") and one["failures"] == []
    line = next(line for line in table["lines"] if line["label"] == "rope")
    assert [(record["length"], record["level"] > 0) for record in line["records"]] == [(16, True), (32, True)]
    change = line["records"][1]["compared"]
    assert change["interval"]["low"] < change["mean"] < change["interval"]["high"]

    many = document_of(train("-m", "encoding=rope,nope", "--json"))
    assert {run["name"].split("-")[0] for run in many["runs"]} == {"rope", "nope"}
    compared = document_of(command("report", *IN, "--baseline", "rope", "--json"))
    (nope,) = (line for line in compared["tables"][0]["lines"] if line["label"] == "nope")
    assert nope["records"][0]["baseline"]["verdict"] in ("better", "same", "worse", "unclear")
    both = document_of(command("eval", "rope", "nope", "--lengths", "16,24", *IN, "--json"))
    assert {line["label"] for table in both["tables"] for line in table["lines"]} >= {"rope", "nope"}
    runs = document_of(command("list", "runs", *IN, "--json"))["rows"]
    assert [(row["encoding"], row["lengths"], row["steps"]) for row in runs] == [
        (name, [16, 24, 32], 8) for name in ("nope", "rope")
    ]
    explained = document_of(command("explain", "rope", "--lengths", "32", "--targets", "6", *IN, "--json"))
    assert [loss["length"] for loss in explained["explanation"]["losses"]] == [32]
    probe = ("--lengths", "128", "--depths", "2", "--windows", "6", *IN)
    (probed,) = document_of(command("probe", "rope", *probe, "--json"))["probes"]
    assert [found["depth"] for found in probed["lines"][0]["found"]] == [None, 0.0, 1.0]
    assert document_of(command("report", *IN, "--probe", "--json"))["probes"] == [probed]
    assert document_of(command("report", *IN, "--probe", "--sort", "name", "--json"))["tables"]


def test_a_failure_is_in_the_document_too_and_keeps_its_exit_code(command: Command) -> None:
    wrong = f"{wrong_encodings.__file__}:BiasThatRises"
    (checked,) = document_of(command("check", wrong, "--json"), 1)["encodings"]
    assert "fails" in {finding["state"] for finding in checked["findings"]}


def test_a_try_and_all_tries_are_told_as_data(command: Command, folder: Path) -> None:
    corpus = "data.path=../corpus"
    arguments = ("nope", "--minutes", "0.001", "--lengths", "16,32", *TRIED, *LEARNED, corpus)
    outcome = document_of(command("try", *arguments, "--json"), 4)["outcome"]
    assert (outcome["answer"], outcome["look"]["seeds"]) == ("unclear", 1)
    assert outcome["look"]["at_training"]["low"] == "-Infinity", "one seed has no interval"
    (tried,) = document_of(command("try", "--list", "--json"))["tries"]
    assert tried == outcome["tried"] and tried["change"] == "nope"
    unlearned = document_of(command("try", *arguments, "train.lr=1e-7", "--json"), 4)["outcome"]
    assert (unlearned["answer"], unlearned["unlearned"]) == ("no verdict", ["nope", "rope"])


def test_the_ledger_of_claims_is_told_as_data(command: Command) -> None:
    papers = document_of(command("reproduce", "--claims", "alibi", "predictions", "--json"))["papers"]
    assert [paper["name"] for paper in papers] == ["alibi", "predictions"] and papers[1]["rules"]
    answers = [answer for claim in papers[0]["claims"] for answer in claim["answers"]]
    assert {answer["outcome"] for answer in answers} >= {"holds", "unclear", "not run"}
    assert all("mean" in answer for answer in answers if answer["outcome"] == "holds")


def test_a_list_a_check_and_a_measurement_are_told_as_data(command: Command, folder: Path) -> None:
    for name in {*LISTS} - {"runs"}:
        document = document_of(command("list", name, "--json"))
        assert document["list"] == name and document["rows"]
        shown = command("list", name).out
        for row in document["rows"]:
            assert all(row[key] for key in ("what_it_is", "meaning", "question") if key in row)
            assert next(iter(row.values())) in shown
        if name == "encodings":
            rows = {row["encoding"]: row for row in document["rows"]}
            assert "ape" in rows["learned"]["aliases"] and rows["logn"]["modifier"]
    speed = document_of(command("speed", "nope", "--lengths", "16", "--repeats", "1", "threads=1", "--json"))
    assert speed["rows"][0]["encoding"] == "nope" and speed["rows"][0]["milliseconds"] > 0
    interval = plain(Interval(float("nan"), float("-inf"), float("inf"), 1, 1))
    assert (interval["mean"], interval["low"], interval["high"]) == ("NaN", "-Infinity", "Infinity")
