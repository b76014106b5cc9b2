"""Our levels against a study's table: which are compared, which agree, and why others are not."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
from support.results import ROW

from pe_bench.errors import RunError, UserError
from pe_bench.studies.definition import Study, Sweep
from pe_bench.studies.outcomes import Outcomes
from pe_bench.studies.table import Level, compare, levels_of, read_table, write_table
from pe_bench.studies.variant import Variant


def levels(*values: float, **changes: object) -> list[Level]:
    """Return levels of rope at 128, 256, ...: a value for each."""
    rows = [
        replace(ROW, length=128 * (place + 1), bits_per_byte=value, **changes)  # type: ignore[arg-type]
        for place, value in enumerate(values)
    ]
    return levels_of({"": rows}, "full")


def test_equal_levels_agree() -> None:
    comparison = compare(levels(1.8, 2.5, 3.0), levels(1.8, 2.5, 3.0))
    assert len(comparison.cells) == 3
    assert not comparison.differing and not comparison.incomparable and not comparison.is_empty


def test_one_cell_beyond_the_tolerance_differs_and_is_named() -> None:
    comparison = compare(levels(1.8, 2.5, 3.0), levels(1.8, 2.5211, 3.0199))
    [cell] = comparison.differing
    assert cell.table.length == 256 and cell.difference == pytest.approx(-0.0211) and cell.tolerance == 0.02


def test_three_standard_deviations_over_seeds_may_lie_between() -> None:
    seeds = [replace(ROW, seed=seed, bits_per_byte=2.0 + 0.1 * seed) for seed in range(3)]
    [table] = levels_of({"": seeds}, "full")
    assert (table.seeds, table.seed_sd, table.level) == (3, pytest.approx(0.1), pytest.approx(2.1))
    assert not compare([replace(table, level=2.39)], [table]).differing
    assert compare([replace(table, level=2.41)], [table]).differing


def test_a_level_that_broke_down_agrees_with_one_that_broke_down_too() -> None:
    assert not compare(levels(math.inf), levels(math.inf)).differing
    assert compare(levels(2.0), levels(math.inf)).differing


@pytest.mark.parametrize(
    ("column", "value"),
    [("data_hash", "0ther"), ("target_hash", "0ther"), ("setting", "0ther"), ("torch", "2.14.0")],
)
def test_other_data_targets_training_or_torch_is_not_compared(column: str, value: str) -> None:
    comparison = compare(levels(1.8, 2.5), levels(7.0, 7.0, **{column: value}))
    assert not comparison.cells
    [group] = comparison.incomparable
    assert (group.fact, group.cells, group.table) == (column, 2, value)


def test_another_patch_or_build_of_torch_is_compared() -> None:
    assert compare(levels(1.8, torch="2.13.1+cpu"), levels(1.8)).cells


def test_another_number_of_seeds_is_not_compared() -> None:
    two = levels_of({"": [ROW, replace(ROW, seed=1)]}, "full")
    [group] = compare(levels(1.8), two).incomparable
    assert (group.fact, group.ours, group.table) == ("seeds", "1", "2")


def test_what_we_did_not_score_is_not_compared_and_what_only_we_scored_does_not_count() -> None:
    [group] = compare(levels(1.8), levels(1.8, 2.5)).incomparable
    assert (group.fact, group.cells) == ("nothing there", 1)
    assert not compare(levels(1.8, 2.5), levels(1.8)).incomparable


def test_levels_of_another_size_or_text_are_no_part_of_the_comparison() -> None:
    ours, quick = levels(1.8), [replace(level, variant="quick") for level in levels(9.0)]
    assert compare(ours, [*quick, *levels(9.0, data="files")]).is_empty


def test_a_table_is_read_as_it_was_written_and_keeps_levels_of_other_texts(tmp_path: Path) -> None:
    path, stdlib, files = tmp_path / "study.csv", levels(1.8, 2.5), levels(1.1, data="files")
    write_table(path, stdlib)
    assert read_table(path) == stdlib
    write_table(path, files)
    write_table(path, levels(1.9))
    assert sorted(read_table(path), key=lambda level: level.data) == [*files, *levels(1.9)]


def test_levels_that_lack_seeds_are_not_written(tmp_path: Path) -> None:
    study = Study(
        "toy", tmp_path / "toy.yaml", "A toy", "?", "nobody", 1, (Sweep(["rope"]),), [1.0], (), seeds=2
    )
    both = levels_of({"": [replace(ROW, seed=seed) for seed in range(2)]}, "full")
    [alone] = levels(1.8, score_dtype="bfloat16")
    outcomes = Outcomes(Variant(study), [], None, compare([], []), [*both, alone])
    with pytest.raises(RunError, match=r"toy\.csv is not written: .* rope at 128 .* 1 seeds instead of 2"):
        outcomes.write_table()
    assert not study.table.exists()
    replace(outcomes, ours=both).write_table()
    assert read_table(study.table) == both


def test_a_study_without_a_table_has_no_levels_and_a_damaged_one_is_named(tmp_path: Path) -> None:
    assert read_table(tmp_path / "none.csv") == []
    (tmp_path / "bad.csv").write_text("variant,data\nfull\n")
    with pytest.raises(UserError, match=r"bad\.csv is not a table of a study"):
        read_table(tmp_path / "bad.csv")
