"""The rows that share a table, and the title that says what they have in common."""

from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from support.results import add_run, edit_rows
from support.tables import BREAKING, FLAT, line_of, only, printed

from pe_bench.config.schema import Config, ModelConfig
from pe_bench.errors import RunError
from pe_bench.report.build import build_tables, read_report
from pe_bench.report.columns import to_frame, to_latex
from pe_bench.report.groups import Selection
from pe_bench.report.page import to_html
from pe_bench.runs.folder import write_config


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
    assert "never averaged or ranked together" in printed(tables, details=True)


@pytest.mark.parametrize(
    ("text", "told"), [("run\nx", "is damaged"), (None, "has no scores: make them with")]
)
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


def test_a_level_that_its_scores_do_not_give_is_a_problem_of_every_report(tmp_path: Path) -> None:
    run = add_run(tmp_path, "rope", {64: 3.1, 128: 3.0, 256: 3.1})
    edit_rows(run, lambda row: replace(row, bits_per_byte=1.0) if row.length == 256 else row)
    report = read_report(tmp_path)
    [problem] = report.problems
    assert "paired-256" in problem
    assert "gives 3.100000 bits per byte, and eval.csv of the run has 1.000000" in problem
    assert f"`pe-bench eval {run.name} --results-dir {tmp_path}`" in problem
    said = " ".join(printed(report.tables, 80).split())
    assert "delete eval.csv and score the run again" in said


def test_two_runs_of_one_seed_are_two_lines_and_never_two_seeds(tmp_path: Path) -> None:
    for code in ("1", "2"):
        add_run(tmp_path, "rb", {128: 3.0, 256: 3.0 + int(code)}, code=code)
        add_run(tmp_path, "rb", {128: 3.0, 256: 3.0 + int(code)}, code=code, seed=1)
    for seed in (0, 1):
        add_run(tmp_path, "rope", BREAKING, seed=seed)
    table = only(tmp_path)
    labels = {line.label: line.seeds for line in table.lines}
    apart = {f"rb (s{seed}-5e77da7a{code})": 1 for seed in (0, 1) for code in (1, 2)}
    assert labels == {"rope": 2} | apart
    assert line_of(table, "rb (s0-5e77da7a2)").records[256].levels == pytest.approx((5.0,), abs=1e-6)
    assert any(note.startswith("rb: several runs have the same seed") for note in table.notes)
    assert not any(note.startswith("rope: several") for note in table.notes)
    assert set(to_frame([table])["run"]) >= {"", "rb-s0-5e77da7a1"}


@pytest.mark.parametrize(
    ("model", "parameters", "title"),
    [
        ({}, 820_000, "tiny model (0.8M)"),
        ({"d_model": 96, "n_layers": 2, "n_heads": 3}, 297_024, "tiny, changed (2 layers of 96, 0.3M)"),
        (
            {"name": "small", "d_model": 128, "n_layers": 1, "n_heads": 8, "d_ff": 688},
            96_000,
            "small, changed (1 layer of 128, 0.096M)",
        ),
        ({"qk_norm": True}, 12_400_000, "tiny, changed (qk_norm=True, 12M)"),
        ({"name": "mine", "d_model": 96}, 297_024, "mine model (0.3M)"),
    ],
)
def test_every_title_has_the_models_size_and_how_it_was_changed(
    tmp_path: Path, model: dict[str, object], parameters: int, title: str
) -> None:
    name = str(model.get("name", "tiny"))
    run = add_run(tmp_path, "rope", BREAKING, parameters=parameters, model=name)
    options = {"name": "rope", "class": "pe_bench.encodings.rope:Any"}
    write_config(run, Config(options, model=ModelConfig(**model)))  # pyright: ignore[reportArgumentType]
    [table] = build_tables(tmp_path)
    assert table.title[0] == title
    assert printed([table]).startswith(f"{title} ")
    assert title.replace("_", r"\_") in to_latex([table]) and title in to_html([table])


def test_a_key_that_an_older_version_lacks_counts_as_null_where_lines_differ_by_a_key(tmp_path: Path) -> None:
    for tokens, more in ((1_024_000, {}), (16_384_000, {"source": None})):
        run = add_run(tmp_path, "rope", BREAKING, train_tokens=tokens, setting=f"{tokens:08}"[:8])
        text = yaml.safe_dump({"train": {"tokens": tokens, "lr": 0.005, **more}})
        (run / "config.yaml").write_text(text)
    [table] = build_tables(tmp_path, selection=Selection(by=("train.tokens",)))
    labels = [line.label for line in table.lines]
    assert sorted(labels) == ["rope train.tokens=1024000", "rope train.tokens=16384000"]
    lines = printed([table], 60).splitlines()
    assert any(line.startswith("train.tokens=16384000") for line in lines), "no number is broken"


def test_a_title_has_the_smallest_and_the_largest_size(tmp_path: Path) -> None:
    add_run(tmp_path, "rope", BREAKING)
    add_run(tmp_path, "t5", FLAT, parameters=1_930_000)
    [table] = build_tables(tmp_path)
    assert table.title[0] == "tiny model (0.8M to 1.9M)"
