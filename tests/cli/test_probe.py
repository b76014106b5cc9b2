"""`pe-bench probe`, and what `report` shows of it."""

import csv
import io
from pathlib import Path

import pytest
from support.commands import Command, only_run

from pe_bench.runs.rows import read_rows
from pe_bench.runs.scores import load_scores, score_file
from pe_bench.scoring import scorer

IN = ("--results-dir", "../results")
SMALL = ("--lengths", "128", "--depths", "2", "--windows", "6", *IN)


def test_a_run_is_probed_shown_again_and_drawn(begin: Command, command: Command, folder: Path) -> None:
    begin("encoding=nope")
    before = command("report", *IN), command("report", *IN, "--csv", "-")
    outcome = command("probe", *SMALL)
    assert outcome.code == 0, outcome.err
    assert "without  verdict" in outcome.out
    assert "6 windows at each depth: 0 %, 100 %" in " ".join(outcome.out.split())
    rows = list(csv.DictReader(io.StringIO(Path("../results/results.csv").read_text())))
    probed = [row for row in rows if row["protocol"] == "probe"]
    assert {(row["control"], row["depth"]) for row in probed} == {
        (control, depth) for control in ("none", "replaced") for depth in ("0.0", "1.0")
    }
    assert {row["chance"] for row in probed} == {"0.125"} and all(row["accuracy"] for row in probed)
    again = command("report", *IN, "--probe", "--html", "page.html", "--markdown", "table.md")
    assert again.code == 0 and "without  verdict" in again.out
    assert 'id="probe-1"' in Path("page.html").read_text() and "| nope |" in Path("table.md").read_text()
    after = command("report", *IN), command("report", *IN, "--csv", "-")
    hint = "what pe-bench probe found: --probe\n"
    assert after[0].out == before[0].out + hint and after[1].out == before[1].out


def test_a_probe_that_is_interrupted_keeps_what_is_scored_and_ends_with_the_same_numbers(
    begin: Command, command: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def numbers() -> dict[tuple[str, ...], tuple[float | None, list[float]]]:
        rows = [row for row in read_rows(run / "eval.csv") if row.protocol == "probe"]
        return {row.key: (row.accuracy, load_scores(score_file(run, row)).nll.tolist()) for row in rows}

    begin("encoding=nope")
    run, scored, score = only_run(folder), list[str](), scorer.score_needles
    unscored = (run / "eval.csv").read_bytes()
    assert command("probe", *SMALL).code == 0
    expected = numbers()
    (run / "eval.csv").write_bytes(unscored)

    def counted(*arguments):
        if len(scored) == 3:
            raise KeyboardInterrupt
        scored.append("")
        return score(*arguments)

    monkeypatch.setattr(scorer, "score_needles", counted)
    outcome = command("probe", *SMALL)
    assert outcome.code == 130 and len(numbers()) == 3
    scored.clear()
    assert command("probe", *SMALL).code == 0 and len(scored) == 1
    assert numbers() == expected and len(expected) == 4
