"""What the options of a report choose: rows, lines, their order and baseline; a sweep and its best value."""

import json
import math
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.commands import Command
from support.results import add_run
from support.tables import BREAKING, bits_at, labels, line_of, only, printed, where

from pe_bench.config.schema import Config, EvalConfig, HfModelConfig
from pe_bench.errors import UserError
from pe_bench.report.build import build_tables
from pe_bench.report.groups import Selection, parse_by
from pe_bench.report.statistics import corrected_comparisons, paired_interval
from pe_bench.runs.find import parse_condition
from pe_bench.runs.folder import read_config, write_config
from pe_bench.runs.rows import read_rows, write_rows
from pe_bench.runs.scores import load_scores, save_scores, score_file, with_level

HEAD = "step,tokens,loss,validation_loss,lr,gradient_norm,seconds\n"
Levels = dict[str, dict[int, float | None]]
THREE: Levels = {
    name: {128: 3.0 - place, 256: 3.0 + place, 512: 3.0 + place} for place, name in enumerate(("a", "b", "c"))
}


def test_a_key_that_no_run_has_is_refused_with_the_nearest(rates: Path) -> None:
    with pytest.raises(UserError, match=r"train.l_r.*did you mean 'train.lr'"):
        build_tables(rates, selection=Selection(where=where("train.l_r=1")))
    with pytest.raises(UserError, match=r"--by.*train.l_r"):
        build_tables(rates, selection=Selection(by=("train.l_r",)))
    for word in ("", "length", "setting"):
        with pytest.raises(UserError, match="--by"):
            parse_by(word)


def test_a_key_that_is_null_in_all_runs_is_known(tmp_path: Path) -> None:
    run = add_run(tmp_path, "rope", BREAKING)
    (run / "config.yaml").write_text("train:\n  encoding_lr: null\n")
    with pytest.raises(UserError, match="no score is left by --where train.encoding_lr=x"):
        build_tables(tmp_path, selection=Selection(where=where("train.encoding_lr=x")))
    assert labels(only(tmp_path, by=("train.encoding_lr",))) == ["rope train.encoding_lr=None"]


def test_by_a_training_key_the_values_are_lines_of_one_table(rates: Path) -> None:
    assert len(build_tables(rates)) == 2, "without being asked for they are never ranked together"
    table = only(rates, by=("train.lr",))
    assert labels(table) == [f"{name} train.lr={lr}" for name in ("alibi", "rope") for lr in (0.001, 0.003)]
    assert {line.seeds for line in table.lines} == {2} and table.why == ""


def test_by_an_option_the_seeds_of_8_and_8_0_are_one_line(tmp_path: Path) -> None:
    for seed, base in enumerate(("8", "8.0", "9")):
        label = f"rope base={float(base)}"
        run = add_run(tmp_path, "rope", BREAKING, seed=seed, label=label)
        (run / "config.yaml").write_text(f"encoding:\n  base: {base}\n")
    huge = add_run(tmp_path, "rope", BREAKING, seed=9)
    (huge / "config.yaml").write_text(f"encoding:\n  base: {10**400}\n")
    lines = {line.label: line.seeds for line in only(tmp_path, by=("encoding.base",)).lines}
    assert lines.pop(f"rope encoding.base={10**400}") == 1
    assert lines == {"rope base=8.0 encoding.base=8.0": 2, "rope base=9.0 encoding.base=9.0": 1}


@pytest.mark.parametrize(
    ("sort", "expected", "ranked_at"),
    [
        (None, ["alibi", "rope"], 512),
        ("128", ["rope", "alibi"], 128),
        ("256", ["rope", "alibi"], 256),
        ("parameters", ["rope", "alibi"], None),
        ("tokens_per_second", ["rope", "alibi"], None),
    ],
)
def test_lines_are_in_the_requested_order(
    results: Path, sort: str | None, expected: list[str], ranked_at: int | None
) -> None:
    table = only(results, sort=sort)
    assert (table.ranked_at, labels(table)) == (ranked_at, expected)
    said = f"ranked by bits/byte at {ranked_at}" if ranked_at else f"in order of {sort}"
    assert any(note.startswith(said) for note in table.notes)


def test_what_may_be_several_lines_is_no_baseline_and_a_length_without_a_score_no_order(
    results: Path,
) -> None:
    with pytest.raises(UserError, match="--baseline rope may be several lines: rope seed=0, rope seed=1, "):
        build_tables(results, selection=Selection(by=("seed",), baseline="rope"))
    assert only(results, by=("seed",), baseline="rope seed=1").baseline == "rope seed=1"
    with pytest.raises(UserError, match="--sort 300: nothing was scored at that length; pe-bench eval RUN"):
        build_tables(results, selection=Selection(sort="300"))


