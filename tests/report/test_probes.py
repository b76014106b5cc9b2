"""Tables of probes, from rows and their scores to text, files, pictures and the page."""

import csv
import io
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from support.needles import AtTheEnd, Copying, Ignorant, Remembering, probe_data, scored_probe
from support.results import add_run
from support.scoring import trained_model

from pe_bench.data.packed import Data
from pe_bench.model.decoder import LanguageModel
from pe_bench.report.build import build_report, probes_of_rows
from pe_bench.report.charts.heat import draw_probes, heat_chart, plot_probes
from pe_bench.report.html.page import to_html
from pe_bench.report.needles import Found, ProbeTable
from pe_bench.report.probes import COLUMNS, probes_to_csv, probes_to_markdown, show_probes
from pe_bench.runs.folder import folders_in
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
    run.parent.mkdir(exist_ok=True)
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


def printed(tables: list[ProbeTable], width: int = 100) -> str:
    text = io.StringIO()
    show_probes(tables, Console(file=text, width=width, force_terminal=True, color_system=None))
    return text.getvalue()


def test_a_model_that_copies_finds_and_one_of_random_weights_is_at_chance(results: Path) -> None:
    table = only_table(results)
    assert (table.lengths, table.depths, table.chance) == ((128, 160), (0.0, 1.0), 1 / 8)
    copier, random = table.lines
    assert (copier.label, copier.seeds, random.label) == ("copier", 2, "random")
    for found in [*copier.whole.values(), *copier.by_depth.values()]:
        assert isinstance(found, Found)
        assert found.accuracy.mean == found.accuracy.high == 1 and found.gain.low > 0
        assert found.by_span == 1
    assert [getattr(found, "verdict", "") for found in copier.whole.values()] == ["finds", "finds"]
    for found in random.whole.values():
        assert isinstance(found, Found)
        assert found.accuracy.low < 1 / 8 < found.accuracy.high and found.verdict in ("chance", "unclear")


def test_few_documents_that_are_all_right_count_by_their_windows(tmp_path: Path) -> None:
    few = probe_data(3, 2_000)
    rows = probed(tmp_path, "copier", Copying(), 0, Probe((128,), 2, 42), few)
    [table] = probes_of_rows(rows, folders_in(tmp_path / "runs"))
    found = table.lines[0].whole[128]
    assert isinstance(found, Found) and found.verdict == "finds"
    assert found.accuracy.low == pytest.approx(0.025 ** (1 / 42)), "depths of one window count once"
    assert found.documents == 3
    assert {row["documents"] for row in csv.DictReader(io.StringIO(probes_to_csv([table])))} == {"3"}


def test_what_depends_on_the_depth_alone_is_no_spread_between_stretches_of_a_document(tmp_path: Path) -> None:
    rows = probed(tmp_path, "half", AtTheEnd(), 0, Probe((128,), 2, 60), probe_data(1, 6_000))
    [table] = probes_of_rows(rows, folders_in(tmp_path / "runs"))
    line = table.lines[0]
    start, end, whole = line.by_depth[128, 0.0], line.by_depth[128, 1.0], line.whole[128]
    assert isinstance(start, Found) and isinstance(end, Found) and isinstance(whole, Found)
    assert start.accuracy.mean < 0.3 and end.accuracy.mean == 1
    assert whole.accuracy.mean == pytest.approx((start.accuracy.mean + 1) / 2)
    assert whole.accuracy.high - whole.accuracy.low < 0.2


def test_a_model_that_only_prefers_the_tokens_of_the_window_does_not_find_spans(tmp_path: Path) -> None:
    rows = probed(tmp_path, "bag", Remembering(), 0, Probe((128,), 3, 40))
    [table] = probes_of_rows(rows, folders_in(tmp_path / "runs"))
    found = table.lines[0].whole[128]
    assert isinstance(found, Found)
    assert found.gain.low > 0 and found.lift.low > 0, "the span makes its tokens likelier"
    assert found.verdict in ("chance", "unclear")


