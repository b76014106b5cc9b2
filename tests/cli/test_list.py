"""The lists: what each row says, on the terminal and as CSV."""

import csv
import io
import re
import subprocess
import sys

import pytest
from support.results import add_run

from pe_bench.cli.completion import complete_word
from pe_bench.cli.list import decoder_parameters
from pe_bench.config.compose import compose
from pe_bench.config.groups import names_in
from pe_bench.config.parse import parse_config
from pe_bench.inspection.catalogue import catalogue as encodings
from pe_bench.model.decoder import build_decoder


def rows_of(outcome):
    assert outcome.code == 0, outcome.err
    return list(csv.DictReader(io.StringIO(outcome.out)))


@pytest.fixture(scope="module")
def records():
    return encodings()


@pytest.fixture(autouse=True)
def built_once(records, monkeypatch):
    """Building all encodings takes seconds."""
    monkeypatch.setattr("pe_bench.inspection.catalogue.catalogue", lambda: records)


@pytest.fixture
def catalogue(command):
    return {row["encoding"]: row for row in rows_of(command("list", "encodings", "--csv", "-"))}


def test_every_encoding_has_a_row_with_its_facts(catalogue):
    names = [argument.removeprefix("encoding=") for argument in complete_word("encoding=")]
    assert list(catalogue) == names
    for name, row in catalogue.items():
        assert row["family"] and row["paper"] and row["what_it_is"], name
        assert row["past_training"] in ("defined", "clamps", "undefined"), name
        assert row["parameters"].isdecimal() or row["parameters"] == "", name


def test_facts_of_an_encoding_are_those_of_the_tiny_model_and_of_the_part_that_says_most(catalogue):
    expected = {"nope": 0, "rope": 0, "learned": 128 * 128, "t5": 4 * 32, "cope": 4 * 64 * 32, "longrope": 0}
    assert {name: int(catalogue[name]["parameters"]) for name in expected} == expected
    expected = {"learned": "undefined", "t5": "clamps", "logn": "defined", "longrope": "defined"}
    assert {name: catalogue[name]["past_training"] for name in expected} == expected
    assert catalogue["logn"]["is"] == "rope+logn; also as modifier" and catalogue["alibi"]["is"] == ""
    assert "also called ape" in catalogue["learned"]["is"]


def test_a_family_narrows_the_list(command, catalogue):
    rows = rows_of(command("list", "encodings", "--family", "bias", "--csv", "-"))
    assert [row["encoding"] for row in rows] == [
        name for name, row in catalogue.items() if row["family"] == "bias"
    ]
    assert 1 < len(rows) < len(catalogue)


@pytest.fixture
def shown(command, monkeypatch):
    """Return the lines of a list as a terminal of some columns shows it."""

    def lines(columns: int, *arguments: str) -> list[str]:
        monkeypatch.setattr("pe_bench.system.terminal.PIPED_WIDTH", columns)
        outcome = command("list", *arguments)
        assert outcome.code == 0, outcome.err
        return outcome.out.splitlines()

    return lines


def test_at_80_columns_each_encoding_is_one_line_with_what_it_is(shown, catalogue):
    header, *rows = shown(80, "encodings")
    assert re.split(" {2,}", header) == ["encoding", "family", "parameters", "what it is"]
    assert [row.split()[0] for row in rows] == list(catalogue)
    phrases = [catalogue[row.split()[0]]["what_it_is"] for row in rows]
    assert all(row.endswith(phrase) for row, phrase in zip(rows, phrases, strict=True))
    assert all(len(phrase) <= 39 for phrase in phrases) and len(phrases) == len(set(phrases))


def test_papers_are_whole_at_80_columns(shown, catalogue):
    text = "\n".join(shown(80, "encodings", "--papers"))
    assert all(row["paper"] in text for row in catalogue.values() if len(row["paper"]) <= 30)
    assert "undefined" in text and "also called" in " ".join(text.split())
    joined = "".join(text.split())
    assert all(name in joined for row in catalogue.values() for name in row["is"].split()), (
        "nothing is cut off"
    )


def test_the_terminal_shows_what_the_file_has(command, catalogue, tmp_path):
    shown = command("list", "encodings").out
    assert re.search(r"^learned +input +16,384  a trained vector for each position$", shown, re.MULTILINE)
    outcome = command("list", "encodings", "--csv", str(tmp_path / "list.csv"))
    assert outcome.code == 0 and outcome.out == "" and "wrote" in outcome.err
    with (tmp_path / "list.csv").open(encoding="utf-8") as file:
        assert {row["encoding"]: row for row in csv.DictReader(file)} == catalogue


def test_other_lists_are_tables_too(command):
    first = {"modifiers": "bipe", "models": "base", "data": "files", "tokenizers": "bpe", "keys": "encoding"}
    for name in (*first, "experiments", "tasks"):
        rows = rows_of(command("list", name, "--csv", "-"))
        assert next(iter(rows[0].values())) == first.get(name, next(iter(rows[0].values())))
        assert all(row[column] for row in rows for column in ("what_it_is", "meaning") if column in row)


def test_parameters_of_a_model_are_those_that_it_is_built_with_and_are_listed_with_both_vocabularies(command):
    several = ["model.tie_embeddings=false", "model.n_kv_heads=1"]
    for name, options in [*((name, []) for name in names_in("model")), ("tiny", several)]:
        overrides = [f"model={name}", "model.n_layers=2", "encoding=nope", *options]
        config = parse_config(compose(overrides))
        built = build_decoder(config, ["a"] * 300)
        assert decoder_parameters(config.model, 300) == built.parameter_count, name
    listed = command("list", "models").out.splitlines()
    [gpt2] = [line.split() for line in listed if line.startswith("gpt2")]
    small, large = (float(argument.removesuffix("M")) for argument in gpt2[1:3])
    assert large - small == pytest.approx((50_257 - 257) * 768 / 1e6, abs=0.11) and "50,257" in listed[0]


def test_lists_and_a_report_do_not_load_torch(tmp_path):
    add_run(tmp_path / "results", "rope", {64: 3.1, 128: 3.0})
    program = (
        "import sys; from pe_bench.cli.program import run; lists = ('models', 'data', 'keys'); "
        "codes = [run(['list', name]) for name in lists] + [run(['report', '--csv', '-'])]; "
        "print(codes, 'torch' in sys.modules)"
    )
    run = {"capture_output": True, "text": True, "check": True, "cwd": tmp_path}
    done = subprocess.run([sys.executable, "-c", program], **run)
    assert done.stdout.splitlines()[-1] == "[0, 0, 0, 0] False"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "name what to list: encodings, modifiers, models, data, tasks, tokenizers, "),
        (["encodings", "--family", "rotery"], "unknown family 'rotery': did you mean 'rotary'?"),
        (["models", "--family", "bias"], "this is the list of models"),
        (["data", "--papers"], "--papers is for the list of encodings, and this is the list of data"),
        (["encodings", "--csv", "missing/list.csv"], "there is no folder missing"),
    ],
)
def test_mistakes_are_one_line(command, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    outcome = command("list", *arguments)
    assert outcome.code == 2 and message in outcome.line
    assert outcome.out == ""
