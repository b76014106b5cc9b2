"""Runs that go on from others: their names, their lines, and one table for a family."""

import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from safetensors.torch import load_file
from support.commands import Command, tiny_overrides
from support.shown import ROOT_BIAS

import pe_bench
from pe_bench.config.compose import compose_config
from pe_bench.report.build import build_tables
from pe_bench.report.records import Record
from pe_bench.runs.folder import FirstStage, read_config, read_result
from pe_bench.runs.parents import Parent
from pe_bench.runs.rows import Row, read_rows
from pe_bench.scoring.stages import trained_name

FROM = "train.from='encoding=rope'"
LATER = ("encoding=yarn", "train.length=32", "train.steps=3")
# For the first stage. Later stages take its lengths.
EXACT = ("eval.lengths=null", "eval.max_length=256", "eval.controls=auto")


def runs_of(folder: Path, name: str = "") -> list[Path]:
    return sorted((folder / "results" / "runs").glob(f"{name}*"))


def own_rows(run: Path, scored_with: str) -> dict[tuple[int, str, str], Row]:
    rows = [row for row in read_rows(run / "eval.csv") if row.scored_with == scored_with]
    return {(row.length, row.control, row.target_hash): row for row in rows}


def test_a_later_stage_is_a_line_of_the_first_one_s_table_whatever_its_seed(train, folder):
    for seed in (0, 1):
        assert train("encoding=rope", f"seed={seed}", *EXACT).code == 0
        outcome = train(*LATER, FROM, f"seed={seed}", *EXACT)
        assert outcome.code == 0, outcome.err
    later = runs_of(folder, "yarn")
    config = (later[0] / "config.yaml").read_text()
    assert "factor: 2.0" in config and "train_length: 16" in config and "first_length: 16" in config
    assert f"from: {runs_of(folder, 'rope-s0')[0].name}" in config
    [table] = build_tables(folder / "results")
    assert table.key.train_length == 16
    lines = {line.label: line for line in table.lines}
    unchanged, tuned = lines["rope"], lines["rope, then yarn x2 at 32 (192)"]
    assert (unchanged.seeds, tuned.seeds, unchanged.longest, tuned.longest) == (2, 2, 0, 32)
    for length in (16, 32, 64):
        level, before = tuned.records[length].level, unchanged.records[16].level
        assert level is not None and before is not None
        assert tuned.records[length].change == pytest.approx(level - before, abs=1e-9)
        assert tuned.records[length].target_hash == unchanged.records[length].target_hash
    for run, controlled in ((later[0], {64}), (runs_of(folder, "rope-s0")[0], {32, 256})):
        assert {row.length for row in read_rows(run / "eval.csv") if row.control == "swap"} == controlled
    # A later stage is held to the anchors of its first one: its own tokens are not all that it saw.
    assert len(list((folder / "results" / "anchors").glob("*-s*"))) == 3 * len(later)


def test_no_tuning_is_the_scaling_as_it_is_bit_for_bit(train, command, folder):
    assert train("encoding=rope", "encoding.base=500", *EXACT).code == 0
    [source] = runs_of(folder)
    # A rate that moves no float32 weight.
    assert train(*LATER[:2], f"train.from={source.name}", "train.steps=1", "train.lr=1e-30", *EXACT).code == 0
    [tuned] = runs_of(folder, "yarn")
    options = ("--lengths", "16,24,32,64,256", "--results-dir", str(folder / "results"))
    assert command("eval", source.name, "--with", "yarn factor=2", *options).code == 0
    assert command("eval", tuned.name, *options).code == 0
    scored = own_rows(source, "yarn factor=2.0 base=500.0")
    again = own_rows(tuned, "rope base=500.0, then yarn x2 at 32 (64)")
    shared = [key for key in scored if key in again and key[1] == "none"]
    assert {key[0] for key in shared} == {16, 24, 32, 64, 256}
    assert all(scored[key].nll == again[key].nll for key in shared)


def test_stages_make_a_chain_and_a_run_may_stand_beside_them(begin, train, folder):
    assert begin("encoding=rope").code == 0
    assert train(*LATER, FROM).code == 0
    [second] = runs_of(folder, "yarn")
    outcome = train("encoding=nope", f"train.from={second.name}", "train.steps=2", "train.length=64")
    assert outcome.code == 0, outcome.err
    beside = ("train.beside='encoding=rope'", "train.length=32", "train.steps=9")
    assert train("encoding=rope", *beside).code == 0
    # Without positions queries and keys are normed.
    assert train("experiment=drope", FROM, "train.steps=2").code == 0
    [table] = build_tables(folder / "results")
    assert {line.label: line.longest for line in table.lines} == {
        "rope": 0,
        "rope, then yarn x2 at 32 (192)": 32,
        "rope, then yarn x2 at 32 (192), then nope at 64 (128)": 64,
        "rope, trained at 32 (576)": 32,
        "rope, then nope with qk_norm (128)": 16,
    }


