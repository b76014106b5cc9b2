"""Progress is seen without colours, and on a file only where a line says so."""

from pe_bench.system.progress import BAR_CELLS, bar_text, duration, progress_bar


def test_a_terminal_gets_a_bar_without_colours_and_a_file_the_lines_alone(monkeypatch, capsys):
    assert bar_text(0.0) == "·" * BAR_CELLS and bar_text(1.0) == bar_text(1.2) == "━" * BAR_CELLS
    with progress_bar("train", 4) as bar:
        bar.show(1, "step 1 of 4")
        bar.show(2, "step 2 of 4", "half of it")
    assert capsys.readouterr().err == "train: half of it\n"
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("NO_COLOR", "1")
    with progress_bar("train", 4) as bar:
        bar.show(2, "step 2 of 4")
    assert "train ━━━━━····· step 2 of 4" in capsys.readouterr().err


def test_times_have_the_units_that_matter():
    assert [duration(seconds) for seconds in (5.4, 65, 7_260)] == ["5 s", "1 min 05 s", "2 h 01 min"]
