"""The rows that share a table, its numbers, and its layout."""

import dataclasses
import io
import json
import math
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import yaml
from rich.console import Console
from support.results import add_run, edit_rows, file_of

from pe_bench.config.schema import ModelConfig
from pe_bench.errors import RunError, UserError
from pe_bench.report.cell_text import break_text
from pe_bench.report.export import to_frame
from pe_bench.report.markup import to_latex, to_markdown
from pe_bench.report.statistics import paired_interval
from pe_bench.report.tables.break_point import find_break_point
from pe_bench.report.tables.build import build_tables, run_tables
from pe_bench.report.tables.lines import Line
from pe_bench.report.tables.selection import Selection
from pe_bench.report.tables.table import Table
from pe_bench.report.text import show
from pe_bench.runs.rows import read_rows
from pe_bench.runs.scores import load_scores, save_scores

FLAT = {64: 3.1, 128: 3.0, 256: 3.002, 512: 3.003}
BROKEN = ("degrades", "fails")
BREAKING = {64: 2.9, 128: 2.7, 256: 2.8, 512: 4.0}


def only(results_dir: Path) -> Table:
    [table] = build_tables(results_dir)
    return table


def line_of(table: Table, label: str) -> Line:
    return next(line for line in table.lines if line.label == label)


def printed(tables: list[Table], width: int | None = None) -> str:
    """The detailed form that a pipe gets, or a terminal of this width without colours."""
    file = io.StringIO()
    console = Console(file=file, width=width or 80, force_terminal=width is not None, color_system=None)
    show(tables, console, details=True)
    return file.getvalue()


def test_seeds_are_averaged_and_perplexity_is_that_of_the_mean_nll(tmp_path: Path) -> None:
    runs = [add_run(tmp_path, "rope", {128: 2.0 + seed, 256: 3.0 + seed}, seed=seed) for seed in range(3)]
    line = line_of(only(tmp_path), "rope")
    rows = [row for run in runs for row in read_rows(run / "eval.csv") if row.length == 256]
    assert line.seeds == 3
    assert line.cells[256].bits_per_byte == pytest.approx(np.mean([row.bits_per_byte or 0 for row in rows]))
    assert line.cells[256].bits_per_byte == pytest.approx(4.0, abs=1e-6)
    assert line.cells[256].perplexity == pytest.approx(math.exp(np.mean([row.nll or 0 for row in rows])))


def test_the_change_is_paired_over_the_documents_of_the_score_files(tmp_path: Path) -> None:
    run = add_run(tmp_path, "rope", BREAKING)
    row_of = {row.length: row for row in read_rows(run / "eval.csv")}
    bits = {length: load_scores(file_of(run, row_of[length])).by_document()[1] for length in (128, 256)}
    expected = paired_interval((bits[256] - bits[128])[None, :])
    cell = line_of(only(tmp_path), "rope").cells[256]
    assert cell.interval == expected
    assert cell.change == pytest.approx(0.1, abs=1e-6)
    # Documents differ by 0.2 bits; in pairs that cancels, and the interval is far shorter.
    assert expected.high - expected.low < 0.02


def test_verdicts_and_the_break_point_follow_from_the_intervals(tmp_path: Path) -> None:
    add_run(tmp_path, "rope", BREAKING)
    add_run(tmp_path, "alibi", FLAT, spread=0.001)
    table = only(tmp_path)
    rope, alibi = line_of(table, "rope"), line_of(table, "alibi")
    assert {length: cell.verdict for length, cell in rope.cells.items()} == {
        64: "", 128: "", 256: "degrades", 512: "fails"
    }  # fmt: skip
    assert (rope.break_point.length, alibi.break_point.kind) == (256, "none")


def test_holding_below_the_training_length_is_not_holding_past_it(tmp_path: Path) -> None:
    add_run(tmp_path, "learned", {64: 3.0, 128: 3.0, 256: None}, spread=0.001)
    line = line_of(only(tmp_path), "learned")
    assert (line.cells[64].verdict, line.break_point.kind) == ("", "unknown")


def test_the_training_length_has_no_change(tmp_path: Path) -> None:
    add_run(tmp_path, "rope", BREAKING)
    cell = line_of(only(tmp_path), "rope").cells[128]
    assert (cell.change, cell.interval, cell.missing) == (None, None, "")


def test_an_infinite_score_fails(tmp_path: Path) -> None:
    add_run(tmp_path, "rope", {128: 3.0, 256: math.inf})
    line = line_of(only(tmp_path), "rope")
    assert (line.cells[256].verdict, line.break_point.breaks_at) == ("fails", 256)
    assert "inf" in printed([only(tmp_path)])


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"setting": "0f0f0f0f"}, "training settings"),
        ({"data_hash": "0ther"}, "data hash"),
        ({"tokenizer": "bpe"}, "tokenizer"),
        ({"train_length": 64}, "train length"),
        ({"protocol": "nonoverlapping"}, "protocol"),
        ({"score_dtype": "bfloat16"}, "score dtype"),
    ],
)
def test_rows_that_cannot_be_compared_are_in_separate_tables(
    tmp_path: Path, change: dict[str, object], named: str
) -> None:
    add_run(tmp_path, "rope", BREAKING)
    add_run(tmp_path, "alibi", FLAT, **change)
    tables = build_tables(tmp_path)
    assert [len(table.lines) for table in tables] == [1, 1]
    assert all(named in table.why for table in tables)
    assert "never averaged or ranked together" in printed(tables)