def test_a_baseline_needs_no_options_where_only_one_line_has_its_name(tmp_path: Path) -> None:
    levels: dict[int, float | None] = {128: 3.0, 256: 3.1}
    add_run(tmp_path, "alibi", levels)
    add_run(tmp_path, "gemma3 window=32", levels)
    assert only(tmp_path, baseline="gemma3").baseline == "gemma3 window=32"
    add_run(tmp_path, "gemma3 window=64", levels)
    several = "--baseline gemma3 may be several lines: gemma3 window=32, gemma3 window=64; name one of them"
    with pytest.raises(UserError, match=several):
        build_tables(tmp_path, selection=Selection(baseline="gemma3"))
    add_run(tmp_path, "gemma3", levels)
    assert only(tmp_path, baseline="gemma3").baseline == "gemma3"


def test_where_nothing_is_paired_with_the_baseline_there_is_a_reason_and_no_difference(
    tmp_path: Path,
) -> None:
    levels: dict[int, float | None] = {128: 3.0, 256: 3.1}
    add_run(tmp_path, "rope", levels, seed=0)
    add_run(tmp_path, "alibi", levels, seed=1)
    add_run(tmp_path, "t5", {**levels, 1024: 3.0}, seed=0)
    table = only(tmp_path, baseline="rope")
    found = line_of(table, "alibi").records[256].baseline
    assert found is not None and (found.mean, found.interval, found.verdict) == (None, None, "")
    assert "no comparison: alibi at 128, 256: no seed in common with rope" in table.notes
    assert "no comparison: t5 at 1,024: rope has no score at this length" in table.notes


@pytest.mark.parametrize("broken", [math.inf, math.nan])
def test_a_baseline_that_broke_down_makes_no_line_worse(tmp_path: Path, broken: float) -> None:
    add_run(tmp_path, "alibi", {128: 3.0, 256: 3.0})
    run = add_run(tmp_path, "rope", {128: 3.0, 256: 3.0})
    at_training, row = read_rows(run / "eval.csv")
    scores = load_scores(score_file(run, row))
    scores.nll[0] = broken
    save_scores(score_file(run, row), scores)
    write_rows(run / "eval.csv", [at_training, with_level(row, scores)])
    table = only(tmp_path, baseline="rope")
    found = line_of(table, "alibi").records[256].baseline
    assert found is not None and found.verdict == "unclear"
    assert line_of(table, "rope").records[256].verdict == "fails"


def test_a_model_that_gives_no_number_at_its_training_length_fails_beyond_it(tmp_path: Path) -> None:
    run = add_run(tmp_path, "rope", {128: 3.0, 256: 3.0})
    row, beyond = read_rows(run / "eval.csv")
    scores = load_scores(score_file(run, row))
    scores.nll[0] = math.nan
    save_scores(score_file(run, row), scores)
    write_rows(run / "eval.csv", [with_level(row, scores), beyond])
    assert only(tmp_path).lines[0].records[256].verdict == "fails"


def test_differences_from_a_baseline_are_paired_by_seed_and_document(results: Path) -> None:
    table = only(results, baseline="rope")
    assert table.baseline == "rope"
    lines = {line.label: line for line in table.lines}
    assert all(cell.baseline is None for cell in lines["rope"].records.values())
    alibi, rope = (
        [bits_at(run, 256) for run in sorted((results / "runs").glob(f"{name}-*"))]
        for name in ("alibi", "rope")
    )
    found = lines["alibi"].records[256].baseline
    assert found is not None and found.interval == paired_interval(np.stack(alibi) - np.stack(rope))
    assert found.mean == pytest.approx(0.2, abs=1e-6)


def test_a_baselines_verdicts_are_corrected_over_the_lines_at_each_length(results: Path) -> None:
    for number in range(3):
        levels = {length: level + 0.012 for length, level in BREAKING.items()}
        add_run(results, f"t{number}", levels, spread=0.03)
    table = only(results, baseline="rope")
    for length in table.lengths:
        cells = [line.records[length] for line in table.lines if length in line.records]
        compared = [cell.baseline for cell in cells if cell.baseline and cell.baseline.interval]
        intervals = [difference.interval for difference in compared if difference.interval]
        assert [difference.verdict for difference in compared] == corrected_comparisons(intervals)
        assert len(intervals) >= 3 and compared[0].verdict in ("better", "worse")
    with pytest.raises(UserError, match="did you mean 'rope'"):
        build_tables(results, selection=Selection(baseline="rop"))


