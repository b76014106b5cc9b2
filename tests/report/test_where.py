"""The conditions that choose the rows of a report."""

from dataclasses import replace
from pathlib import Path

import pytest
from support.results import add_run, edit_rows
from support.tables import BREAKING, labels, only, where

from pe_bench.errors import UserError
from pe_bench.report.build import build_tables
from pe_bench.report.selection import Selection
from pe_bench.runs.find import parse_condition


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("seed", "cannot be read"),
        ("seed=", "cannot be read"),
        ("seed<many", "needs a number"),
        ("sead=1", "did you mean 'seed'"),
        ("control=swap", "unknown --where 'control'"),
    ],
)
def test_conditions_that_cannot_be_met_are_refused(word: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        parse_condition(word)


@pytest.mark.parametrize(
    ("words", "lines", "seeds"),
    [
        (["encoding=rope"], ["rope"], 3),
        (["encoding!=rope"], ["alibi"], 3),
        (["seed<2"], ["alibi", "rope"], 2),
        (["seed=0,2", "encoding=rope,alibi"], ["alibi", "rope"], 2),
        (["parameters>850000"], ["alibi"], 3),
    ],
)
def test_conditions_choose_rows(results: Path, words: list[str], lines: list[str], seeds: int) -> None:
    table = only(results, where=where(*words))
    assert labels(table) == lines
    assert {line.seeds for line in table.lines} == {seeds}


def test_a_condition_on_length_hides_columns_but_keeps_the_reference(results: Path) -> None:
    table = only(results, where=where("length>128"))
    assert table.lengths == (256, 512)
    assert all(cell.change is not None for line in table.lines for cell in line.records.values())


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """Runs of a custom encoding, in two versions and with options, and of other encodings."""
    for number, label in enumerate(("root@0cba s=0.25", "root@0cba s=1.0", "root@1111", "root@0cba+logn")):
        edit_rows(
            add_run(tmp_path, "root", BREAKING, code=str(number)),
            lambda row, label=label: replace(row, encoding=label, scored_with=label),
        )
    add_run(tmp_path, "rope", BREAKING)
    add_run(tmp_path, "rope", {128: 2.7, 512: 2.9}, scored_with="yarn factor=auto")
    return tmp_path


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("encoding=root", {"root@0cba s=0.25", "root@0cba s=1.0", "root@1111"}),
        ("encoding=root@0cba", {"root@0cba s=0.25", "root@0cba s=1.0"}),
        ("encoding=root@0cba s=1.0", {"root@0cba s=1.0"}),
        ("encoding=root+logn,root@1111", {"root@0cba+logn", "root@1111"}),
        ("encoding=*+logn", {"root@0cba+logn"}),
        ("encoding!=root", {"root@0cba+logn", "rope", "rope -> yarn factor=auto"}),
        ("scored_with=yarn", {"rope -> yarn factor=auto"}),
    ],
)
def test_an_encoding_is_chosen_by_its_name_with_or_without_its_code_and_options(
    own: Path, word: str, expected: set[str]
) -> None:
    assert set(labels(only(own, where=where(word)))) == expected


@pytest.mark.parametrize("damage", ["absent", "bomb"])
def test_a_run_whose_configuration_is_damaged_hides_no_other(rates: Path, damage: str) -> None:
    run = next(iter(sorted((rates / "runs").iterdir())))
    path = run / "config.yaml"
    if damage == "absent":
        path.unlink()
    else:
        bomb = "a: &a [1]\n" + "".join(f"{two}: &{two} [*{one},*{one}]\n" for one, two in ("ab", "bc", "cd"))
        path.write_text(bomb)
    tables = build_tables(rates, selection=Selection(where=where("train.lr<0.002")))
    assert labels(tables[0]) == ["alibi", "rope"]