def test_one_table_does_not_mention_others(tmp_path: Path) -> None:
    add_run(tmp_path, "rope", BREAKING)
    add_run(tmp_path, "alibi", FLAT)
    assert only(tmp_path).why == ""


def test_the_title_says_what_was_trained(tmp_path: Path) -> None:
    add_run(tmp_path, "rope", BREAKING)
    assert only(tmp_path).title == (
        "tiny model, data stdlib (da7a0123), tokenizer bytes, "
        "trained at length 128 for 250 steps, paired protocol"
    )


def with_model(run: Path, **sizes: object) -> None:
    """Write the run's configuration: the tiny model with these sizes."""
    model = {**dataclasses.asdict(ModelConfig()), **sizes}
    (run / "config.yaml").write_text(yaml.safe_dump({"model": model}))


def test_the_title_says_which_sizes_are_not_those_of_the_models_name(tmp_path: Path) -> None:
    with_model(add_run(tmp_path, "alibi", FLAT, setting="aaaaaaaa"))
    with_model(add_run(tmp_path, "rope", BREAKING, setting="bbbbbbbb"), d_model=96, d_head=24)
    own = add_run(tmp_path, "nope", FLAT, setting="cccccccc", model="mine")
    with_model(own, name="mine", d_model=96)
    tables = build_tables(tmp_path)
    assert [table.title.partition(",")[0] for table in tables] == [
        "mine model",
        "tiny model",
        "tiny model with d_model=96 d_head=24",
    ]
    assert all("they differ in model, model sizes, and" in table.why for table in tables)


def test_the_title_leaves_out_sizes_that_distinguish_lines(tmp_path: Path) -> None:
    with_model(add_run(tmp_path, "rope", FLAT, setting="aaaaaaaa"), d_ff=96)
    with_model(add_run(tmp_path, "rope", FLAT, setting="bbbbbbbb"), d_ff=96, n_layers=2)
    [table] = build_tables(tmp_path, selection=Selection(by=("model.n_layers",)))
    assert table.title.startswith("tiny model with d_ff=96, data")
    assert {line.label for line in table.lines} == {"rope model.n_layers=4", "rope model.n_layers=2"}


def test_a_run_whose_configuration_is_lost_stays_with_those_of_its_setting(tmp_path: Path) -> None:
    add_run(tmp_path, "alibi", FLAT)
    with_model(add_run(tmp_path, "rope", BREAKING), d_ff=96)
    assert only(tmp_path).title.startswith("tiny model with d_ff=96, data")


def trained_on(run: Path, **changes: object) -> None:
    kernel = "pe-bench's kernel in float32, compiled by c++ 12.2.0"
    found = {"device": "cpu", "processor": "AMD EPYC", "threads": 2, "attention": kernel, **changes}
    (run / "environment.json").write_text(json.dumps(found))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"threads": 1}, "2 threads (rope, nope); 1 thread (alibi)"),
        ({"processor": "Xeon"}, "AMD EPYC (rope, nope); Xeon (alibi)"),
        ({"device": "NVIDIA H200"}, "AMD EPYC (rope, nope); NVIDIA H200 (alibi)"),
        (
            {"attention": "PyTorch's fused kernels and the reference, for there is no compiler"},
            "pe-bench's kernel in float32 (rope, nope); PyTorch's fused kernels and the reference (alibi)",
        ),
        ({"attention": "pe-bench's kernel in float32, compiled by clang 19"}, None),
        ({"attention": {"name": "pe-bench's kernel", "dtype": "float32", "compiler": "clang 19"}}, None),
        (
            {"attention": {"name": "pe-bench's kernel", "dtype": "bfloat16", "compiler": "c++ 12.2.0"}},
            "pe-bench's kernel in float32 (rope, nope); pe-bench's kernel in bfloat16 (alibi)",
        ),
        ({}, None),
    ],
)
def test_conditions_of_tokens_per_second_are_shown_where_they_differ(
    tmp_path: Path, change: dict[str, object], told: str | None
) -> None:
    trained_on(add_run(tmp_path, "rope", {128: 3.0, 256: 3.0}))
    trained_on(add_run(tmp_path, "nope", {128: 3.1, 256: 3.1}))
    trained_on(add_run(tmp_path, "alibi", {128: 3.2, 256: 3.2}), **change)
    notes = [note for note in only(tmp_path).notes if "tokens/s" in note]
    said = f"tokens/s were measured under different conditions: {told}"
    assert notes == ([said] if told is not None else [])


