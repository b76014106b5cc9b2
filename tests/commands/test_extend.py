"""`extend`: a family of runs from one command, in one table and one picture."""

import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from filelock import FileLock
from support.commands import Command

import pe_bench
from pe_bench.cli.tables import details_command
from pe_bench.commands import extend
from pe_bench.config.schema import EvalConfig
from pe_bench.runs.find import find_run
from pe_bench.runs.folder import read_config
from pe_bench.runs.rows import read_rows
from pe_bench.runs.typed import tags_of
from pe_bench.scoring import stages
from pe_bench.scoring.protocols import Plan
from pe_bench.scoring.scorer import Scored, Scorer
from pe_bench.scoring.targets import TargetBlocks

SEEDS = ("seed=0", "seed=1")
SCORED = ("eval.lengths=null", "eval.max_length=256")


def extended(command: Command, folder: Path, *arguments: str):
    return command("extend", "rope", "threads=1", *arguments, "--results-dir", str(folder / "results"))


def test_a_family_is_scored_tuned_and_trained_from_the_start_and_all_of_it_is_reused(
    train: Command, command: Command, folder: Path
) -> None:
    for seed in SEEDS:
        assert train("encoding=rope", seed, *SCORED).code == 0
    arguments = ("--to", "2x", "--with", "yarn", "--tokens", "256", "--long")
    outcome = extended(command, folder, *arguments)
    assert outcome.code == 0, outcome.err
    assert "has no effect" not in outcome.err, "nobody typed such a key"
    assert len(list((folder / "results" / "sweeps").iterdir())) == 1, "all stages are jobs of one"
    runs = sorted((folder / "results" / "runs").iterdir())
    pe_bench.extend("rope", "2x", "rope base=500", results_dir=folder / "results")
    more = {"tokens": 256, "long": True, "overrides": "threads=1"}
    family = pe_bench.extend("rope", "2x", "yarn", results_dir=folder / "results", **more)
    assert sorted(runs) == sorted((folder / "results" / "runs").iterdir()), "nothing was trained again"
    [table] = family.tables
    assert {line.label: (line.seeds, line.longest) for line in table.lines} == {
        "rope": (2, 0),
        "rope -> yarn factor=2.0": (2, 0),
        "rope, then yarn x2 at 32 (256)": (2, 32),
        "rope, trained at 32 (768)": (2, 32),
    }
    rows = [row for run in runs for row in read_rows(run / "eval.csv")]
    assert len({row.target_hash for row in rows}) == 1, "all lines are of the same targets"
    for run in runs:
        config = read_config(run)
        stage = config.train
        assert config.seed == int(run.name.split("-s")[1][0])
        assert f"-s{config.seed}-" in (stage.from_run or stage.beside or run.name)
        assert (stage.lr, stage.warmup_steps == 1) == ((0.001, True) if stage.from_run else (0.005, False))
    family.plot(folder / "family.png")
    assert (folder / "family.png").stat().st_size > 1_000 and (folder / "results" / "extend.png").exists()


def test_runs_of_any_name_are_extended_and_a_later_stage_has_their_seeds(
    begin: Command, command: Command, folder: Path
) -> None:
    runs = folder / "results" / "runs"
    for seed, name in (("seed=3", "best"), ("seed=4", "a-sX-b")):
        assert begin("encoding=rope", seed, *SCORED).code == 0
        [made] = runs.glob("rope-s*")
        made.rename(runs / name)
    arguments = ("--to", "2x", "--with", "yarn", "--with", "+logn", "--tokens", "64", "--long")
    outcome = command("extend", "best", "a-sX-b", *arguments, "--results-dir", str(folder / "results"))
    assert outcome.code == 0, outcome.err
    stages = [read_config(run) for run in runs.iterdir() if run.name not in ("best", "a-sX-b")]
    parents = sorted((stage.train.from_run or stage.train.beside, stage.seed) for stage in stages)
    assert parents == [("a-sX-b", 4)] * 3 + [("best", 3)] * 3