def test_a_model_whose_scores_the_span_does_not_change_is_at_chance(tmp_path: Path) -> None:
    rows = probed(tmp_path, "ignorant", Ignorant(), 0, Probe((128,), 2, 40))
    [table] = probes_of_rows(rows, folders_in(tmp_path / "runs"))
    found = table.lines[0].whole[128]
    assert isinstance(found, Found) and found.gain.high == 0 and found.verdict == "chance"


def test_the_row_over_all_depths_is_the_mean_of_those_of_the_depths(results: Path) -> None:
    line = only_table(results).lines[1]
    for length, whole in line.whole.items():
        parts = [found for (at, _), found in line.by_depth.items() if at == length]
        assert isinstance(whole, Found) and len(parts) == 2
        assert whole.accuracy.mean == pytest.approx(
            np.mean([part.accuracy.mean for part in parts if isinstance(part, Found)])
        )
        assert whole.gain.mean == pytest.approx(
            np.mean([part.gain.mean for part in parts if isinstance(part, Found)])
        )


def test_the_table_has_a_line_for_each_length_and_says_what_its_words_mean(results: Path) -> None:
    lines = printed([only_table(results)]).splitlines()
    assert max(map(len, lines)) <= 100
    [heading] = [place for place, line in enumerate(lines) if line.startswith("encoding")]
    assert lines[heading].split() == [
        "encoding",
        "length",
        "gain",
        "±",
        "accuracy",
        "95",
        "%",
        "without",
        "verdict",
    ]
    assert [line.split()[:2] for line in lines[heading + 2 : heading + 6]] == [
        ["copier", "128"],
        ["160", lines[heading + 3].split()[1]],
        ["random", "128"],
        ["160", lines[heading + 5].split()[1]],
    ]
    assert "100 %" in lines[heading + 2]
    text = " ".join(lines)
    assert "40 windows at each depth: 0 %, 100 %" in text and "chance: 12.5 %" in text


@pytest.mark.parametrize("width", [80, 100])
def test_long_names_are_shown_in_full_and_no_line_is_wider_than_the_terminal(
    results: Path, width: int
) -> None:
    table = only_table(results)
    names = [f"rope -> {name} factor=16.0 original_length=128" for name in ("yarn", "rope_ntk_by_parts")]
    lines = [replace(line, label=name) for line, name in zip(table.lines, names, strict=True)]
    shown = printed([replace(table, lines=tuple(lines))], width).splitlines()
    assert max(map(len, shown)) <= width
    [heading] = [line for line in shown if "verdict" in line and "gain" in line]
    column = "".join(line[: heading.index("length") - 1] for line in shown)
    assert all(name.replace(" ", "") in column.replace(" ", "") for name in names)


def test_a_length_without_a_number_says_why(results: Path) -> None:
    rows = probed(results, "copier", Copying(), seed=2)
    lost = next(row for row in rows if row.length == 128 and row.control == "none")
    for folder in (results / "runs").glob("copier-*"):
        score_file(folder, lost).unlink()
    table = only_table(results)
    assert isinstance(table.lines[0].whole[128], str) and isinstance(table.lines[0].whole[160], Found)
    assert "no number for copier at 128" in " ".join(printed([table]).split())
    assert "missing" in probes_to_csv([table])


def test_a_length_that_only_some_runs_of_a_line_have_says_how_many(results: Path) -> None:
    probed(results, "copier", Copying(), 2, Probe((128,), 2, 40))
    table = only_table(results)
    assert table.notes == ("not all runs have a number: copier at 160 (2 of 3)",)


def test_of_several_sets_of_windows_the_one_of_most_runs_is_shown(results: Path) -> None:
    probed(results, "copier", Copying(), 0, Probe((128, 160), 2, 12))
    table = only_table(results)
    assert table.windows == [40] and not table.notes


def test_a_run_of_other_windows_than_most_is_left_out_and_named(results: Path) -> None:
    probed(results, "alone", Copying(), 0, Probe((128, 160), 2, 12))
    table = only_table(results)
    assert [line.label for line in table.lines] == ["copier", "random"]
    [note] = table.notes
    assert note == (
        "left out: alone at 128, 160, with other windows than most runs: "
        "probe all of them with the same --windows"
    )