def test_scores_of_two_precisions_are_two_tables_and_the_coarse_one_says_so(tmp_path: Path) -> None:
    run = add_run(tmp_path, "rope", BREAKING)
    assert add_run(tmp_path, "rope", {128: 3.02, 256: 3.04}, score_dtype="bfloat16") == run
    exact, coarse = build_tables(tmp_path)
    assert exact.title.endswith("paired protocol")
    assert coarse.title.endswith("paired protocol, scores in bfloat16")
    assert exact.lengths == (64, 128, 256, 512)
    assert line_of(exact, "rope").cells[256].change == pytest.approx(0.1, abs=1e-6)
    assert line_of(coarse, "rope").cells[256].change == pytest.approx(0.02, abs=1e-6)
    assert line_of(coarse, "rope").cells[256].interval is not None
    frame = to_frame([exact, coarse])
    assert frame["score_dtype"].tolist() == ["float32"] * 4 + ["bfloat16"] * 2
    rows = [row for row in read_rows(run / "eval.csv") if row.score_dtype == "bfloat16"]
    [table] = run_tables(rows, run)
    assert table.lengths == (128, 256), "a row of another precision is no reference"


def test_controls_are_no_lines_of_the_table(tmp_path: Path) -> None:
    add_run(tmp_path, "rope", BREAKING)
    add_run(tmp_path, "rope", {256: 9.0}, control="window")
    assert line_of(only(tmp_path), "rope").cells[256].bits_per_byte == pytest.approx(2.8, abs=1e-6)


def test_unequal_targets_leave_the_change_empty_with_the_reason(tmp_path: Path) -> None:
    add_run(tmp_path, "rope", {128: 3.0, 256: 3.1})
    add_run(tmp_path, "rope", {4096: 5.0}, target_hash="0ther")
    table = only(tmp_path)
    cell = line_of(table, "rope").cells[4096]
    assert (cell.change, cell.verdict, cell.bits_per_byte) == (None, "", pytest.approx(5.0, abs=1e-6))
    assert "no change: rope at 4096: scored on other targets than the training length" in table.notes


def test_a_longer_length_is_compared_on_its_own_targets(tmp_path: Path) -> None:
    add_run(tmp_path, "rope", {128: 3.0, 256: 3.1})
    add_run(tmp_path, "rope", {128: 3.5, 4096: 5.0}, target_hash="0ther")
    line = line_of(only(tmp_path), "rope")
    assert line.cells[4096].change == pytest.approx(1.5, abs=1e-6)
    assert line.cells[256].change == pytest.approx(0.1, abs=1e-6)


def test_of_two_sets_of_targets_a_column_takes_the_one_that_more_rows_share(tmp_path: Path) -> None:
    add_run(tmp_path, "alibi", FLAT)
    add_run(tmp_path, "rope", BREAKING)
    add_run(tmp_path, "rope", {128: 9.0, 4096: 5.0}, target_hash="zzz")
    table = only(tmp_path)
    assert line_of(table, "rope").cells[128].bits_per_byte == pytest.approx(2.7, abs=1e-6)
    assert not any("not all rows" in note for note in table.notes)


def test_a_note_names_the_lines_whose_levels_are_on_different_targets(tmp_path: Path) -> None:
    for name in ("alibi", "nope"):
        add_run(tmp_path, name, FLAT)
    add_run(tmp_path, "rope", BREAKING, target_hash="0ther")
    said = "64, 128, 256, 512: not all rows were scored on the same targets (rope on others)"
    assert any(note.startswith(said) for note in only(tmp_path).notes)


def test_a_length_out_of_reach_shows_its_status_and_its_reason_once(tmp_path: Path) -> None:
    for seed in range(3):
        add_run(tmp_path, "learned", {128: 3.0, 256: None, 512: None}, seed=seed)
    table = only(tmp_path)
    line = line_of(table, "learned")
    assert (line.cells[512].verdict, line.cells[512].bits_per_byte, line.break_point.kind) == (
        "undefined",
        None,
        "unknown",
    )
    assert printed([table]).count("past the table of 128") == 1
    assert "undefined: learned at 256, 512" in printed([table])


def test_seeds_that_lack_a_length_are_not_counted_there(tmp_path: Path) -> None:
    add_run(tmp_path, "rope", {128: 3.0, 256: 3.1}, seed=0)
    add_run(tmp_path, "rope", {128: 3.2}, seed=1)
    table = only(tmp_path)
    cells = line_of(table, "rope").cells
    assert cells[128].levels == pytest.approx((3.0, 3.2), abs=1e-6)
    assert cells[256].levels == pytest.approx((3.1,), abs=1e-6)
    assert "3.100 (n=1)" in printed([table])
    assert "3.100 (n=2)" not in printed([table])


