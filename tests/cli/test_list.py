"""The lists: what each row says, on the terminal and as CSV."""

import csv
import io
import re

import pytest

from pe_bench.cli.completion import complete_word


def rows_of(outcome):
    assert outcome.code == 0, outcome.err
    return list(csv.DictReader(io.StringIO(outcome.out)))


@pytest.fixture
def catalogue(command):
    return {row["encoding"]: row for row in rows_of(command("list", "encodings", "--csv", "-"))}


def test_every_encoding_has_a_row_with_its_facts(catalogue):
    names = [argument.removeprefix("encoding=") for argument in complete_word("encoding=")]
    assert list(catalogue) == names
    for name, row in catalogue.items():
        assert row["family"] and row["paper"], name
        assert row["past_training"] in ("defined", "clamps", "undefined"), name
        assert row["parameters"].isdecimal() or row["parameters"] == "", name


def test_parameters_are_those_of_the_tiny_model_at_128_tokens(catalogue):
    expected = {"nope": 0, "rope": 0, "learned": 128 * 128, "t5": 4 * 32, "cope": 4 * 64 * 32}
    assert {name: int(catalogue[name]["parameters"]) for name in expected} == expected


def test_what_happens_past_training_is_that_of_the_part_that_says_most(catalogue):
    assert catalogue["learned"]["past_training"] == "undefined"
    assert catalogue["t5"]["past_training"] == "clamps"
    assert catalogue["logn"]["past_training"] == "defined"


def test_an_encoding_of_parts_says_which_and_that_it_is_a_modifier_too(catalogue):
    assert catalogue["logn"]["is"] == "rope+logn; also as modifier"
    assert "also called ape" in catalogue["learned"]["is"]
    assert catalogue["alibi"]["is"] == ""


def test_an_encoding_with_an_option_that_has_no_default_is_counted_all_the_same(catalogue):
    assert catalogue["longrope"]["parameters"] == "0"
    assert catalogue["longrope"]["past_training"] == "defined"


def test_a_family_narrows_the_list(command, catalogue):
    rows = rows_of(command("list", "encodings", "--family", "bias", "--csv", "-"))
    assert [row["encoding"] for row in rows] == [
        name for name, row in catalogue.items() if row["family"] == "bias"
    ]
    assert 1 < len(rows) < len(catalogue)


def test_the_terminal_shows_what_the_file_has(command, catalogue, tmp_path):
    shown = command("list", "encodings").out
    assert re.search(r"^learned +input +16,384 +undefined +arXiv:1705.03122 ", shown, re.MULTILINE)
    outcome = command("list", "encodings", "--csv", str(tmp_path / "list.csv"))
    assert outcome.code == 0 and outcome.out == "" and "wrote" in outcome.err
    with (tmp_path / "list.csv").open(encoding="utf-8") as file:
        assert {row["encoding"]: row for row in csv.DictReader(file)} == catalogue


@pytest.mark.parametrize("what", ["models", "data"])
def test_other_lists_are_tables_too(command, what):
    rows = rows_of(command("list", what, "--csv", "-"))
    assert {"models": "tiny", "data": "stdlib"}[what] in [next(iter(row.values())) for row in rows]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "name what to list: encodings, models, data, runs"),
        (["encodings", "--family", "rotery"], "unknown family 'rotery': did you mean 'rotary'?"),
        (["models", "--family", "bias"], "this is the list of models"),
        (["encodings", "--csv", "missing/list.csv"], "there is no folder missing"),
    ],
)
def test_mistakes_are_one_line(command, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    outcome = command("list", *arguments)
    assert outcome.code == 2 and message in outcome.line
    assert outcome.out == ""
