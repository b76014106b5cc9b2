"""A table's anchors: two lines that cost no training, and what a model that does not beat them lacks."""

import json
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from support.results import add_run, edit_rows
from support.tables import only, printed
from test_short import cells_of

from pe_bench.report.build import read_report
from pe_bench.report.columns import to_frame, to_markdown
from pe_bench.report.curves import chart_of
from pe_bench.report.page import to_html
from pe_bench.runs.find import ANCHOR_NAMES, COPYING, FREQUENCIES, TRIGRAM

LENGTHS = (32, 128, 256, 512)
LEVELS = {
    "alibi": (2.5, 2.3, 2.3, 2.3),
    "rope": (2.3, 2.0, 2.6, 3.0),
    "slow": (3.1, 2.9, 2.9, 2.9),
    "noise": (4.5, 4.6, 4.6, 4.6),
}
ANCHORS = {FREQUENCIES: (4.5, 4.5, 4.5, 4.5), TRIGRAM: (2.6, 2.6, 2.6, 2.6), COPYING: (2.5, 2.4, 2.2, 2.1)}


def at_lengths(levels: tuple[float, ...]) -> Mapping[int, float]:
    return dict(zip(LENGTHS, levels, strict=True))


def add_anchors(results: Path, **changes: object) -> list[Path]:
    """Write the anchors of a seed in folders of their own, through what writes runs."""
    folders = []
    for label, levels in ANCHORS.items():
        run = add_run(results, label, at_lengths(levels), spread=0.002, model="", **changes)
        folder = results / "anchors" / run.name.replace(label, ANCHOR_NAMES[label])
        shutil.copytree(run, folder)
        shutil.rmtree(run)
        folders.append(folder)
    return folders


@pytest.fixture
def results(tmp_path: Path) -> Path:
    for name, levels in LEVELS.items():
        add_run(tmp_path, name, at_lengths(levels), spread=0.002)
    add_anchors(tmp_path)
    return tmp_path


def test_the_two_anchors_are_the_last_lines_and_are_not_judged(results: Path) -> None:
    table = only(results)
    assert [line.label for line in table.anchors] == [TRIGRAM, COPYING]
    assert {cell.verdict for line in table.anchors for cell in line.records.values()} == {""}
    text = printed([table])
    names = [line.split("  ")[0] for line in text.splitlines()]
    assert names.index(TRIGRAM) == names.index("noise") + 1
    assert [cells_of(text, TRIGRAM)[place] for place in (0, -1)] == ["2.600", "-"]
    assert cells_of(text, COPYING) == ["2.400", "-0.200", "-0.300", "-"]
    assert f"{TRIGRAM}: no encoding" in text and f"{COPYING}: no encoding" in text


def test_the_trigram_is_shown_only_where_a_model_is_no_better(tmp_path: Path) -> None:
    add_run(tmp_path, "alibi", at_lengths(LEVELS["alibi"]), spread=0.002)
    add_anchors(tmp_path)
    table = only(tmp_path)
    for shown in (printed([table]), printed([table], details=True), to_markdown([table]), to_html([table])):
        assert f"{TRIGRAM}" not in shown and COPYING in shown
    assert [anchor.label for anchor in chart_of(table).anchors] == [COPYING]
    assert {*to_frame([table])["encoding"]} == {"alibi", TRIGRAM, COPYING}, "data have both"
    assert cells_of(printed([only(tmp_path, baseline=TRIGRAM)]), TRIGRAM)[0] == "2.600"
    add_run(tmp_path, "slow", at_lengths((2.7, 2.61, 2.6, 2.6)), spread=0.2)
    table = only(tmp_path)
    slow = next(line for line in table.lines if line.label == "slow")
    assert slow.unlearned == "" and TRIGRAM in printed([table]), "a mean above the trigram's is not sure"


def test_what_is_surely_above_the_trigram_is_marked_and_has_no_rank(results: Path) -> None:
    table = only(results)
    assert table.ranked_at == 512
    assert [line.label for line in table.lines] == ["alibi", "rope", "slow", "noise"]
    assert [line.unlearned for line in table.lines] == ["", "", "trigram", "frequencies"]
    assert only(results, sort="128").lines[0].label == "rope"
    text = printed([table])
    assert cells_of(text, "slow")[0] == "2.900*"
    assert cells_of(text, "alibi")[0] == "2.300"
    assert "*: not learned yet (slow): surely worse" in text
    assert cells_of(text, "slow")[-1] == "512"


def test_what_does_not_surely_beat_token_frequencies_has_no_verdict(results: Path) -> None:
    table = only(results)
    noise = table.lines[-1]
    assert {cell.verdict for cell in noise.records.values()} == {""}
    assert noise.break_point.kind == "unknown"
    text = printed([table])
    assert cells_of(text, "noise") == ["4.600*", "0.000*", "0.000*", "-"], "a change, and no verdict"
    assert "*: nothing learned yet (noise): at the training length not surely better than guessing" in text


@pytest.mark.parametrize(
    ("documents", "targets", "is_judged"), [(20, 4096, True), (19, 4096, False), (20, 4095, False)]
)
def test_an_hf_model_is_called_unlearned_only_from_enough_text(
    tmp_path: Path, documents: int, targets: int, is_judged: bool
) -> None:
    size = {"documents": documents, "targets": targets, "steps": 0}
    add_run(tmp_path, "hf-noise", {128: 4.6, 256: 4.6}, model="hf:noise", label="rope", **size)
    add_anchors(tmp_path, **size)
    table = only(tmp_path)
    assert (table.lines[0].unlearned == "frequencies") is is_judged
    assert cells_of(printed([table]), "rope")[0] == "4.600" + "*" * is_judged