@pytest.mark.parametrize("damage", ["missing", "damaged", "of another row"])
def test_without_its_scores_a_change_has_no_interval_and_says_so(tmp_path: Path, damage: str) -> None:
    run = add_run(tmp_path, "rope", {128: 3.0, 256: 3.1, 512: 4.0})
    paths = {row.length: file_of(run, row) for row in read_rows(run / "eval.csv")}
    if damage == "missing":
        paths[256].unlink()
    else:
        paths[256].write_bytes(paths[512].read_bytes() if damage == "of another row" else b"junk")
    table = only(tmp_path)
    cells = line_of(table, "rope").cells
    assert cells[256].change == pytest.approx(0.1, abs=1e-6)
    assert (cells[256].interval, cells[256].verdict) == (None, "")
    assert cells[512].verdict == "fails"
    [note] = [note for note in table.notes if note.startswith("a change without an interval: rope at 256")]
    assert str(paths[256]) in note


def test_a_scaling_is_compared_with_the_unmodified_run_at_its_training_length(tmp_path: Path) -> None:
    add_run(tmp_path, "rope", {128: 3.0, 256: 3.5})
    add_run(tmp_path, "rope", {128: 3.2, 256: 3.3}, scored_with="yarn factor=4")
    line = line_of(only(tmp_path), "rope -> yarn factor=4")
    assert line.cells[256].change == pytest.approx(0.3, abs=1e-6)
    assert line.cells[128].change == pytest.approx(0.2, abs=1e-6)


def test_a_scaling_without_its_run_has_no_change(tmp_path: Path) -> None:
    add_run(tmp_path, "rope", {128: 3.2, 256: 3.3}, scored_with="yarn")
    assert any("the training length has no score" in note for note in only(tmp_path).notes)


def test_encodings_rank_by_the_longest_length_that_most_have(tmp_path: Path) -> None:
    add_run(tmp_path, "b", {128: 2.0, 256: 3.0, 512: 1.0})
    add_run(tmp_path, "c", {128: 3.0, 256: 2.0})
    add_run(tmp_path, "a", {128: 3.0, 256: 3.0, 512: None})
    table = only(tmp_path)
    assert (table.ranked_at, [line.label for line in table.lines]) == (256, ["c", "a", "b"])
    assert any("ranked by bits/byte at 256" in note for note in table.notes)


def test_levels_on_different_targets_are_not_ranked_and_a_note_says_how_to_rank_them(tmp_path: Path) -> None:
    add_run(tmp_path, "b", {128: 2.0, 256: 3.0})
    add_run(tmp_path, "c", {128: 2.0, 256: 2.0})
    add_run(tmp_path, "a", {128: 3.0, 256: 4.0}, target_hash="0ther")
    for sort, expected in ((None, ["a", "b", "c"]), ("256", ["c", "b", "a"]), ("name", ["a", "b", "c"])):
        [table] = build_tables(tmp_path, selection=Selection(sort=sort))
        assert (table.ranked_at, [line.label for line in table.lines]) == (None, expected)
        assert not any("ranked by" in note for note in table.notes)
        said = [note for note in table.notes if note.startswith("not ranked")]
        assert all("at 256" in note and "the same eval.* values" in note for note in said)
        assert len(said) == (sort != "name")


def test_a_line_that_reaches_less_far_is_below_the_others_and_moves_none_of_them(tmp_path: Path) -> None:
    for place, name in enumerate(("a", "b", "c")):
        add_run(tmp_path, name, {128: 3.0 - place, 256: 3.0 + place, 512: 3.0 + place})
    before = [line.label for line in only(tmp_path).lines]
    add_run(tmp_path, "learned", {128: 0.5, 256: None, 512: None})
    add_run(tmp_path, "unscored", {128: 0.4, 256: 0.5})
    table = only(tmp_path)
    assert (table.ranked_at, [line.label for line in table.lines]) == (512, [*before, "unscored", "learned"])
    [note] = [note for note in table.notes if note.startswith("ranked")]
    assert note.endswith("512, the longest length that most have a number at; below: unscored, learned")


def test_one_of_two_that_cannot_reach_a_length_does_not_keep_the_other_from_it(tmp_path: Path) -> None:
    add_run(tmp_path, "rope", {128: 3.0, 512: 5.0})
    add_run(tmp_path, "learned", {128: 2.0, 512: None})
    table = only(tmp_path)
    assert (table.ranked_at, [line.label for line in table.lines]) == (512, ["rope", "learned"])


def test_a_length_that_few_were_scored_at_ranks_nobody(tmp_path: Path) -> None:
    add_run(tmp_path, "b", {128: 2.0, 256: 3.0})
    add_run(tmp_path, "a", {128: 2.0, 256: 4.0, 4096: 5.0})
    assert only(tmp_path).ranked_at == 256


def test_lines_on_one_set_of_targets_are_ranked_whatever_other_lengths_were_scored_on(tmp_path: Path) -> None:
    add_run(tmp_path, "b", {128: 2.0, 256: 3.0})
    add_run(tmp_path, "a", {256: 4.0})
    add_run(tmp_path, "a", {128: 3.0}, target_hash="0ther")
    assert only(tmp_path).ranked_at == 256


def test_without_a_common_length_the_order_is_that_of_names(tmp_path: Path) -> None:
    add_run(tmp_path, "b", {128: 2.0})
    add_run(tmp_path, "a", {256: 3.0})
    table = only(tmp_path)
    assert (table.ranked_at, [line.label for line in table.lines]) == (None, ["a", "b"])