def test_a_launcher_s_wrong_key_is_refused_before_a_run_is_scored(
    begin: Command, command: Command, folder: Path
) -> None:
    assert begin("encoding=rope", *SCORED).code == 0
    before = {path: path.read_bytes() for path in (folder / "results").rglob("*") if path.is_file()}
    launcher = ("hydra/launcher=joblib", "hydra.launcher.n_job=2")
    outcome = extended(command, folder, "--to", "2x", "--with", "yarn", "--tokens", "64", *launcher)
    assert outcome.code == 2 and "Could not override 'hydra.launcher.n_job'" in outcome.line
    after = {path: path.read_bytes() for path in (folder / "results").rglob("*") if path.is_file()}
    assert after == before


def test_typed_keys_hold_for_each_stage_and_several_values_make_several(
    begin: Command, command: Command, folder: Path
) -> None:
    assert begin("encoding=rope", *SCORED).code == 0
    typed = ("train.lr=0.002,0.004", "encoding.base=500", "experiment=quick", "eval.controls=none")
    arguments = ("--to", "2x", "--with", "yarn", "--tokens", "64", "--long", *typed)
    outcome = extended(command, folder, *arguments)
    assert outcome.code == 0, outcome.err
    assert "encoding=yarn base=500.0 train.lr=0.002: done" in outcome.err
    stages = [read_config(run) for run in (folder / "results" / "runs").iterdir()]
    stages = [stage for stage in stages if stage.train.length == 32]
    assert sorted((stage.encoding["name"], stage.train.lr) for stage in stages) == [
        *(("rope", 0.002), ("rope", 0.004), ("yarn", 0.002), ("yarn", 0.004)),
    ]
    for stage in stages:
        assert (stage.encoding["base"], stage.train.steps) == (500, 1 if stage.train.from_run else 9)
        assert (stage.eval.controls, stage.eval.max_length) == ("none", 256), "those of the run, to compare"


def test_a_batch_of_another_size_trains_on_as_many_tokens(
    begin: Command, command: Command, folder: Path
) -> None:
    assert begin("encoding=rope", *SCORED).code == 0
    arguments = ("--to", "2x", "--with", "yarn", "--tokens", "320", "--long", "train.batch_tokens=32")
    assert extended(command, folder, *arguments).code == 0
    first, *stages = sorted(
        (read_config(run).train for run in (folder / "results" / "runs").iterdir()),
        key=lambda train: (train.length, train.total_steps),
    )
    both = first.total_steps * first.batch_tokens + 320
    assert [stage.total_steps * stage.batch_tokens for stage in stages] == [320, both]


def test_further_training_has_the_precision_and_the_margin_of_its_run(begin: Command, folder: Path) -> None:
    assert begin("encoding=rope", *SCORED, "precision=bfloat16", "report.margin=0.05").code == 0
    more = {"tokens": 64, "overrides": "threads=1", "results_dir": folder / "results"}
    family = pe_bench.extend("rope", "2x", "yarn", **more)
    assert [read_config(run).precision for run in family.runs] == ["bfloat16"] * 2
    assert [table.margin for table in family.tables] == [0.05]


@pytest.mark.parametrize(
    ("override", "instead"),
    [
        ("encoding=alibi", "say --with"),
        ("train.length=64", "say --to"),
        ("train.steps=3", "say --tokens"),
        ("++train.length=64", "say --to"),
        ("tokenizer.name=gpt2", "a run keeps its own"),
        ("model=tiny", "a run keeps its own"),
        ("task=copy", "a run keeps its own"),
        ("modifier=[logn]", "say --with +NAME"),
        ("train.from=rope", "it goes on from the runs that you name"),
        ("train.beside=rope", "it goes on from the runs that you name"),
        ("train.only=encoding", "say pe-bench train train.from=RUN"),
        ("results_dir=elsewhere", "say --results-dir"),
    ],
)
def test_an_override_that_the_command_chooses_itself_is_refused_before_training(
    begin: Command, command: Command, folder: Path, override: str, instead: str
) -> None:
    assert begin("encoding=rope", *SCORED).code == 0
    refused = extended(command, folder, "--to", "2x", "--with", "yarn", "--tokens", "64", override)
    assert refused.code == 2
    assert f"{override} has no effect on further training: {instead}" in refused.line


