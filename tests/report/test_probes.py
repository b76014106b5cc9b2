"""Tables of probes, from rows and their scores to text and the page."""

import io
import math
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console
from support.needles import AtTheEnd, Copying, Ignorant, Remembering, probe_data, scored_probe
from support.results import add_run
from support.scoring import trained_model
from support.tables import interval
from torch import Tensor

from pe_bench.config.schema import LOSES_TEXT
from pe_bench.data.packed import Data
from pe_bench.model.decoder import LanguageModel
from pe_bench.render.grid import to_markdown
from pe_bench.report.build import build_report, probes_of_rows
from pe_bench.report.page import to_html
from pe_bench.report.probes import (
    ProbeNumbers,
    ProbeTable,
    grid_of,
    judge_finding,
    share_interval,
    show_probes,
)
from pe_bench.report.statistics import difference_of_shares
from pe_bench.runs.folder import folder_finder
from pe_bench.runs.rows import Row
from pe_bench.runs.scores import score_file
from pe_bench.scoring.needles import Probe

PROBE = Probe((128, 160), 2, 40)
DATA = probe_data(40, 400)


def probed(
    results: Path,
    name: str,
    model: LanguageModel | None,
    seed: int = 0,
    probe: Probe = PROBE,
    data: Data = DATA,
) -> list[Row]:
    """Add a run of that encoding with the scores of a probe."""
    run = results / "runs" / f"{name}-s{seed}-12345678"
    run.parent.mkdir(parents=True, exist_ok=True)
    trained = trained_model(run, data=data)
    config = replace(trained.config, seed=seed)
    trained = replace(trained, scored_with=name, label=name, config=config)
    rows = scored_probe(run, probe, model, data, trained)
    (run / "config.yaml").write_text("{}\n")
    (run / "result.json").write_text("{}\n")
    return rows


@pytest.fixture(scope="module")
def probed_before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("probed")
    for seed in range(2):
        probed(home, "copier", Copying(), seed)
        probed(home, "random", None, seed)
    return home


@pytest.fixture
def results(probed_before: Path, tmp_path: Path) -> Path:
    shutil.copytree(probed_before, tmp_path / "results")
    return tmp_path / "results"


def only_table(results: Path) -> ProbeTable:
    [table] = build_report(results).probes
    return table


def found_at(table: ProbeTable, label: str, length: int, depth: float | None = None) -> ProbeNumbers:
    found = next(line for line in table.lines if line.label == label).found[length, depth]
    assert isinstance(found, ProbeNumbers)
    return found


def printed(table: ProbeTable) -> str:
    text = io.StringIO()
    show_probes([table], Console(file=text, width=100))
    return " ".join(text.getvalue().split())


def probed_alone(
    folder: Path, name: str, model: LanguageModel, probe: Probe, data: Data = DATA
) -> ProbeTable:
    [table] = probes_of_rows(probed(folder, name, model, 0, probe, data), folder_finder(folder / "runs"))
    return table


def test_a_model_that_copies_finds_and_one_of_random_weights_is_at_chance(results: Path) -> None:
    table = only_table(results)
    assert (table.lengths, table.depths, table.chance) == ((128, 160), (0.0, 1.0), 1 / 8)
    for length in (128, 160):
        for depth in (None, 0.0, 1.0):
            copied = found_at(table, "copier", length, depth)
            assert copied.accuracy.mean == copied.accuracy.high == 1 and copied.gain.low > 0
        random = found_at(table, "random", length)
        assert random.accuracy.low < 1 / 8 < random.accuracy.high and random.verdict in ("chance", "unclear")
        assert found_at(table, "copier", length).verdict == "finds"
        parts = [found_at(table, "random", length, depth) for depth in (0.0, 1.0)]
        assert random.accuracy.mean == pytest.approx(np.mean([part.accuracy.mean for part in parts]))
        assert random.gain.mean == pytest.approx(np.mean([part.gain.mean for part in parts]))


def test_few_documents_that_are_all_right_count_by_their_windows(tmp_path: Path) -> None:
    table = probed_alone(tmp_path, "copier", Copying(), Probe((128,), 2, 42), probe_data(3, 2_000))
    found = found_at(table, "copier", 128)
    assert found.verdict == "finds" and found.documents == 3
    assert found.accuracy.low == pytest.approx(0.025 ** (1 / 42)), "depths of one window count once"


def test_what_depends_on_the_depth_alone_is_no_spread_between_stretches_of_a_document(tmp_path: Path) -> None:
    table = probed_alone(tmp_path, "half", AtTheEnd(), Probe((128,), 2, 60), probe_data(1, 6_000))
    start, end, all_depths = (found_at(table, "half", 128, depth).accuracy for depth in (0.0, 1.0, None))
    assert start.mean < 0.3 and end.mean == 1
    assert all_depths.mean == pytest.approx((start.mean + 1) / 2)
    assert all_depths.high - all_depths.low < 0.2


def test_what_reads_no_span_does_not_find_it(tmp_path: Path) -> None:
    """Neither a model that prefers the window's tokens, nor one whose scores the span does not change."""
    bag = found_at(probed_alone(tmp_path, "bag", Remembering(), Probe((128,), 3, 40)), "bag", 128)
    assert bag.gain.low > 0 and bag.lift.low > 0, "the span makes its tokens likelier"
    assert bag.verdict in ("chance", "unclear")
    ignorant = probed_alone(tmp_path / "other", "ignorant", Ignorant(), Probe((128,), 2, 40))
    found = found_at(ignorant, "ignorant", 128)
    assert (found.gain.high, found.accuracy.mean, found.verdict) == (0, 0, "chance"), "a tie is wrong"
    assert "ignorant 128 0.000" in printed(ignorant)


