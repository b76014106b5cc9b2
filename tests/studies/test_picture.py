"""The picture of a study with several budgets shows where each encoding breaks after each of them."""

from pathlib import Path

import pytest
from support.results import add_run

from pe_bench.report.tables.table import Table
from pe_bench.runs.rows import read_rows
from pe_bench.studies import picture
from pe_bench.studies.definition import read_study
from pe_bench.studies.measurements import Measurements
from pe_bench.studies.picture import Break, break_points, draw_study
from pe_bench.studies.progress import Step

HOLDING, BREAKING = {128: 2.0, 256: 2.0, 512: 2.0}, {128: 1.8, 256: 2.5, 512: 3.5}
STUDY = """\
title: Budgets
question: which?
source: nobody
minutes: 1
times: [1, 2, 4]
claims: []
sweeps:
  - {name: long, tokens: 2000, encodings: [rope, alibi]}
  - {name: short, tokens: 1000, encodings: [rope, alibi]}
"""


@pytest.fixture
def found(tmp_path: Path) -> Measurements:
    """Rope breaks after the long training alone, alibi never."""
    steps = []
    for sweep, tokens, levels in (("short", 1000, HOLDING), ("long", 2000, BREAKING)):
        options = {"train_tokens": tokens, "setting": sweep, "spread": 0.001}
        rope, alibi = (
            add_run(tmp_path, "rope", levels, **options),
            add_run(tmp_path, "alibi", HOLDING, **options),
        )
        keys = [row.key for run in (rope, alibi) for row in read_rows(run / "eval.csv")]
        steps.append(Step(sweep, (rope.name, alibi.name), tuple(keys)))
    (tmp_path / "study").mkdir()
    (tmp_path / "study" / "budgets.yaml").write_text(STUDY)
    return Measurements(tmp_path, steps)


def test_break_points_come_in_the_order_of_training_tokens(found: Measurements, tmp_path: Path) -> None:
    points = break_points(read_study("budgets", [tmp_path]), found)
    assert points["rope"] == [Break(1000, 512, is_known=False), Break(2000, 256, is_known=True)]
    assert points["alibi"] == [Break(1000, 512, is_known=False), Break(2000, 512, is_known=False)]


def test_curves_of_other_studies_of_the_same_runs_are_not_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = add_run(tmp_path, "rope", BREAKING)
    own = [row.key for row in read_rows(run / "eval.csv") if row.length != 256]
    add_run(tmp_path, "rope", HOLDING, scored_with="yarn factor=auto")
    found = Measurements(tmp_path, [Step("", (run.name,), tuple(own))])
    (tmp_path / "study").mkdir()
    text = STUDY.replace("name: long, tokens: 2000, ", "").replace("  - {name: short", "# ")
    (tmp_path / "study" / "plain.yaml").write_text(text)
    drawn: list[Table] = []
    monkeypatch.setattr(picture, "plot_tables", lambda tables, path: drawn.extend(tables))
    draw_study(read_study("plain", [tmp_path]), found, tmp_path, tmp_path / "picture.png")
    labels = {line.label for table in drawn for line in table.lines if not line.is_anchor}
    lengths = {length for table in drawn for length in table.lengths}
    assert (labels, lengths) == ({"rope"}, {128, 512})


def test_the_picture_is_a_file_with_the_names_of_the_encodings(found: Measurements, tmp_path: Path) -> None:
    path = tmp_path / "picture.svg"
    draw_study(read_study("budgets", [tmp_path]), found, tmp_path, path)
    text = path.read_text()
    assert all(word in text for word in ("rope", "alibi", "1,000", "2,000", "256", "hollow"))