def test_of_one_name_the_runs_are_meant_that_try_did_not_make(
    begin: Command, command: Command, folder: Path
) -> None:
    results = folder / "results"
    for more in ((), ("seed=1", "eval.half=first"), ("seed=2", "train.steps=4", "eval.half=first")):
        assert begin("encoding=rope", *more).code == 0
    assert find_run("rope", results).name.startswith("rope-s0")
    (run,) = pe_bench.extend("rope", "2x", "yarn", results_dir=results).runs
    assert run.name.startswith("rope-s0")
    outcome = command("extend", "rope-s[12]*", "--results-dir", str(results))
    assert outcome.code == 2 and "differ in train.steps" in outcome.line


@pytest.mark.parametrize(
    ("encoding", "label"),
    [
        ("longrope", "rope -> longrope factor=2.0 long_factors=["),
        ("temperature", "rope -> rope+temperature temperature.factor=["),
    ],
)
def test_what_a_method_searches_is_searched_once(
    begin: Command, folder: Path, monkeypatch: pytest.MonkeyPatch, encoding: str, label: str
) -> None:
    def labels() -> list[str]:
        [table] = pe_bench.extend("rope", "2x", encoding, results_dir=folder / "results").tables
        return [line.label for line in table.lines if line.label != "rope"]

    monkeypatch.setattr(stages, "SEARCH_ROUNDS", 4)
    assert begin("encoding=rope", *SCORED).code == 0
    [searched] = labels()
    assert searched.startswith(label)
    monkeypatch.setattr(stages, "SEARCH_ROUNDS", -1)
    monkeypatch.setattr(stages, "SEARCH_BLOCKS", 0)  # nothing to search on
    assert labels() == [searched]