def test_one_seed_and_few_documents_get_a_note(tmp_path: Path) -> None:
    add_run(tmp_path, "rope", BREAKING, documents=7)
    notes = " ".join(only(tmp_path).notes)
    assert "one seed: results describe these models, not the encodings" in notes
    assert "7 documents only" in notes


def test_three_seeds_and_enough_documents_need_no_warning(tmp_path: Path) -> None:
    for seed in range(3):
        add_run(tmp_path, "rope", BREAKING, seed=seed)
    assert only(tmp_path).notes == ()


def test_runs_and_protocols_can_be_chosen(tmp_path: Path) -> None:
    rope = add_run(tmp_path, "rope", BREAKING)
    add_run(tmp_path, "alibi", FLAT)
    add_run(tmp_path, "alibi", FLAT, protocol="sliding")
    assert [line.label for table in build_tables(tmp_path, [str(rope)]) for line in table.lines] == ["rope"]
    [table] = build_tables(tmp_path, protocol="sliding")
    assert table.key.protocol == "sliding"
    with pytest.raises(UserError, match=r"unknown run 'ropr-s0-.*did you mean 'rope-s0-"):
        build_tables(tmp_path, [rope.name.replace("rope", "ropr")])
    with pytest.raises(UserError, match=r"'nonoverlapping'.*scored under paired, sliding"):
        build_tables(tmp_path, protocol="nonoverlapping")


def test_no_runs_are_an_error_with_the_command_that_makes_one(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="pe-bench train encoding=rope"):
        build_tables(tmp_path)


def test_a_damaged_run_is_named_under_the_tables_of_the_others(tmp_path: Path) -> None:
    bad = add_run(tmp_path, "rope", BREAKING)
    (bad / "eval.csv").write_text("")
    with pytest.raises(RunError, match="is damaged"):
        build_tables(tmp_path)
    add_run(tmp_path, "alibi", FLAT)
    assert any(note.startswith("left out: ") and str(bad) in note for note in only(tmp_path).notes)


@pytest.mark.parametrize(("text", "told"), [("", "is damaged"), (None, "has no scores: make them with")])
def test_a_named_run_without_complete_scores_is_reported_and_hides_no_other(
    tmp_path: Path, text: str | None, told: str
) -> None:
    good, bad = add_run(tmp_path, "rope", BREAKING), add_run(tmp_path, "alibi", FLAT)
    (bad / "eval.csv").unlink()
    if text is not None:
        (bad / "eval.csv").write_text(text)
    [table] = build_tables(tmp_path, [good.name, bad.name])
    assert {line.label for line in table.lines} == {"rope"}
    assert any(note.startswith("left out: ") and bad.name in note and told in note for note in table.notes)
    with pytest.raises(RunError, match=told):
        build_tables(tmp_path, [bad.name])
    for nobody in ("nobody", bad.name[:5]):  # a part of a damaged run's name is no run
        with pytest.raises(UserError, match=f"unknown run '{nobody}'"):
            build_tables(tmp_path, [nobody])


def test_a_row_that_claims_a_number_it_lacks_is_undefined(tmp_path: Path) -> None:
    run = add_run(tmp_path, "rope", BREAKING)
    edit_rows(run, lambda row: replace(row, bits_per_byte=None) if row.length == 512 else row)
    assert line_of(only(tmp_path), "rope").cells[512].verdict == "undefined"


def test_the_table_of_one_run_equals_the_reports_table(tmp_path: Path) -> None:
    run = add_run(tmp_path, "rope", BREAKING)
    assert run_tables(read_rows(run / "eval.csv"), run) == [only(tmp_path)]


def test_the_table_of_a_run_elsewhere_reads_the_scores_in_its_folder(tmp_path: Path) -> None:
    run = add_run(tmp_path, "rope", BREAKING).rename(tmp_path / "elsewhere")
    [table] = run_tables(read_rows(run / "eval.csv"), run)
    assert table.lines[0].cells[256].interval is not None


def test_a_pipe_gets_every_number_in_blocks_of_a_hundred_columns_without_blanks_at_the_end(
    tmp_path: Path,
) -> None:
    label = "yarn factor=4 beta_fast=16 beta_slow=2"
    lengths = (32, 64, 128, 192, 256, 512, 1024, 2048)
    add_run(tmp_path, "rope", dict.fromkeys(lengths, 3.0))
    add_run(tmp_path, "rope", {length: 3 + length / 1000 for length in lengths}, scored_with=label)
    text = printed(build_tables(tmp_path))
    assert all(f"{3 + length / 1000:.3f}" in text for length in lengths)
    assert "820,000" in text and "…" not in text
    assert max(map(len, text.splitlines())) <= 100
    assert all(line == line.rstrip() for line in text.splitlines())


