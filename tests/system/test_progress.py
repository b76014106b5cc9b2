"""Progress is seen without colours, and on a file only where a line says so."""

import sys

from pe_bench.system.progress import BAR_CELLS, bar_text, duration, progress_bar


def test_a_bar_shows_by_its_characters_how_far_it_is():
    assert bar_text(0.0) == "·" * BAR_CELLS and bar_text(1.0) == bar_text(1.2) == "━" * BAR_CELLS
    assert bar_text(0.3).count("━") == 3


def test_the_bar_of_a_terminal_has_it_without_colours(monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("NO_COLOR", "1")
    with progress_bar("train", 4) as bar:
        bar.show(2, "step 2 of 4")
    assert "train ━━━━━····· step 2 of 4" in capsys.readouterr().err


def test_a_file_gets_the_lines_alone(capsys):
    assert not sys.stderr.isatty()
    with progress_bar("train", 4) as bar:
        bar.show(1, "step 1 of 4")
        bar.show(2, "step 2 of 4", "half of it")
    assert capsys.readouterr().err == "train: half of it\n"


def test_times_have_the_units_that_matter():
    assert [duration(seconds) for seconds in (5.4, 65, 7_260)] == ["5 s", "1 min 05 s", "2 h 01 min"]