def test_only_the_encoding_s_parameters_are_trained(begin, train, folder):
    assert begin("encoding=t5").code == 0
    [source] = runs_of(folder)
    only = (f"train.from={source.name}", "train.only=encoding", "train.steps=2")
    outcome = train("encoding=t5", *only)
    assert outcome.code == 0, outcome.err
    [tuned] = [run for run in runs_of(folder) if run != source]
    before, after = (
        load_file(run / "checkpoints" / f"step-{step:08}" / "weights.safetensors")
        for run, step in ((source, 8), (tuned, 2))
    )
    changed = {name for name in before if not before[name].equal(after[name])}
    assert changed and all(name.startswith("encoding.") for name in changed)
    outcome = train("encoding=nope", *only)
    assert outcome.code == 2 and "nope has no parameters to train" in outcome.line


REFUSED = {
    ("train.from=hf:gpt2",): "hf:gpt2",
    (FROM, "seed=1"): "no finished run with seed=1 on this data with this model meets these conditions",
    ("train.from='train.steps>0'",): "add a condition",
    ("train.from='encoding=alibi'",): "alibi",
    (FROM, "train.beside=x"): "exclude each other",
    ("train.only=encoding",): "give train.from=RUN",
}


def test_a_source_that_is_not_there_or_is_not_the_only_one_is_refused(begin, train, folder):
    assert begin("encoding=rope").code == begin("encoding=t5").code == 0
    for overrides, message in REFUSED.items():
        outcome = train("encoding=yarn", *overrides)
        assert outcome.code == 2 and message in outcome.line, outcome.err
    assert len(runs_of(folder)) == 2


def test_a_source_is_what_it_was_trained_as_wherever_it_lies_and_whatever_it_is_called(begin, train, folder):
    assert begin("encoding=rope").code == begin("encoding=rope", "encoding.base=50").code == 0
    for name, run in zip("ab", runs_of(folder), strict=True):
        shutil.copytree(run, folder / name / "foo")
    first, second = runs_of(folder)
    tuned = []
    for source in ("a/foo", "b/foo", str(first), str(second)):
        before = runs_of(folder, "yarn")
        assert train(*LATER, f"train.from={folder / source}", "train.lr=1e-30").code == 0
        tuned.append([run for run in runs_of(folder, "yarn") if run not in before])
    assert [len(new) for new in tuned] == [1, 1, 0, 0], "a copy under another name is the same source"
    weights = [load_file(next(run.rglob("weights.safetensors"))) for [run] in tuned[:2]]
    assert any(not weights[0][name].equal(weights[1][name]) for name in weights[0])
    assert train("encoding=nope", f"train.beside={folder / 'a' / 'foo'}").code == 0
    assert train("encoding=nope", f"train.beside={folder / 'b' / 'foo'}").code == 0
    assert len(runs_of(folder, "nope")) == 2


def test_the_name_of_a_run_follows_from_its_configuration_and_result(begin, train, folder):
    (folder / "mine.py").write_text(ROOT_BIAS)
    assert begin("encoding=rope", "modifier=[logn]", "seed=2").code == 0
    assert begin("encoding=local_global", "train.optimizer=adamw").code == 0
    assert begin(f"encoding={folder / 'mine.py'}:RootBias").code == 0
    assert train(*LATER, f"train.from={runs_of(folder, 'rope')[0].name}", "seed=2").code == 0
    runs = runs_of(folder)
    assert len(runs) == 4
    for run in runs:
        assert trained_name(run, read_config(run), read_result(run) or {}) == run.name