def test_by_model_hf_models_of_one_text_and_one_tokenizer_are_lines_of_one_table(
    tmp_path: Path,
) -> None:
    for name in ("base", "long"):
        names = {"model": f"hf:{name}", "tokenizer": name, "setting": name, "steps": 0}
        add_run(tmp_path, "rope", BREAKING, **names)
    changes = {"model": "hf:other", "setting": "other", "data_hash": "0ther123456789", "steps": 0}
    add_run(tmp_path, "rope", BREAKING, **changes)
    assert len(build_tables(tmp_path)) == 3
    alone, together = build_tables(tmp_path, selection=Selection(by=("model",)))
    assert labels(together) == ["rope of base (0.82M)", "rope of long (0.82M)"]
    assert together.title[:3] == ["Hugging Face models", "stdlib", "their tokenizer"]
    assert labels(alone) == ["rope of other (0.82M)"]


# The order


@pytest.mark.parametrize(
    ("levels", "ranked_at", "order"),
    [
        (
            {"b": {128: 2.0, 256: 3.0, 512: 1.0}, "c": {128: 3.0, 256: 2.0}, "a": {256: 3.0, 512: None}},
            *(256, ["c", "a", "b"]),
        ),
        # Lines that lack the longest length are below the others, and change no rank of theirs.
        (THREE, 512, ["a", "b", "c"]),
        (
            {**THREE, "learned": {128: 0.5, 256: None, 512: None}, "unscored": {128: 0.4, 256: 0.5}},
            *(512, ["a", "b", "c", "learned", "unscored"]),
        ),
        ({"b": {128: 2.0, 256: 3.0}, "a": {128: 2.0, 256: 4.0, 4096: 5.0}}, 256, ["b", "a"]),
        ({"b": {128: 2.0}, "a": {256: 3.0}}, None, ["a", "b"]),
    ],
)
def test_lines_rank_by_the_longest_length_that_most_have(
    tmp_path: Path, levels: Levels, ranked_at: int | None, order: list[str]
) -> None:
    for name, of_name in levels.items():
        add_run(tmp_path, name, of_name)
    table = only(tmp_path)
    assert (table.ranked_at, labels(table)) == (ranked_at, order)
    assert any(f"ranked by bits/byte at {ranked_at}" in note for note in table.notes) == bool(ranked_at)


def test_levels_on_different_targets_are_not_ranked_and_a_note_says_how_to_rank_them(tmp_path: Path) -> None:
    add_run(tmp_path, "b", {128: 2.0, 256: 3.0})
    add_run(tmp_path, "c", {128: 2.0, 256: 2.0})
    add_run(tmp_path, "a", {128: 3.0, 256: 4.0}, target_hash="0ther")
    for sort, expected in ((None, ["a", "b", "c"]), ("256", ["c", "b", "a"]), ("name", ["a", "b", "c"])):
        table = only(tmp_path, sort=sort)
        assert (table.ranked_at, labels(table)) == (None, expected)
        said = [note for note in table.notes if note.startswith("not ranked")]
        assert all("at 256" in note and "the same eval.* values" in note for note in said)
        assert len(said) == (sort != "name")


# Conditions


def test_conditions_that_cannot_be_met_are_refused() -> None:
    messages = {"seed": "cannot be read", "seed<many": "needs a number", "sead=1": "did you mean 'seed'"}
    for word, message in (messages | {"control=swap": "unknown --where 'control'"}).items():
        with pytest.raises(UserError, match=message):
            parse_condition(word)


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("model.qk_norm=true", True),
        ("model.qk_norm=False", False),
        ("train.from=null", None),
        ("eval.lengths=[16,32]", [16, 32]),
        ("train.betas=[0.9, 0.95]", [0.9, 0.95]),
        ("eval.lengths=[8],[16,32]", [16, 32]),
        ("train.betas=[0.9,1]", [0.9, 1.0]),
        ("encoding.layers=[rope base=3]", ["rope base=3"]),
        ("encoding.layers=[[1,2],[3,4]]", [[1, 2], [3, 4]]),
        ("data.path=True", "True"),
    ],
)
def test_values_are_met_as_a_configuration_spells_them(word: str, value: object) -> None:
    assert parse_condition(word).holds(value)
    assert not parse_condition(word.replace("=", "!=", 1)).holds(value)
    assert not parse_condition(word).holds("other") and not parse_condition(word).holds(10**400)