@pytest.mark.parametrize("width", [44, 60, 80])
def test_a_narrow_terminal_gets_every_number_in_blocks_that_fit(tmp_path: Path, width: int) -> None:
    add_run(tmp_path, "rope", {32 * 2**index: 3 + index / 100 for index in range(8)})
    text = printed(build_tables(tmp_path), width)
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text
    for index in range(8):
        assert f" {3 + index / 100:.3f}" in text
    for word in ("820,000", "verdict", "trained", "seeds"):
        assert word in text
    assert text.count("encoding ") >= 2


def test_a_wide_terminal_gets_one_block(tmp_path: Path) -> None:
    add_run(tmp_path, "rope", {32 * 2**index: 3.0 for index in range(8)})
    assert printed(build_tables(tmp_path), 200).count("encoding ") == 1


def rows_of(text: str, label: str) -> dict[str, list[str]]:
    """Return the cells of each row of one encoding, by the row's name."""
    lines = text.splitlines()
    [first] = [number for number, line in enumerate(lines) if line.startswith(label)]
    found = {}
    for line in [lines[first].removeprefix(label), *lines[first + 1 : lines.index("", first)]]:
        name = next(
            name for name in ("bits/byte", "change", "95 % from", "to", "verdict", "vs") if name in line
        )
        found[name] = line.split(name, 1)[1].split()
    return found


def test_verdicts_past_the_training_length_are_spelled_out_and_explained(tmp_path: Path) -> None:
    add_run(tmp_path, "rope", BREAKING)
    text = printed(build_tables(tmp_path))
    rows = rows_of(text, "rope")
    assert rows["change"] == ["+0.200", "+0.100", "+1.300"]
    # Below the training length less context costs by nature, and nothing is judged.
    assert rows["verdict"] == ["degrades", "fails"]
    assert "degrades (by more than 0.01), fails (by more than 0.25)" in " ".join(text.split())
    assert "verdict (from the 95 % interval):" in text
    assert "holds" not in text


def test_facts_of_an_encoding_take_one_line_where_a_terminal_is_narrow(tmp_path: Path) -> None:
    lengths = (16, 32, 64, 128, 256, 512, 1024)
    add_run(tmp_path, "rope", dict.fromkeys(lengths, 3.0), peak_memory_mb=700.0)
    [table] = build_tables(tmp_path)
    console = Console(file=io.StringIO(), width=70, force_terminal=True, color_system=None)
    show([table], console, details=True)
    lines = console.file.getvalue().splitlines()  # pyright: ignore[reportAttributeAccessIssue]
    [facts] = [line for line in lines if line.startswith("rope") and "820,000" in line]
    assert lines[lines.index(facts) + 1].strip() == ""
    assert "MB at 1024: the most that the whole process held" in " ".join(" ".join(lines).split())


def test_a_change_has_its_interval_below_it(tmp_path: Path) -> None:
    add_run(tmp_path, "rope", BREAKING)
    rows = rows_of(printed(build_tables(tmp_path)), "rope")
    cell = line_of(only(tmp_path), "rope").cells[512]
    assert cell.interval is not None
    assert rows["95 % from"][-1] == f"{cell.interval.low:+.3f}"
    assert rows["to"][-1] == f"{cell.interval.high:+.3f}"


def test_colour_repeats_the_verdict(tmp_path: Path) -> None:
    add_run(tmp_path, "rope", BREAKING)
    file = io.StringIO()
    console = Console(file=file, width=160, force_terminal=True, color_system="standard", no_color=False)
    show([only(tmp_path)], console, details=True)
    assert "\x1b[1;31mfails" in file.getvalue()
    assert "\x1b" not in printed(build_tables(tmp_path))


def test_the_frame_is_long_and_keeps_what_is_unknown_empty(tmp_path: Path) -> None:
    add_run(tmp_path, "rope", BREAKING)
    add_run(tmp_path, "learned", {128: 3.0, 256: None})
    frame = to_frame(build_tables(tmp_path)).set_index(["encoding", "length"])
    assert len(frame) == 6
    fails = frame.loc[("rope", 512)]
    assert (fails["verdict"], fails["break_point"], fails["seeds"]) == ("fails", "256", 1)
    assert (fails["holds_to"], fails["breaks_at"]) == (128, 256)
    assert fails["change_low"] < fails["change"] < fails["change_high"]
    undefined = frame.loc[("learned", 256)]
    assert undefined["verdict"] == "undefined"
    assert undefined[["bits_per_byte", "perplexity", "change", "change_low"]].isna().all()


def test_the_frame_says_stride_documents_and_targets(tmp_path: Path) -> None:
    add_run(tmp_path, "rope", {128: 3.0, 256: 3.1}, sliding=96)
    add_run(tmp_path, "rope", {128: 3.0})
    frame = to_frame(build_tables(tmp_path))
    assert frame["stride"].fillna(0).tolist() == [0, 96, 96]
    assert frame["stride_rule"].tolist() == ["", "96", "96"]
    assert frame["targets"].tolist() == [96, 96, 96]
    assert frame["documents"].tolist() == [24, 24, 24]
    assert ",96," in frame.to_csv() and "96.0" not in frame.to_csv()