def test_a_value_without_a_finite_loss_is_never_the_one_that_a_search_finds(
    begin: Command, command: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert begin("encoding=rope", *SCORED).code == 0
    given: list[float] = []  # the losses of the first values; all later ones are NaN

    class OverflowingScorer(Scorer):
        def scores(self, plans: Sequence[Plan]) -> Iterator[tuple[Plan, Scored]]:
            for plan, scored in super().scores(plans):
                loss = given.pop(0) if given else math.nan
                yield plan, scored._replace(nll=np.full_like(scored.nll, loss))

    monkeypatch.setattr(stages, "Scorer", OverflowingScorer)
    monkeypatch.setattr(stages, "SEARCH_ROUNDS", 2)
    outcome = extended(command, folder, "--to", "2x", "--with", "temperature")
    assert outcome.code == 1 and "no tried value has a finite loss" in outcome.line
    given += [math.nan, 2.0]
    assert extended(command, folder, "--to", "2x", "--with", "temperature").code == 0
    [run] = (folder / "results" / "runs").iterdir()
    [found] = json.loads((run / extend.SEARCHED_FILE).read_text()).values()
    assert found == [1.1], "the second guess"


@pytest.mark.parametrize(
    ("encoding", "reason"),
    [
        ("yarn factr=4", "encoding.factr"),
        ("yarn factor=large", "factor must be a number"),
        ("longrope factr=4", "encoding.factr"),
        ("+logn lenth=4", "encoding.modifiers.logn.lenth"),
    ],
)
@pytest.mark.parametrize("tokens", [(), ("--tokens", "64")])
def test_a_mistyped_encoding_is_refused_before_another_is_searched_or_scored(
    begin: Command,
    command: Command,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    encoding: str,
    reason: str,
    tokens: tuple[str, ...],
) -> None:
    assert begin("encoding=rope", *SCORED).code == 0
    [run] = (folder / "results" / "runs").iterdir()
    before = (run / "eval.csv").read_bytes()
    monkeypatch.setattr(stages, "SEARCH_ROUNDS", -1)
    for with_ in (("--with", "longrope"), ("--with", "rope_pi")):
        refused = extended(command, folder, "--to", "2x", *with_, "--with", encoding, *tokens)
        assert refused.code == 2 and reason in refused.line
        assert not (run / "searched.json").exists() and (run / "eval.csv").read_bytes() == before


def test_targets_that_leave_no_text_to_search_on_are_refused_before_a_model_is_loaded(
    begin: Command, command: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert begin("encoding=rope", *SCORED).code == 0
    monkeypatch.setattr(extend, "load_trained", lambda *given: pytest.fail("the model is loaded"))
    refused = extended(command, folder, "--to", "2x", "--with", "longrope", "--targets", "100000")
    assert refused.code == 2 and "leaves no text to search long_factors on" in refused.line
    assert "searching" not in refused.err


def test_a_later_stage_is_not_scored_before_long_is_refused(
    begin: Command, command: Command, folder: Path
) -> None:
    assert begin("encoding=rope", *SCORED).code == 0
    words = ("--to", "2x", "--with", "yarn", "--tokens", "64")
    assert extended(command, folder, *words).code == 0
    [stage] = (folder / "results" / "runs").glob("yarn-*")
    before = (stage / "eval.csv").read_bytes()
    where = ("--results-dir", str(folder / "results"))
    refused = command("extend", stage.name, *words[2:], "--to", "3x", "--long", "threads=1", *where)
    assert refused.code == 2 and "--long counts the tokens of one stage" in refused.line
    assert (stage / "eval.csv").read_bytes() == before


def test_nothing_is_searched_on_text_that_is_scored_and_an_earlier_version_s_search_is_not_read(
    begin: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert begin("encoding=rope", *SCORED).code == 0
    [run] = (folder / "results" / "runs").iterdir()
    (run / "searched.json").write_text('{"longrope at 32": [9, 9, 9, 9]}')
    first_turns = []
    searched_blocks = stages.blocks_to_search_on

    def noted(*arguments: Any) -> TargetBlocks:
        blocks = searched_blocks(*arguments)
        first_turns.append(int(blocks.turn.min()))
        return blocks

    monkeypatch.setattr(stages, "SEARCH_ROUNDS", 0)
    monkeypatch.setattr(stages, "blocks_to_search_on", noted)
    for targets in (3, 20, 20, None):
        pe_bench.extend("rope", "2x", "longrope", targets=targets, results_dir=folder / "results")
    assert first_turns == [6, 20]


def test_what_another_process_searches_meanwhile_is_kept_and_a_run_at_work_is_waited_for(
    begin: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert begin("encoding=rope", *SCORED).code == 0
    [run] = (folder / "results" / "runs").iterdir()
    search = extend.search_option
    lock = FileLock(run / "lock")

    def searched_beside_another(*arguments: Any) -> Sequence[float]:
        values = search(*arguments)
        (run / "searched.json").write_text('{"other": [1.5]}')
        lock.acquire()
        return values

    def note_waiting(text: str) -> None:
        if text.startswith("waits for another process"):
            lock.release()

    monkeypatch.setattr(stages, "SEARCH_ROUNDS", 0)
    monkeypatch.setattr(extend, "search_option", searched_beside_another)
    monkeypatch.setattr(extend, "say", note_waiting)
    pe_bench.extend("rope", "2x", "longrope", results_dir=folder / "results")
    assert not lock.is_locked
    assert set(json.loads((run / "searched.json").read_text())) == {
        "other",
        "longrope at 32 beyond 6 targets",
    }


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "[]", "null", '{"longrope at 32": 5}', '{"longrope at 32": ["a"]}', '{"other": [NaN]}'),
        *('{"longrope at 32": {}}', '{"longrope at 32": [null]}', "\x00", "[" * 100_000),
    ],
)
def test_a_damaged_file_of_what_was_searched_is_one_line_with_a_way_out(begin, command, folder, text):
    assert begin("encoding=rope", *SCORED).code == 0
    file = next((folder / "results" / "runs").iterdir()) / "searched.json"
    file.write_text(text)
    before = (file.parent / "eval.csv").read_bytes()
    outcome = extended(command, folder, "--to", "2x", "--with", "longrope")
    assert outcome.code == 1 and f"{file} is damaged" in outcome.line
    assert "delete it, and extend searches again" in outcome.line
    assert file.read_text() == text and (file.parent / "eval.csv").read_bytes() == before


def test_the_command_for_details_names_the_runs_or_their_encodings_where_there_are_many(
    begin: Command, command: Command, folder: Path
) -> None:
    assert begin("encoding=rope").code == 0
    outcome = extended(command, folder, "--to", "2x", "--with", "yarn", "--tokens", "64")
    assert outcome.code == 0, outcome.err
    runs = sorted((folder / "results" / "runs").iterdir())
    ending = f"details: pe-bench report --results-dir {folder / 'results'}"
    assert outcome.err.rstrip().endswith(f"{ending} {runs[0].name} {runs[1].name} --details")
    many = details_command([Path(f"rope-s{seed}-0a") for seed in range(9)], folder / "results", max_runs=4)
    assert many == f"{ending.removeprefix('details: ')} rope --details"
    encodings = [Path(f"{name}-s0-0a") for name in ("rope", "alibi", "t5", "nope", "fox")]
    many = details_command(encodings, folder / "results", max_runs=4, otherwise=["--all"])
    assert many == f"{ending.removeprefix('details: ')} --all --details"


def test_a_run_that_lost_its_scores_is_named_with_a_way_out(
    begin: Command, command: Command, folder: Path
) -> None:
    assert begin("encoding=rope").code == 0
    [run] = (folder / "results" / "runs").iterdir()
    (run / "eval.csv").unlink()
    outcome = extended(command, folder, "--to", "2x", "--with", "yarn")
    assert outcome.code == 2
    assert f"{run / 'eval.csv'} has no readable scores" in outcome.line
    assert f"`pe-bench eval {run.name} --results-dir {folder / 'results'}`" in outcome.line


def test_lengths_up_to_twice_the_longer_one_are_scored_or_those_that_are_chosen(
    begin: Command, folder: Path
) -> None:
    results = folder / "results"
    assert begin("encoding=rope", "eval.lengths=[16,32,64,96]", "eval.max_length=96").code == 0

    def scored(**options: object) -> dict[str, list[int]]:
        """Return the lengths with a number of each line of the table."""
        family = pe_bench.extend("rope", "2x", "yarn", results_dir=results, **options)  # pyright: ignore[reportArgumentType]
        [table] = family.tables
        return {line.label: sorted(line.records) for line in table.lines}

    near = [8, 16, 32, 64]
    assert scored() == {"rope": near, "rope -> yarn factor=2.0": near}
    chosen = {"rope": [8, 16, 24, 32], "rope -> yarn factor=2.0": [8, 16, 24, 32]}
    assert scored(lengths=24) == chosen, "and the training length, the longer one and its quarter"
    label = "rope, then yarn x2 at 32 (64)"
    assert scored(lengths=[24], tokens=64, overrides="threads=1")[label] == [8, 16, 24, 32]


def test_use_of_context_is_judged_at_chosen_lengths_too_and_of_a_length_that_four_does_not_divide(
    train: Command, folder: Path
) -> None:
    longer = ("train.length=19", "train.batch_tokens=380", "train.steps=150")  # it beats token frequencies
    assert train("encoding=rope", *longer, *SCORED, "eval.controls=auto").code == 0
    results = folder / "results"
    [table] = pe_bench.extend("rope", "31", "yarn", lengths=[40], targets=16, results_dir=results).tables
    assert len(table.lines) == 2
    for line in table.lines:
        use = line.records[40].use
        assert use is not None and "no score at" not in use.missing, f"{line.label}: {use}"
        assert sorted(line.records) == [5, 8, 19, 31, 40], line.label


def test_a_narrow_table_keeps_the_longest_lengths_unless_lengths_are_chosen(
    train: Command, command: Command, folder: Path, monkeypatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    assert train("encoding=rope", "seed=0", *SCORED).code == 0
    usual = extended(command, folder, "--to", "2x").out
    [heading] = [line for line in usual.splitlines() if line.startswith("encoding")]
    assert heading.split()[-1] == "64" and "18" not in heading.split()
    chosen = extended(command, folder, "--to", "2x", "--lengths", "18,20").out
    [heading] = [line for line in chosen.splitlines() if line.startswith("encoding")]
    assert {"18", "20"} <= set(heading.split())


def test_fewer_targets_are_those_of_every_line_and_keys_of_one_stage_alone_are_refused(
    begin: Command, command: Command, folder: Path
) -> None:
    results = folder / "results"
    assert begin("encoding=rope", *SCORED).code == 0
    more = {"tokens": 64, "overrides": "threads=1", "results_dir": results}
    [table] = pe_bench.extend("rope", "2x", "yarn", targets=3, **more).tables
    assert len(table.lines) == 3
    for line in table.lines:
        for record in line.records.values():
            assert record.targets == 3 * 16, f"{line.label} at {record.length}"
    for key in ("eval.targets=3", "eval.lengths=[32]"):
        option = key.partition("=")[0].replace("eval.", "--")
        for tokens in (["--tokens", "64"], []):
            outcome = extended(command, folder, "--to", "2x", "--with", "yarn", *tokens, key)
            assert outcome.code == 2 and f"say {option}, which is for all" in outcome.line


@pytest.mark.parametrize(
    ("typed", "own"),
    [
        ("eval.protocol=sliding", "eval.protocol=paired"),
        ("eval.max_length=128", "eval.max_length=256"),
        ("eval={seed: 1}", "eval.seed=0"),
        ("eval.half=both,first", "eval.half=both"),
        ("eval.target_tokens=4", "eval.target_tokens=null"),
        ("eval={targets: 3}", "eval.targets=6"),
    ],
)
def test_a_key_that_would_score_the_further_training_alone_in_another_way_is_refused(
    begin: Command, command: Command, folder: Path, typed: str, own: str
) -> None:
    assert begin("encoding=rope", *SCORED).code == 0
    words = ("--to", "2x", "--with", "yarn", "--tokens", "64")
    refused = extended(command, folder, *words, typed)
    assert refused.code == 2 and "would score only the further training: leave it out" in refused.line
    assert refused.line.endswith(f"(the runs have {own})")
    assert len(list((folder / "results" / "runs").iterdir())) == 1


def test_an_experiment_s_targets_do_not_replace_those_of_the_runs(begin: Command, folder: Path) -> None:
    assert begin("encoding=rope", *SCORED).code == 0
    overrides = ["threads=1", "experiment=quick", "eval.protocol=paired"]
    more = {"tokens": 64, "overrides": overrides, "results_dir": folder / "results"}
    [table] = pe_bench.extend("rope", "2x", "yarn", **more).tables
    assert len(table.lines) == 3
    assert len({record.target_hash for record in table.records}) == 1


def test_scores_of_other_targets_are_in_no_table(begin: Command, evaluate: Command, folder: Path) -> None:
    assert begin("encoding=rope", *SCORED).code == 0
    assert evaluate("rope", "--half", "second", "--threads", "1").code == 0
    for tokens in (None, 64):
        more = {"tokens": tokens, "overrides": "threads=1", "results_dir": folder / "results"}
        [table] = pe_bench.extend("rope", "2x", "yarn", **more).tables
        hashes = {record.target_hash for line in table.lines for record in line.records.values()}
        assert len(hashes) == 1 and "second" not in hashes.pop()


def test_the_default_number_of_targets_is_that_of_further_training_too(begin: Command, folder: Path) -> None:
    assert begin("encoding=rope", *SCORED, "eval.targets=2").code == 0
    more = {"tokens": 64, "overrides": "threads=1", "results_dir": folder / "results"}
    usual = EvalConfig.targets
    family = pe_bench.extend("rope", "2x", "yarn", targets=usual, **more)
    assert read_config(family.runs[1]).eval.targets == usual
    [table] = family.tables
    labels = {line.label for line in table.lines}
    assert labels == {"rope", "rope -> yarn factor=2.0", "rope, then yarn x2 at 32 (64)"}


def test_a_tag_of_further_training_names_its_runs_and_is_no_part_of_their_names(
    begin: Command, command: Command, folder: Path
) -> None:
    assert begin("encoding=rope", *SCORED).code == 0
    words = ("--to", "2x", "--with", "yarn", "--tokens", "64")
    assert extended(command, folder, *words, "tag=first").code == 0
    runs = {path.name for path in (folder / "results" / "runs").iterdir()}
    [stage] = [name for name in runs if name.startswith("yarn")]
    assert tags_of(folder / "results" / "runs" / stage) == ["first"]
    assert extended(command, folder, *words, "tag=second").code == 0
    assert {path.name for path in (folder / "results" / "runs").iterdir()} == runs
    assert tags_of(folder / "results" / "runs" / stage) == ["first", "second"]
    where = ("--results-dir", str(folder / "results"))
    listed = command("list", "runs", "--tag", "first", *where).out
    assert stage in listed and "rope-s0" not in listed