def test_a_stage_whose_source_is_gone_is_repeated_and_scored_and_never_trained_without_it(
    begin, train, command, folder
):
    for encoding in ("rope", "alibi"):
        assert begin(f"encoding={encoding}").code == 0
    words = {
        "rope": runs_of(folder, "rope")[0].name,
        "alibi": "'encoding=alibi'",
        "copied": str(folder / "elsewhere" / "foo"),
    }
    shutil.copytree(runs_of(folder, "rope")[0], words["copied"])
    stages = {
        name: (*LATER, f"train.from={word}", f"train.lr=1e-{len(name)}") for name, word in words.items()
    }
    for arguments in stages.values():
        assert train(*arguments).code == 0
    runs = runs_of(folder, "yarn")
    kept = {run: (run / "eval.csv").read_bytes() for run in runs}
    for source in [*runs_of(folder, "rope"), *runs_of(folder, "alibi"), folder / "elsewhere"]:
        shutil.rmtree(source)
    for arguments in stages.values():
        outcome = train(*arguments)
        assert outcome.code == 0 and "is already trained" in outcome.err, outcome.err
    assert {run: (run / "eval.csv").read_bytes() for run in runs_of(folder)} == kept
    assert "yarn x2" in command("report", "--results-dir", str(folder / "results")).out
    outcome = command("eval", runs[0].name, "--lengths", "48", "--results-dir", str(folder / "results"))
    assert outcome.code == 0, outcome.err
    outcome = train(*stages["rope"], "train.steps=4")
    assert outcome.code == 2 and f"no finished run '{words['rope']}'" in outcome.line
    for run in runs:
        shutil.rmtree(run / "checkpoints")
    for arguments in stages.values():
        assert train(*arguments).code == 0, "all of it is scored"
        outcome = train(*arguments, "eval.lengths=[16,24,40]")
        assert outcome.code == 2 and re.search("no (finished )?run", outcome.line)
    assert runs_of(folder) == runs


@pytest.mark.parametrize(
    ("tokens", "text"),
    [
        (999, "999"),
        (1_000, "1k"),
        (128_000, "128k"),
        (999_499, "999k"),
        (999_936, "1M"),
        (1_152_000, "1.15M"),
        (999_936_000, "1000M"),
        (1_500_000_000, "1500M"),
    ],
)
def test_a_label_has_the_tokens_of_a_stage_without_an_exponent(tokens, text):
    config = compose_config(["encoding=rope"])
    first = FirstStage("rope", config.train.length, 1, "5e77", config.train.length)
    parent = Parent(Path("rope"), config, "rope", "5e77", first, "rope", "da7a")
    train = replace(config.train, from_run="rope", steps=tokens, tokens=None, batch_tokens=1)
    label, _, _ = parent.stage("yarn", replace(config, train=train), "5e77")
    assert label == f"rope, then yarn ({text})"


@pytest.mark.parametrize("more", [(), ("-m",)])
def test_a_later_stage_keeps_a_typed_default_where_its_parent_has_another_value(
    begin: Command, command: Command, folder: Path, more: tuple[str, ...]
) -> None:
    assert begin("encoding=rope", "eval.half=first").code == 0
    data = (word for word in tiny_overrides(folder) if not word.startswith("eval."))
    assert command("train", *more, *data, *LATER, FROM, "eval={half: both}").code == 0
    [later] = runs_of(folder, "yarn")
    scored = read_config(later).eval
    assert (scored.half, scored.targets, scored.first_length) == ("both", 6, 16)


def test_a_renamed_run_is_extended(begin, folder):
    assert begin("encoding=rope", "seed=3").code == 0
    [run] = runs_of(folder)
    run.rename(run.with_name("my"))
    more = {"tokens": 64, "overrides": "threads=1", "results_dir": folder / "results"}
    extended = pe_bench.extend("my", "2x", "yarn", **more)
    assert [read_config(path).seed for path in extended.runs] == [3, 3]
    assert {line.label for line in extended.tables[0].lines} >= {"rope", "rope, then yarn x2 at 32 (64)"}


def test_a_renamed_first_stage_stays_the_reference_of_its_later_stages_and_is_not_deleted(
    begin, train, command, folder
):
    for seed in (0, 1):
        assert begin("encoding=rope", f"seed={seed}", *EXACT).code == 0
    base = runs_of(folder, "rope-s0")[0].with_name("base0")
    for seed in (0, 1):
        if seed == 1:  # one begins under its name, and the other has been renamed before
            runs_of(folder, "rope-s1")[0].rename(base.with_name("base1"))
        assert train(*LATER, FROM, f"seed={seed}", *EXACT).code == 0
    before = later_records(folder)
    assert {len(record.changes) for record in before.values()} == {2}
    runs_of(folder, "rope-s0")[0].rename(base)
    base.with_name("base1").rename(base.with_name("other1"))
    assert later_records(folder) == before
    kept = command("rm", "base0", "other1", "--yes", "--results-dir", str(folder / "results"))
    assert kept.code == 1 and all(f"kept: {name}, which yarn-" in kept.err for name in ("base0", "other1"))
    assert base.is_dir() and base.with_name("other1").is_dir()


def later_records(folder: Path) -> dict[int, Record]:
    [table] = build_tables(folder / "results")
    [line] = [line for line in table.lines if line.label == "rope, then yarn x2 at 32 (192)"]
    return {length: line.records[length] for length in (16, 32, 64)}
