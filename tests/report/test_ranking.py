"""The order of the lines, by the longest length that most of them have."""

from pathlib import Path

from support.results import add_run
from support.tables import only

from pe_bench.report.build import build_tables
from pe_bench.report.selection import Selection


def test_encodings_rank_by_the_longest_length_that_most_have(tmp_path: Path) -> None:
    add_run(tmp_path, "b", {128: 2.0, 256: 3.0, 512: 1.0})
    add_run(tmp_path, "c", {128: 3.0, 256: 2.0})
    add_run(tmp_path, "a", {128: 3.0, 256: 3.0, 512: None})
    table = only(tmp_path)
    assert (table.ranked_at, [line.label for line in table.lines]) == (256, ["c", "a", "b"])
    assert any("ranked by bits/byte at 256" in note for note in table.notes)


def test_levels_on_different_targets_are_not_ranked_and_a_note_says_how_to_rank_them(tmp_path: Path) -> None:
    add_run(tmp_path, "b", {128: 2.0, 256: 3.0})
    add_run(tmp_path, "c", {128: 2.0, 256: 2.0})
    add_run(tmp_path, "a", {128: 3.0, 256: 4.0}, target_hash="0ther")
    for sort, expected in ((None, ["a", "b", "c"]), ("256", ["c", "b", "a"]), ("name", ["a", "b", "c"])):
        [table] = build_tables(tmp_path, selection=Selection(sort=sort))
        assert (table.ranked_at, [line.label for line in table.lines]) == (None, expected)
        assert not any("ranked by" in note for note in table.notes)
        said = [note for note in table.notes if note.startswith("not ranked")]
        assert all("at 256" in note and "the same eval.* values" in note for note in said)
        assert len(said) == (sort != "name")


def test_a_line_that_reaches_less_far_is_below_the_others_and_moves_none_of_them(tmp_path: Path) -> None:
    for place, name in enumerate(("a", "b", "c")):
        add_run(tmp_path, name, {128: 3.0 - place, 256: 3.0 + place, 512: 3.0 + place})
    before = [line.label for line in only(tmp_path).lines]
    add_run(tmp_path, "learned", {128: 0.5, 256: None, 512: None})
    add_run(tmp_path, "unscored", {128: 0.4, 256: 0.5})
    table = only(tmp_path)
    assert (table.ranked_at, [line.label for line in table.lines]) == (512, [*before, "unscored", "learned"])
    [note] = [note for note in table.notes if note.startswith("ranked")]
    assert note.endswith("512, the longest length that most have a number at; below: unscored, learned")


def test_one_of_two_that_cannot_reach_a_length_does_not_keep_the_other_from_it(tmp_path: Path) -> None:
    add_run(tmp_path, "rope", {128: 3.0, 512: 5.0})
    add_run(tmp_path, "learned", {128: 2.0, 512: None})
    table = only(tmp_path)
    assert (table.ranked_at, [line.label for line in table.lines]) == (512, ["rope", "learned"])


def test_a_length_that_few_were_scored_at_ranks_nobody(tmp_path: Path) -> None:
    add_run(tmp_path, "b", {128: 2.0, 256: 3.0})
    add_run(tmp_path, "a", {128: 2.0, 256: 4.0, 4096: 5.0})
    assert only(tmp_path).ranked_at == 256


def test_lines_on_one_set_of_targets_are_ranked_whatever_other_lengths_were_scored_on(tmp_path: Path) -> None:
    add_run(tmp_path, "b", {128: 2.0, 256: 3.0})
    add_run(tmp_path, "a", {256: 4.0})
    add_run(tmp_path, "a", {128: 3.0}, target_hash="0ther")
    assert only(tmp_path).ranked_at == 256


def test_without_a_common_length_the_order_is_that_of_names(tmp_path: Path) -> None:
    add_run(tmp_path, "b", {128: 2.0})
    add_run(tmp_path, "a", {256: 3.0})
    table = only(tmp_path)
    assert (table.ranked_at, [line.label for line in table.lines]) == (None, ["a", "b"])