def test_a_depth_that_few_runs_have_has_a_place_in_the_map_and_changes_no_number_of_a_length(
    results: Path,
) -> None:
    before = only_table(results).lines[0].whole
    probed(results, "copier", Copying(), 0, Probe((128,), 3, 40))
    table = only_table(results)
    assert table.depths == (0.0, 0.5, 1.0) and table.lines[0].whole == before
    middle = table.lines[0].by_depth[128, 0.5]
    assert isinstance(middle, Found) and middle.accuracy.seeds == 1


def test_the_files_have_a_row_for_each_length_and_depth(results: Path) -> None:
    table = only_table(results)
    rows = list(csv.DictReader(io.StringIO(probes_to_csv([table]))))
    assert tuple(rows[0]) == COLUMNS and len(rows) == 2 * 2 * (1 + 2)
    assert [row["depth"] for row in rows[:3]] == ["", "", "0.0"]
    assert {row["chance"] for row in rows} == {"0.125"} and {row["seeds"] for row in rows} == {"2"}
    markdown = probes_to_markdown([table])
    assert markdown.count("| copier |") == 2 and "| --- | ---: |" in markdown


def test_the_heat_map_has_a_cell_for_each_length_and_depth(results: Path, tmp_path: Path) -> None:
    table = only_table(results)
    chart = heat_chart(table)
    assert (chart.lengths, chart.depths) == (("128", "160"), ("start", "end"))
    copier, random = chart.maps.values()
    assert len(copier) == 4 and {cell.share for cell in copier} == {1.0}
    assert all((cell.share or 0) < 0.5 for cell in random)
    assert {cell.text for cell in copier} == {"100"}
    axes = draw_probes([table]).axes
    assert [len(each.patches) for each in axes] == [4, 4]
    plot_probes([table], tmp_path / "map.png")
    assert (tmp_path / "map.png").read_bytes().startswith(b"\x89PNG")


def test_the_page_has_a_map_and_a_table_and_is_the_same_as_ever_without_a_probe(results: Path) -> None:
    add_run(results, "rope", {128: 2.0, 256: 2.1})
    report = build_report(results)
    page = to_html(report.tables, [], probes=report.probes)
    assert page.count('<section id="probe-') == 1 and page.count("</title></g>") == 8 + 1
    assert "copier at 128 tokens, depth start\naccuracy 100 %" in page
    without = to_html(report.tables, [])
    assert "probe" not in without and ".maps" not in without


def test_levels_are_reported_as_if_there_were_no_probe(results: Path, tmp_path: Path) -> None:
    add_run(results, "rope", {128: 2.0, 256: 2.1})
    report = build_report(results)
    assert [table.key.protocol for table in report.tables] == ["paired"] and len(report.probes) == 1
    alone = tmp_path / "alone"
    add_run(alone, "rope", {128: 2.0, 256: 2.1})
    assert build_report(alone).tables == report.tables and build_report(alone).probes == ()


def test_a_checkpoint_that_was_only_probed_has_its_table(results: Path) -> None:
    assert build_report(results).tables == [] and len(build_report(results).probes) == 1


def test_rows_of_several_runs_make_one_table(tmp_path: Path) -> None:
    rows = [*probed(tmp_path, "copier", Copying()), *probed(tmp_path, "random", None)]
    [table] = probes_of_rows(rows, folders_in(tmp_path / "runs"))
    assert [line.label for line in table.lines] == ["copier", "random"]


def test_names_of_strangers_are_escaped(tmp_path: Path) -> None:
    rows = [
        replace(row, encoding="<b>|x", scored_with="<b>|x") for row in probed(tmp_path, "copier", Copying())
    ]
    known = folders_in(tmp_path / "runs")
    tables = probes_of_rows(rows, known)
    page = to_html([], [], probes=tables)
    assert "<b>|x" not in page and "&lt;b&gt;|x" in page
    assert r"&lt;b>\|x" in probes_to_markdown(tables)
