"""Tables of slices: the same rules on the targets of a slice, and what all targets say of a model."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.results import ROW, add_run
from support.tables import line_of, only, printed
from test_anchor_lines import add_anchors
from test_short import cells_of

from pe_bench.errors import UserError
from pe_bench.report.build import build_tables
from pe_bench.report.groups import Selection
from pe_bench.report.page import describe_result, to_html
from pe_bench.runs.rows import read_rows, write_rows
from pe_bench.runs.scores import (
    KEY,
    NOVEL,
    RECALL,
    Scores,
    keep_slices,
    load_scores,
    save_scores,
    score_file,
    with_level,
)

LENGTHS = (32, 128, 256, 512)
DOCUMENTS = 24
SIZES = 1 + np.arange(DOCUMENTS) % 3  # recall targets of each document, of 4
TARGET = np.tile(np.arange(4), DOCUMENTS)
IS_RECALL = np.repeat(SIZES, 4) > TARGET
# Bits of the recall targets and of the others at each length, of one that reads far and one that does not.
READER = {32: (3.2, 3.2), 128: (3.0, 3.0), 256: (2.6, 3.0), 512: (2.0, 3.0)}
FLAT = {32: (3.2, 3.2), 128: (3.0, 3.0), 256: (3.0, 3.0), 512: (3.0, 3.0)}


def add_sliced(
    results: Path,
    encoding: str,
    bits: dict[int, tuple[float, float]],
    *,
    masks: bool = True,
    noise: float = 0.01,
    **changes: object,
) -> Path:
    """Write a run whose recall targets have other bits than its others, with its swap control at 512."""
    run = add_run(results, encoding, dict.fromkeys(bits, 3.0), **changes)
    rows = read_rows(run / "eval.csv")
    swapped = [replace(row, control="swap") for row in rows if row.length == 512]
    found = []
    for row in [*rows, *swapped]:
        length = row.length if row.control == "none" else row.train_length
        of_recall, of_others = bits[length]
        own = np.random.default_rng([row.length, row.seed]).normal(size=4 * DOCUMENTS) * noise
        nll = (np.where(IS_RECALL, of_recall, of_others) + own) * np.log(2)
        documents = np.repeat(np.arange(DOCUMENTS), 4)
        scores = Scores(nll.astype(np.float32), documents, np.ones(4 * DOCUMENTS, np.int64))
        save_scores(score_file(run, row), scores)
        found.append(with_level(row, scores))
    write_rows(run / "eval.csv", found)
    if masks:
        keep_slices(run, {ROW.target_hash: {RECALL: IS_RECALL, NOVEL: ~IS_RECALL}})
    return run


@pytest.fixture
def results(tmp_path: Path) -> Path:
    for seed in range(3):
        add_sliced(tmp_path, "alibi", READER, seed=seed)
        add_sliced(tmp_path, "rope", FLAT, seed=seed)
    return tmp_path


def test_a_slice_has_levels_changes_and_intervals_of_its_targets_alone(results: Path) -> None:
    table = only(results, slice=RECALL)
    cell = line_of(table, "alibi").records[512]
    wanted = [
        load_scores(score_file(results / "runs" / run, row)).nll[IS_RECALL].mean(dtype=float) / np.log(2)
        for run in line_of(table, "alibi").runs
        for row in read_rows(results / "runs" / run / "eval.csv")
        if (row.length, row.control) == (512, "none")
    ]
    assert cell.levels == pytest.approx(wanted)
    assert (cell.targets, cell.documents) == (SIZES.sum(), DOCUMENTS)
    assert cell.change == pytest.approx(-1.0, abs=0.01) and cell.verdict == "improves"
    assert cell.interval is not None and cell.interval.low < -1.0 < cell.interval.high
    assert line_of(only(results, slice=NOVEL), "alibi").records[512].change == pytest.approx(0, abs=0.01)


def test_the_short_form_has_a_small_table_of_recall_below(results: Path) -> None:
    text = printed(build_tables(results), width=80)
    assert max(map(len, text.splitlines())) <= 80
    whole, recall = text.split("targets: recall (50 % of all)")
    assert "works to" in whole and "works to" not in recall
    headings = ["encoding", "at", "128", "512", "uses", "context"]
    assert next(line for line in recall.splitlines() if line).split() == headings
    assert cells_of(recall, "alibi") == ["3.000", "-1.001v", "yes"]
    assert cells_of(recall, "rope")[-1] == "no"
    assert "the last time more than 128 tokens back" in " ".join(recall.split())


def test_the_page_says_of_recall_what_is_gained_of_what_copying_gains(results: Path) -> None:
    for folder in add_anchors(results):
        keep_slices(folder, {ROW.target_hash: {RECALL: IS_RECALL, NOVEL: ~IS_RECALL}})
    [table] = build_tables(results)
    page = to_html([table])
    assert page.count("<section") == 1
    gains = "On recall targets copying gains 0.300 bits per byte at 512 tokens; alibi gains 1.001."
    assert gains in page
    for name, wanted in ((RECALL, gains), (NOVEL, "")):
        sliced = build_tables(results, selection=Selection(slice=name))
        assert describe_result(sliced[0]) == wanted and "surely hold" not in to_html(sliced)


def test_a_run_without_the_slice_is_named_and_a_slice_of_none_is_refused(results: Path) -> None:
    with pytest.raises(UserError, match=r"--slice key: .* --key-tokens-of JUDGE adds key"):
        build_tables(results, selection=Selection(slice=KEY))
    add_sliced(results, "nope", FLAT, masks=False)
    [table] = build_tables(results)
    assert table.recall is not None
    wanted = "without the slice recall, and so not in this table: nope; pe-bench eval RUN..."
    assert table.recall.lacking.startswith(wanted) and wanted in " ".join(printed([table]).split())
    assert {line.label for line in table.recall.lines} == {"alibi", "rope"}


def test_runs_with_other_targets_of_one_judge_are_never_ranked_or_compared(results: Path) -> None:
    """An interval counts clusters by their bytes, so that equal bytes do not show that targets differ."""
    for run in (results / "runs").iterdir():
        mask = (0 if run.name.startswith("rope") else 1) == TARGET
        keep_slices(run, {ROW.target_hash: {KEY: mask}}, judge="one-judge")
    table = only(results, slice=KEY)
    assert len(table.lines) == 1 and "without the slice key of one-judge, and so not in" in table.lacking
    assert table.lacking.endswith("pe-bench eval RUN... --key-tokens-of one-judge adds it")


def test_what_has_not_learned_is_known_from_all_targets(tmp_path: Path) -> None:
    add_sliced(tmp_path, "slow", dict.fromkeys(LENGTHS, (2.0, 4.0)))
    folders = add_anchors(tmp_path)
    for folder in folders:
        keep_slices(folder, {ROW.target_hash: {RECALL: IS_RECALL}})
    table = only(tmp_path, slice=RECALL)
    [line] = table.lines
    assert line.records[128].level == pytest.approx(2.0, abs=0.01)
    assert line.unlearned == "trigram"
    assert [anchor.label for anchor in table.anchors] == ["(trigram)", "(trigram+copy)"]
    assert {anchor.records[512].targets for anchor in table.anchors} == {SIZES.sum()}


def test_more_targets_are_advised_by_the_whole_set_and_not_by_a_slice_of_it(tmp_path: Path) -> None:
    add_sliced(tmp_path, "rope", FLAT, noise=0.1)
    [table] = build_tables(tmp_path, selection=Selection(slice=RECALL))
    blocks = ROW.targets // (ROW.target_tokens or 1)
    assert f" --targets {4 * blocks}" in " ".join(table.notes)