@pytest.mark.parametrize(
    ("words", "lines", "seeds"),
    [
        (["encoding=rope"], ["rope"], 3),
        (["encoding!=rope"], ["alibi"], 3),
        (["seed<2"], ["alibi", "rope"], 2),
        (["seed=0,2", "encoding=rope,alibi"], ["alibi", "rope"], 2),
        (["parameters>850000"], ["alibi"], 3),
    ],
)
def test_conditions_choose_rows(results: Path, words: list[str], lines: list[str], seeds: int) -> None:
    table = only(results, where=where(*words))
    assert labels(table) == lines and {line.seeds for line in table.lines} == {seeds}


def test_a_condition_on_length_hides_columns_but_keeps_the_reference(results: Path) -> None:
    table = only(results, where=where("length>128"))
    assert table.lengths == (256, 512)
    assert all(cell.change is not None for line in table.lines for cell in line.records.values())
    text = " ".join(printed([table], 80).split())
    assert "levels; changes are from the level at 128, the training length, which is not shown" in text


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """Runs of a custom encoding, in two versions and with options, and of other encodings."""
    for number, label in enumerate(("root@0cba s=0.25", "root@0cba s=1.0", "root@1111", "root@0cba+logn")):
        add_run(tmp_path, "root", BREAKING, code=str(number), label=label)
    add_run(tmp_path, "rope", BREAKING)
    add_run(tmp_path, "rope", {128: 2.7, 512: 2.9}, scored_with="yarn factor=auto")
    return tmp_path


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("encoding=root", {"root@0cba s=0.25", "root@0cba s=1.0", "root@1111"}),
        ("encoding=root@0cba", {"root@0cba s=0.25", "root@0cba s=1.0"}),
        ("encoding=root+logn,root@1111", {"root@0cba+logn", "root@1111"}),
        ("encoding!=root", {"root@0cba+logn", "rope", "rope -> yarn factor=auto"}),
        ("scored_with=yarn", {"rope -> yarn factor=auto"}),
    ],
)
def test_an_encoding_is_chosen_by_its_name_with_or_without_its_code_and_options(
    own: Path, word: str, expected: set[str]
) -> None:
    assert set(labels(only(own, where=where(word)))) == expected


def test_a_baseline_is_the_line_of_the_trained_encoding(own: Path) -> None:
    assert only(own, by=("seed",), baseline="rope").baseline == "rope seed=0"


def test_a_run_whose_configuration_is_damaged_hides_no_other(rates: Path) -> None:
    first, second, *_ = sorted((rates / "runs").glob("*-s0-*"))
    (first / "config.yaml").unlink()
    (second / "config.yaml").write_text("a: &a [1]\nb: [*a,*a]\n")
    tables = build_tables(rates, selection=Selection(where=where("train.lr<0.002")))
    assert labels(tables[0]) == ["alibi", "rope"]


# A sweep


def change_training(run: Path, **changes: object) -> None:
    config = read_config(run)
    write_config(run, replace(config, train=replace(config.train, **changes)))  # pyright: ignore[reportArgumentType]


@pytest.fixture
def report(command: Command, rates: Path) -> Command:
    """Run `pe-bench report` on a sweep in which rope is best at 0.003, and alibi at 0.001."""
    for run in (rates / "runs").iterdir():
        is_high = "\n  lr: 0.003\n" in (run / "config.yaml").read_text()
        loss = 1.0 if is_high == run.name.startswith("rope") else 2.0
        (run / "train.csv").write_text(f"{HEAD}4,1,9,0.5,1,1,1\n6,1,9,,1,1,1\n8,1,9,{loss},1,1,1\n")
    return lambda *arguments: command("report", "--results-dir", str(rates), *arguments)


def test_each_encoding_keeps_the_value_with_the_lowest_validation_loss(report: Command, rates: Path) -> None:
    apart = " ".join(report("--all").out.split())
    command = f"pe-bench report --results-dir {rates} --by train.lr"
    assert "they differ in train.lr (here 0.001)" in apart and command in apart
    for options in ((), ("--markdown", "-"), ("--latex", "-")):
        outcome = report("--best", "train.lr", *options)
        assert outcome.code == 0 and "table 1 of" not in outcome.out
        said = " ".join(outcome.out.replace("%", "").split())
        assert "2 seeds" in said and "mean validation loss at the training length" in said
        assert "alibi 0.001 of 0.001, 0.003; rope 0.003 of 0.001, 0.003" in said