def test_two_runs_of_one_seed_are_two_lines_and_never_two_seeds(tmp_path: Path) -> None:
    for code in ("1", "2"):
        add_run(tmp_path, "rb", {128: 3.0, 256: 3.0 + int(code)}, code=code)
        add_run(tmp_path, "rb", {128: 3.0, 256: 3.0 + int(code)}, code=code, seed=1)
    for seed in (0, 1):
        add_run(tmp_path, "rope", BREAKING, seed=seed)
    table = only(tmp_path)
    labels = {line.label: line.seeds for line in table.lines}
    assert labels == {
        "rb (s0-5e77da7a1)": 1, "rb (s0-5e77da7a2)": 1, "rb (s1-5e77da7a1)": 1, "rb (s1-5e77da7a2)": 1,
        "rope": 2,
    }  # fmt: skip
    assert line_of(table, "rb (s0-5e77da7a2)").cells[256].levels == pytest.approx((5.0,), abs=1e-6)
    assert any(note.startswith("rb: several runs have the same seed") for note in table.notes)
    assert not any(note.startswith("rope: several") for note in table.notes)
    assert set(to_frame([table])["run"]) >= {"", "rb-s0-5e77da7a1"}


def test_a_copied_run_is_left_out_as_long_as_its_original_is_there(tmp_path: Path) -> None:
    run = add_run(tmp_path, "rope", BREAKING)
    copy = shutil.copytree(run, run.with_name(run.name + "-copy"))
    table = only(tmp_path)
    assert [line.runs for line in table.lines] == [(run.name,)]
    assert f"left out: {copy.name} is a copy of {run.name}" in table.notes
    with pytest.raises(RunError, match=f"{copy.name} is a copy of {run.name}"):
        build_tables(tmp_path, [copy.name])
    shutil.rmtree(run)
    assert [line.runs for line in only(tmp_path).lines] == [(copy.name,)]


def test_another_stride_rule_is_another_table_with_separate_changes(tmp_path: Path) -> None:
    lengths = (64, 128, 256, 512)
    add_run(tmp_path, "rope", dict.fromkeys(lengths, 3.0), sliding="half")
    add_run(tmp_path, "alibi", {64: 3.1, 128: 2.0, 256: 2.5, 512: 2.6}, sliding=32)
    half, fixed = build_tables(tmp_path)
    assert half.title.endswith("sliding protocol, stride half the length")
    assert fixed.title.endswith("sliding protocol, stride 32")
    assert ([line.label for line in half.lines], [line.label for line in fixed.lines]) == (
        ["rope"],
        ["alibi"],
    )
    assert fixed.lines[0].cells[256].change == pytest.approx(0.5, abs=1e-6)
    assert "they differ in stride rule," in fixed.why


def test_lengths_on_another_set_of_targets_are_named(tmp_path: Path) -> None:
    add_run(tmp_path, "rope", {128: 3.0, 256: 3.1})
    add_run(tmp_path, "rope", {128: 3.5, 4096: 5.0, 8192: 5.0}, target_hash="0ther")
    add_run(tmp_path, "alibi", {128: 3.0, 256: 3.1})
    [note] = [note for note in only(tmp_path).notes if "not comparable along the row" in note]
    assert note.startswith("256 (rope): ")


@pytest.mark.parametrize("beyond", ["0", "zzz"])
def test_the_spelling_of_a_hash_does_not_choose_the_set_of_the_training_length(
    tmp_path: Path, beyond: str
) -> None:
    add_run(tmp_path, "rope", {128: 3.0, 256: 3.1})
    add_run(tmp_path, "rope", {128: 3.5, 4096: 5.0}, target_hash=beyond)
    table = only(tmp_path)
    assert table.lines[0].cells[128].bits_per_byte == pytest.approx(3.0, abs=1e-6)
    assert any(note.startswith("4096: scored on another set") for note in table.notes)


def test_a_run_whose_targets_have_no_bytes_has_no_interval(tmp_path: Path) -> None:
    run = add_run(tmp_path, "rope", {128: 3.0, 256: 3.1})
    for row in read_rows(run / "eval.csv"):
        scores = load_scores(file_of(run, row))
        save_scores(file_of(run, row), replace(scores, bytes=np.zeros_like(scores.bytes)))
    edit_rows(run, lambda row: replace(row, bits_per_byte=math.nan))
    table = only(tmp_path)
    assert table.lines[0].cells[256].interval is None
    assert any("stands for a byte" in note for note in table.notes)


def test_markdown_has_one_row_for_each_encoding(tmp_path: Path) -> None:
    add_run(tmp_path, "rope", BREAKING)
    add_run(tmp_path, "a|b", {128: 3.0, 256: None, 512: 3.0}, spread=0.001)
    lines = to_markdown(build_tables(tmp_path), details=True).splitlines()
    headings = (
        "encoding | 64 | 128 (trained) | 256 | 512 | break point | seeds | parameters | tokens/s | MB at 512"
    )
    assert f"| {headings} |" in lines
    cells = "2.900 (+0.200) | 2.700 | 2.800 (+0.100 degrades) | 4.000 (+1.300 fails)"
    assert f"| rope | {cells} | 256 | 1 | 820,000 | 20,000 |  |" in lines
    [escaped] = [line for line in lines if line.startswith(r"| a\|b |")]
    assert "|  | 3.000 | undefined | 3.000 (" in escaped
    assert lines[0].startswith("**tiny model")


