"""The notes below a table."""

from pathlib import Path

import pytest
from support.results import add_run
from support.tables import BREAKING, only


def test_a_note_on_a_missing_number_names_the_line_that_lacks_it(tmp_path: Path) -> None:
    for seed in (0, 1):
        add_run(tmp_path, "learned", {128: 3.0, 256: None if seed else 3.1}, seed=seed)
    table = only(tmp_path, by=("seed",))
    assert any("undefined: learned seed=1 at 256" in note for note in table.notes)
    assert not any("learned seed=0 at 256" in note for note in table.notes)


def test_a_note_lists_a_few_names_and_counts_the_rest(tmp_path: Path) -> None:
    for name in "abcdefg":
        add_run(tmp_path, name, BREAKING)
    for seed in range(3):
        add_run(tmp_path, "z", BREAKING, seed=seed)
    assert any(note.startswith("one seed (a, b, c, d and 3 more)") for note in only(tmp_path).notes)


@pytest.mark.parametrize(("moved", "is_caveat"), [(3.5, True), (3.001, False)])
def test_a_note_says_how_far_the_offset_control_moves_the_level(
    tmp_path: Path, moved: float, is_caveat: bool
) -> None:
    add_run(tmp_path, "rope", {128: 3.0, 256: 3.1})
    add_run(tmp_path, "rope", {256: moved}, control="offset")
    table = only(tmp_path)
    [note] = [note for note in table.notes if note.startswith("offset control: rope")]
    assert f"{moved - 3.0:+.3f}" in note
    assert (note in table.caveats) == is_caveat
