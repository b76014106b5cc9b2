"""The order of the lines, by the longest length that most of them have."""

from pathlib import Path

import pytest
from support.results import add_run
from support.tables import labels, only

Levels = dict[str, dict[int, float | None]]
THREE: Levels = {
    name: {128: 3.0 - place, 256: 3.0 + place, 512: 3.0 + place} for place, name in enumerate(("a", "b", "c"))
}


@pytest.mark.parametrize(
    ("levels", "ranked_at", "order"),
    [
        (
            {"b": {128: 2.0, 256: 3.0, 512: 1.0}, "c": {128: 3.0, 256: 2.0}, "a": {256: 3.0, 512: None}},
            *(256, ["c", "a", "b"]),
        ),
        # Lines that lack the longest length are below the others, and change no rank of theirs.
        (THREE, 512, ["a", "b", "c"]),
        (
            {**THREE, "learned": {128: 0.5, 256: None, 512: None}, "unscored": {128: 0.4, 256: 0.5}},
            *(512, ["a", "b", "c", "learned", "unscored"]),
        ),
        ({"rope": {128: 3.0, 512: 5.0}, "learned": {128: 2.0, 512: None}}, 512, ["rope", "learned"]),
        ({"b": {128: 2.0, 256: 3.0}, "a": {128: 2.0, 256: 4.0, 4096: 5.0}}, 256, ["b", "a"]),
        ({"b": {128: 2.0}, "a": {256: 3.0}}, None, ["a", "b"]),
    ],
)
def test_lines_rank_by_the_longest_length_that_most_have(
    tmp_path: Path, levels: Levels, ranked_at: int | None, order: list[str]
) -> None:
    for name, of_name in levels.items():
        add_run(tmp_path, name, of_name)
    table = only(tmp_path)
    assert (table.ranked_at, labels(table)) == (ranked_at, order)
    assert any(f"ranked by bits/byte at {ranked_at}" in note for note in table.notes) == bool(ranked_at)


def test_levels_on_different_targets_are_not_ranked_and_a_note_says_how_to_rank_them(tmp_path: Path) -> None:
    add_run(tmp_path, "b", {128: 2.0, 256: 3.0})
    add_run(tmp_path, "c", {128: 2.0, 256: 2.0})
    add_run(tmp_path, "a", {128: 3.0, 256: 4.0}, target_hash="0ther")
    for sort, expected in ((None, ["a", "b", "c"]), ("256", ["c", "b", "a"]), ("name", ["a", "b", "c"])):
        table = only(tmp_path, sort=sort)
        assert (table.ranked_at, labels(table)) == (None, expected)
        said = [note for note in table.notes if note.startswith("not ranked")]
        assert all("at 256" in note and "the same eval.* values" in note for note in said)
        assert len(said) == (sort != "name")