@pytest.mark.parametrize(
    ("verdicts", "words", "holds_to", "works_to"),
    [
        ({256: "holds", 512: "improves"}, "none up to 512", 512, 512),
        ({256: "holds", 512: "unclear"}, "none; unclear from 512", 256, 512),
        ({256: "unclear", 512: "holds"}, "none; unclear from 256", 128, 512),
        ({256: "holds", 512: ""}, "none up to 256", 256, 256),
        ({256: "", 512: ""}, "unknown", None, None),
        ({256: "degrades", 512: "holds"}, "256", 128, 128),
        ({256: "holds", 512: "fails"}, "512", 256, 256),
        ({256: "unclear", 512: "fails"}, "≤ 512", 128, 256),
        ({256: "unclear", 512: "fails", 1024: "holds"}, "none; unclear from 256", 128, 256),
        ({256: "", 512: "fails"}, "≤ 512", None, None),
        ({128: "holds", 256: "fails"}, "256", 128, 128),
        ({128: "fails", 256: "fails"}, "128", 0, 0),
        ({}, "unknown", None, None),
    ],
)
def test_the_break_point_says_where_it_is_unclear_and_has_numbers_to_sort_by(
    verdicts: dict[int, str], words: str, holds_to: int | None, works_to: int | None
) -> None:
    breaks_at = int(words.removeprefix("≤ ")) if words[-1].isdecimal() and "none" not in words else None
    cells = {
        length: SimpleNamespace(verdict=verdict, status="ok")
        for length, verdict in {64: "holds", **verdicts}.items()
    }
    found = find_break_point(cells, 128)  # pyright: ignore[reportArgumentType]
    assert break_text(found) == words
    assert (found.holds_to, found.works_to) == (holds_to, works_to)
    assert found.breaks_at == breaks_at


@pytest.mark.parametrize(("status", "works_to"), [("undefined", 128), ("out_of_memory", None)])
def test_a_length_out_of_an_encodings_reach_is_where_it_stops_working_but_not_one_out_of_memory(
    status: str, works_to: int | None
) -> None:
    cells = {256: SimpleNamespace(verdict="undefined", status=status)}
    assert find_break_point(cells, 128).works_to == works_to  # pyright: ignore[reportArgumentType]


def test_the_cost_of_another_encoding_at_the_training_length_has_a_verdict(tmp_path: Path) -> None:
    add_run(tmp_path, "rope", BREAKING)
    add_run(tmp_path, "rope", {128: 3.5, 256: 3.5}, scored_with="yarn factor=16.0")
    table = only(tmp_path)
    line = line_of(table, "rope -> yarn factor=16.0")
    assert line.cells[128].verdict == "fails"
    assert line.break_point.breaks_at == 128


def test_memory_is_that_of_the_longest_length_or_left_out(tmp_path: Path) -> None:
    add_run(tmp_path, "rope", {128: 3.0, 256: 3.1}, peak_memory_mb=700.0)
    add_run(tmp_path, "learned", {128: 3.0, 256: None}, peak_memory_mb=400.0)
    lines = {
        line.split(" | ")[0]: line for line in to_markdown(build_tables(tmp_path), details=True).splitlines()
    }
    assert lines["| encoding"].endswith("| MB at 256 |")
    assert lines["| rope"].endswith("| 700 |")
    assert lines["| learned"].endswith("|  |")


@pytest.mark.parametrize("text", ["first\n\\input{/etc/passwd}", "first\r\n% second"])
def test_a_reason_of_several_lines_stays_one(tmp_path: Path, text: str) -> None:
    run = add_run(tmp_path, "rope", {128: 3.0, 256: None})
    edit_rows(run, lambda row: replace(row, reason=text) if row.status != "ok" else row)
    table = only(tmp_path)
    assert all("\n" not in note and "\r" not in note for note in table.notes)
    for details in (False, True):
        latex = to_latex([table], details=details).splitlines()
        assert all(line.startswith("%") for line in latex[: latex.index(r"\begin{table}")])


@pytest.mark.parametrize("details", [False, True])
def test_a_label_is_escaped_in_markdown(tmp_path: Path, details: bool) -> None:
    add_run(tmp_path, "rope", {128: 3.0, 256: 3.1})
    edit_rows(
        next((tmp_path / "runs").iterdir()), lambda row: replace(row, encoding="<b>&|", scored_with="<b>&|")
    )
    text = to_markdown(build_tables(tmp_path), details=details)
    [row] = [line for line in text.splitlines() if "3.000" in line]
    assert row.startswith(r"| &lt;b>&amp;\| |")