def test_anchors_change_no_verdict_and_no_comparison_of_others(results: Path) -> None:
    with_anchors = only(results, baseline="alibi")
    shutil.rmtree(results / "anchors")
    without = only(results, baseline="alibi")
    assert without.anchors == ()
    verdicts = [
        {
            (line.label, cell.length): (cell.verdict, cell.baseline and cell.baseline.verdict)
            for line in table.lines
            for cell in line.records.values()
            if line.label in ("alibi", "rope", "slow")
        }
        for table in (with_anchors, without)
    ]
    assert verdicts[0] == verdicts[1]
    assert [cell.baseline.mean for cell in with_anchors.anchors[0].records.values() if cell.baseline] == (
        pytest.approx([0.1, 0.3, 0.3, 0.3], abs=1e-3)
    )


@pytest.mark.parametrize("other", [{"train_tokens": 9}, {"target_hash": "0e7"}, {"seed": 1}])
def test_counts_of_other_tokens_and_scores_of_other_targets_belong_to_no_line(
    tmp_path: Path, other: dict[str, object]
) -> None:
    add_run(tmp_path, "rope", at_lengths(LEVELS["rope"]))
    add_anchors(tmp_path, **other)
    table = only(tmp_path)
    assert table.anchors == ()
    assert table.lines[0].unlearned == ""


def test_pictures_have_anchors_as_thin_lines(results: Path) -> None:
    chart = chart_of(only(results))
    assert [anchor.label for anchor in chart.anchors] == [TRIGRAM, COPYING]
    assert chart_of(only(results), "change").anchors == ()
    assert chart.notes[-1] == "Thin grey: (trigram), (trigram+copy), counted on the same training tokens."


def add_stage(results: Path, seed: int, setting: str, at_longest: float, lr: float) -> None:
    """Write a later stage of the run of rope, trained at 512 tokens at this rate."""
    levels = {128: 2.2, 512: at_longest}
    changes = {"seed": seed, "train_length": 512, "steps": 9, "setting": setting, "spread": 0.002}
    run = add_run(results, "rope, then yarn", levels, **changes)
    first = {"run": "rope-s0-5e77da7a", "length": 128, "steps": 250, "setting": "5e77136a", "longest": 512}
    (run / "result.json").write_text(json.dumps({"first_stage": first}))
    (run / "config.yaml").write_text(f"train: {{lr: {lr}, from: rope-s{seed}}}\n")


def test_a_later_stage_is_held_to_the_trigram_of_its_first_one_and_named_by_what_differs(
    results: Path,
) -> None:
    add_stage(results, 0, "aaaa0001", 2.2, 0.001)
    add_stage(results, 1, "aaaa0001", 2.2, 0.001)
    add_stage(results, 2, "bbbb0002", 2.9, 0.1)
    lines = {line.label: (line.unlearned, line.seeds) for line in only(results).lines if line.longest}
    assert lines == {
        "rope, then yarn train.lr=0.001": ("", 2),
        "rope, then yarn train.lr=0.1": ("trigram", 1),
    }


@pytest.mark.parametrize("by_name", [True, False])
def test_a_later_stage_without_its_first_stage_in_the_selection_has_the_same_changes_and_marks(
    results: Path, by_name: bool
) -> None:
    add_stage(results, 0, "aaaa0001", 2.2, 0.001)
    add_stage(results, 2, "bbbb0002", 2.9, 0.1)
    whole = {line.label: line for line in only(results).lines if line.longest}
    stages = sorted({run for line in whole.values() for run in line.runs})
    if by_name:
        table = read_report(results, stages).tables[0]
    else:
        table = read_report(results, where=["train.lr<1"]).tables[0]
    assert {line.label for line in table.lines} == {line.label for line in whole.values()}
    for line in table.lines:
        expected = whole[line.label]
        assert line.unlearned == expected.unlearned
        for length, record in line.records.items():
            assert (record.change, record.verdict) == (
                expected.records[length].change,
                expected.records[length].verdict,
            )
    assert table.lines[0].records[128].change == pytest.approx(0.2, abs=1e-3), "the first stage has 2.0"


def test_later_stages_that_differ_in_steps_are_lines_of_their_own(results: Path) -> None:
    add_stage(results, 0, "aaaa0001", 2.2, 0.001)
    add_stage(results, 1, "aaaa0001", 2.2, 0.001)
    for run in (results / "runs").glob("rope, then yarn-s1-*"):
        edit_rows(run, lambda row: replace(row, steps=10))
    lines = [line.label for line in only(results).lines if line.longest]
    assert sorted(lines) == ["rope, then yarn steps=10", "rope, then yarn steps=9"]


def test_changes_from_a_first_stage_that_is_gone_are_said_to_be_from_the_stages_own_level(
    results: Path,
) -> None:
    add_stage(results, 0, "aaaa0001", 2.3, 0.001)
    for run in (results / "runs").glob("rope-s0-*"):
        shutil.rmtree(run)
    [stage] = [run.name for run in (results / "runs").glob("rope, then yarn-*")]
    table = read_report(results, [stage]).tables[0]
    assert table.lines[0].records[512].change == pytest.approx(0.1, abs=1e-3)
    said = " ".join(printed([table], 80).split())
    assert "unchanged model (rope, then yarn): changes are from the line's own level" in said
    assert "change from 128 on the same text" in said