class Broken(Copying):
    """A model that copies, and whose scores are no number."""

    def nll(self, hidden_ND: Tensor, targets_N: Tensor) -> Tensor:
        return torch.full(targets_N.shape, math.nan)


def test_scores_that_are_no_number_are_no_gain(tmp_path: Path) -> None:
    found = found_at(probed_alone(tmp_path, "broken", Broken(), Probe((128,), 2, 40)), "broken", 128)
    assert (found.gain.mean, found.gain.high, found.verdict) == (-math.inf, -math.inf, "chance")


def test_one_window_leaves_the_same_room_for_one_share_of_all_seeds() -> None:
    alike = share_interval(np.ones((3, 1)), 1)
    assert (alike.low, alike.high) == (pytest.approx(0.025), 1.0)
    assert difference_of_shares(np.zeros((3, 1)), 1).high == pytest.approx(0.975)
    low, high = difference_of_shares(np.zeros((3, 1)), 1).at(0.99)
    assert low < -0.975 and high > 0.975
    assert share_interval(np.ones((1, 1)), 1).low == 0, "one difference alone has an infinite interval"


def test_a_length_without_a_number_says_why(results: Path) -> None:
    rows = probed(results, "copier", Copying(), seed=2)
    lost = next(row for row in rows if row.length == 128 and row.control == "none")
    for folder in (results / "runs").glob("copier-*"):
        score_file(folder, lost).unlink()
    table = only_table(results)
    assert found_at(table, "copier", 160) and isinstance(table.lines[0].found[128, None], str)
    assert "no number for copier at 128" in printed(table)
    assert "missing" in str(table.lines[0].found[128, None])


def test_a_run_of_other_windows_is_left_out_and_a_depth_of_few_changes_no_number(results: Path) -> None:
    before = only_table(results)
    probed(results, "alone", Copying(), 0, Probe((128, 160), 2, 12))
    probed(results, "copier", Copying(), 0, Probe((128,), 3, 40))
    table = only_table(results)
    assert table.depths == (0.0, 0.5, 1.0)
    assert found_at(table, "copier", 128) == found_at(before, "copier", 128)
    assert [note.partition(":")[2][:36] for note in table.notes] == [" alone, with other windows than most"]
    assert "40 windows at each depth" in printed(table)
    assert [line.label for line in table.lines] == ["copier", "random"]


def test_the_page_has_a_table_beside_the_levels(results: Path, tmp_path: Path) -> None:
    assert build_report(results).tables == [], "a Hugging Face model may be probed alone"
    for folder in (results, tmp_path / "alone"):
        add_run(folder, "rope", {128: 2.0, 256: 2.1})
    report, alone = build_report(results), build_report(tmp_path / "alone")
    assert alone.tables == report.tables and alone.probes == () and len(report.probes) == 1
    page = to_html(report.tables, report.probes)
    markdown = to_markdown(map(grid_of, report.probes))
    assert markdown.count("| copier |") == 2 and "| at 0 % | at 100 % |" in markdown
    assert "| finds | 100 % | 100 % |" in markdown
    assert page.count('<section id="probe-') == 1 and "random" in page.partition('<section id="probe-')[2]
    assert '<section id="probe-' not in to_html(report.tables)


# Intervals and verdicts


@pytest.mark.parametrize(
    ("gain", "accuracy", "lift", "verdict"),
    [
        ((0.5, 0.6), (0.91, 0.99), (0.3, 0.5), "finds"),
        ((0.5, 0.6), (0.91, 0.99), (0.00, 0.04), "finds"),  # the language knows nearly all: no room for more
        ((-0.1, 0.6), (0.91, 0.99), (0.00, 0.04), "chance"),  # the language alone answers
        ((0.5, 0.6), (0.89, 0.99), (0.3, 0.5), "partly"),
        ((0.5, 0.6), (0.15, 0.20), (0.01, 0.04), "chance"),  # surely some, but too few to be of use
        ((-0.1, 0.1), (0.10, 0.15), (-0.02, 0.02), "chance"),
        ((-0.1, 0.1), (0.10, 0.40), (-0.02, 0.08), "unclear"),
        ((0.5, 0.6), (0.10, 0.15), (0.08, 0.12), "chance"),  # more than without the span, and a guess
        ((0.5, 0.6), (0.10, 0.30), (0.08, 0.12), "unclear"),
        ((-0.001, 0.009), (0.10, 0.30), (-0.06, 0.06), "chance"),  # the span changes no score
    ],
)
def test_the_verdict_follows_from_three_intervals(
    gain: tuple[float, float], accuracy: tuple[float, float], lift: tuple[float, float], verdict: str
) -> None:
    assert judge_finding(interval(*gain), interval(*accuracy), interval(*lift), 1 / 8) == verdict


@pytest.mark.parametrize(("share", "low", "high"), [(1.0, 0.963, 1.0), (0.0, 0.0, 0.037)])
def test_answers_that_are_all_alike_leave_room_for_what_was_not_seen(
    share: float, low: float, high: float
) -> None:
    shares = share_interval(np.full((3, 100), share), 100)
    assert (shares.mean, shares.low, shares.high) == pytest.approx((share, low, high), abs=1e-3)


def test_a_probe_with_a_tokenizer_that_loses_text_gains_nats_per_token(probed_before: Path) -> None:
    [table] = build_report(probed_before).probes
    assert "gain: bits per byte by which" in " ".join(grid_of(table).notes)
    lossy = replace(table, key=replace(table.key, tokenizer=f"words{LOSES_TEXT}"))
    notes = " ".join(grid_of(lossy).notes)
    assert "gain: nats per token by which" in notes and "bits per byte" not in notes
