"""What is known where a verdict over seeds is unclear, and what would settle it."""

from pathlib import Path

from support import tables
from support.results import add_run
from support.tables import only

from pe_bench.report.records import Line


def with_seeds(folder: Path, *changes: float, encoding: str = "rope", spread: float = 0.001) -> Line:
    """Add a run for each seed, with its change at 256 against 128, and return their line."""
    for seed, change in enumerate(changes):
        levels = {32: 3.2, 128: 3.0, 256: 3.0 + change}
        add_run(folder, encoding, levels, seed=seed, spread=spread)
    return tables.line_of(only(folder), encoding)


def printed(folder: Path) -> str:
    return " ".join(tables.printed([only(folder)], 100).split())


def test_what_differs_between_seeds_is_unclear_of_others_and_known_of_these_models(tmp_path: Path) -> None:
    cell = with_seeds(tmp_path, 0.02, 0.1, 0.2).records[256]
    assert (cell.verdict, cell.verdict_of_models) == ("unclear", "degrades")
    assert cell.interval and cell.compared.of_models
    assert cell.interval.low < cell.compared.of_models.low < cell.compared.of_models.high < cell.interval.high
    text = printed(tmp_path)
    assert "+0.107>?" in text and "sure of these models, not of other seeds" in text
    bound = f"unclear changes: rope at 256 (at most {cell.interval.high:+.3f})"
    assert f"{bound}. Most of this is how seeds differ" in text


def test_a_model_that_gains_nothing_within_training_reads_nothing(tmp_path: Path) -> None:
    for name, at_quarter in (("rope", 3.2), ("nope", 3.0)):
        add_run(tmp_path, name, {32: at_quarter, 128: 3.0, 256: 3.0}, spread=0.001)
        add_run(tmp_path, name, {256: 3.0}, control="swap", spread=0.001)
    lines = {line.encoding: line for line in only(tmp_path).lines}
    assert lines["nope"].reads_nothing and not lines["rope"].reads_nothing
    text = printed(tmp_path)
    assert text.count("reads nothing") == 2, "of one line, and what it means"
    assert "reads nothing: no better at 128 than at 32" in text


def test_an_encoding_that_costs_at_the_training_length_breaks_there(tmp_path: Path) -> None:
    add_run(tmp_path, "rope", {128: 3.0, 256: 3.5}, spread=0.001)
    add_run(tmp_path, "rope", {128: 3.4, 256: 3.4}, scored_with="rope_pi factor=16.0", spread=0.001)
    line = next(line for line in only(tmp_path).lines if line.scored_with != "rope")
    assert (line.break_point.breaks_at, line.break_point.holds_to) == (128, 0)
    assert "not at all" in printed(tmp_path)