def test_the_note_on_best_values_names_those_of_the_printed_tables(report: Command, rates: Path) -> None:
    for run in (rates / "runs").iterdir():
        if run.name.startswith("alibi"):
            change_training(run, weight_decay=0.2)
    hidden = " ".join(report("--best", "train.lr").out.split())
    assert "other tables: 1" in hidden and hidden.count("of 0.001, 0.003") == 1
    both = " ".join(report("--best", "train.lr", "--all").out.split())
    assert "alibi 0.001 of 0.001, 0.003; rope 0.003 of 0.001, 0.003" in both


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--best", "seed"], "seeds and encodings are not chosen by their results"),
        (["--best", "encoding.base"], "name a key of training"),
        (["--best", "train.lrr"], "did you mean 'train.lr'?"),
        (["--best", "train.lr", "--by", "train.lr"], "exclude each other"),
    ],
)
def test_a_key_that_cannot_be_chosen_by_results_is_refused(
    report: Command, rates: Path, arguments: list[str], message: str
) -> None:
    outcome = report(*arguments)
    assert outcome.code == 2 and message in outcome.line
    run = next((rates / "runs").iterdir())
    (run / "train.csv").unlink()
    assert f"{run.name} has no validation loss" in report("--best", "train.lr").line


def test_the_best_value_is_of_all_seeds_where_each_seed_has_its_own_parent(
    report: Command, rates: Path
) -> None:
    for run in (rates / "runs").iterdir():
        [seed] = re.findall(r"-s(\d)-", run.name)
        change_training(run, from_run=f"parent-s{seed}")
    said = " ".join(report("--best", "train.lr").out.split())
    assert "alibi 0.001 of 0.001, 0.003; rope 0.003 of 0.001, 0.003" in said
    assert said.count("of 0.001, 0.003") == 2, "one choice for each encoding"


def test_runs_that_differ_in_micro_batches_are_in_one_table_by_another_key(rates: Path) -> None:
    run = sorted((rates / "runs").iterdir())[0]
    change_training(run, micro_batches=2)
    assert len(build_tables(rates, selection=Selection(by=("train.lr",)))) == 1


def test_a_value_whose_validation_loss_is_no_number_is_never_the_best(report: Command, rates: Path) -> None:
    for diverged, kept in (("0.001", "0.003"), ("0.003", "0.001")):
        for run in (rates / "runs").iterdir():
            loss = "nan" if f"\n  lr: {diverged}\n" in (run / "config.yaml").read_text() else "2.0"
            (run / "train.csv").write_text(f"{HEAD}8,1,9,{loss},1,1,1\n")
        said = " ".join(report("--best", "train.lr").out.split())
        assert f"alibi {kept} of 0.001, 0.003; rope {kept} of 0.001, 0.003" in said


def test_an_evaluation_of_an_hf_model_that_has_not_ended_is_shown_with_what_is_missing(
    tmp_path: Path, command: Command
) -> None:
    levels = {128: 3.0, 256: 3.1}
    run = add_run(tmp_path, "hf-llama", levels, model="hf:llama", label="rope", steps=0)
    (run / "result.json").unlink()
    options = {"name": "rope", "class": "pe_bench.encodings.rotary.rope:RoPE"}
    hf_model = HfModelConfig("hf:some/llama", "1234", "max_position_embeddings", architecture="Llama")
    lengths = EvalConfig(lengths=[256, 512, 1024])
    write_config(run, Config(options, eval=lengths, hf_model=hf_model))
    where = ("--results-dir", str(tmp_path))
    for arguments in ((), ("hf:some/llama",), ("hf-llama",)):
        shown = command("report", *arguments, *where)
        assert shown.code == 0, shown.err
        assert "+0.100" in shown.out
        assert "not finished: hf:some/llama: 2 of 4 lengths missing" in " ".join(shown.out.split())
    finished = add_run(tmp_path, "hf-llama", levels, model="hf:llama", label="rope", steps=0, setting="0the")
    write_config(finished, Config(options, eval=EvalConfig(lengths=[256]), hf_model=hf_model))
    for name in ("hf:some/llama", "hf-llama"):
        shown = command("report", name, "--json", *where)
        names: list[str] = []
        for table in json.loads(shown.out)["tables"]:
            for line in table["lines"]:
                names += line["runs"]
        assert set(names) == {run.name, finished.name}
    shutil.rmtree(finished)
    (run / "eval.csv").unlink()
    none = command("report", *where)
    assert none.code == 2 and "4 of 4 lengths missing" in none.err and "pe-bench train" not in none.err
