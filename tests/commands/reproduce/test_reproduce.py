"""`reproduce` runs what is missing of a study, compares it with its table and judges its claims."""

import re
import shutil
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

import pytest
from support.commands import Command

from pe_bench.commands.explain.effects import Loss
from pe_bench.commands.explain.explanation import Explanation
from pe_bench.commands.reproduce import explained
from pe_bench.commands.reproduce.claims import series_of
from pe_bench.commands.reproduce.outcomes import read_table
from pe_bench.commands.reproduce.papers import WINDOW_PROTOCOLS, LedgerClaim
from pe_bench.commands.reproduce.pieces import StoredPieces
from pe_bench.commands.reproduce.runs import StudyRuns
from pe_bench.commands.reproduce.study import FinishedStep, read_study, study_names
from pe_bench.config.compose import compose_config
from pe_bench.config.groups import config_dir
from pe_bench.data.tasks import build_task
from pe_bench.errors import UserError
from pe_bench.runs.folder import read_config
from pe_bench.runs.job import identity, run_name
from pe_bench.runs.rows import read_rows

COMPARING = ("order", "loses_less", "alike", "breaks_first")

MODEL = """[model.d_model=16, model.n_layers=2, model.n_heads=2, model.d_ff=24, train.batch_tokens=64,
  train.warmup_steps=2, train.validation_tokens=64, eval.targets=6, eval.controls=none]"""
TOY = f"""\
title: A toy
question: does it run?
source: nobody
minutes: 1
seeds: 1
length: 16
tokens: 512
times: [1, 2, 4]
overrides: {MODEL}
sweeps:
  - {{name: first, encodings: [rope]}}
  - {{name: tuned, after: first, times: 2, tokens: 128, encodings: [rope_pi]}}
  - {{name: own, encodings: [mine]}}
scorings:
  - {{protocol: nonoverlapping, times: [2]}}
  - {{times: [2], scored_with: [rope_pi factor=2], of: [first]}}
claims:
  - {{kind: holds, of: rope, sweep: first, at: 4, source: nobody}}
  - {{kind: order, sweep: tuned, than: rope -> rope_pi factor=2.0, than_sweep: first, at: 2, source: table 1}}
"""
CODE = """\
from pe_bench.encodings import LayerEncoding
class Mine(LayerEncoding):
    def distance_bias(self, distance):
        return -distance
"""
FILES = {
    "study/toy.yaml": TOY,
    "encoding/mine.py": CODE,
    "encoding/mine.yaml": "name: mine\nclass: mine.py:Mine\n",
}


@pytest.fixture
def configs(folder: Path) -> Path:
    """Write a study and an encoding, and return their folder."""
    for name, text in FILES.items():
        (folder / "own" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "own" / name).write_text(text)
    return folder / "own"


def arguments(configs: Path) -> list[str]:
    text = str(configs.parent / "corpus")
    folders = ["--config-dir", str(configs), "--text", text, "--results-dir", "results"]
    return ["reproduce", "toy", *folders, "threads=1"]


def test_a_study_runs_is_judged_and_compared_and_its_repetition_trains_nothing_again(
    command: Command, configs: Path
) -> None:
    first = command(*arguments(configs), "--write-table")
    assert re.search(r"toy: \d+ runs in all, about .* on 2 cores by the estimate in its file", first.err)
    assert first.code == 0, first.err
    for said in (
        "unclear       rope (first) holds up to 64",
        "tuned is better than rope -> rope_pi factor=2.0 (first) at 32\n",
        "has not learned: at the training length no better than token frequencies",
        "claims: 0 contradicted, 0 holds, 2 unclear",
        "toy.csv has nothing of this size and text",
    ):
        assert said in first.out
    assert max(map(len, first.out.splitlines())) <= 100
    assert Path("results/studies/toy-files.png").stat().st_size > 1_000
    _, rope, tuned = sorted(Path("results/runs").iterdir())
    assert read_config(tuned).train.from_run == rope.name and read_config(tuned).train.length == 32
    rows = [row for run in (rope, tuned) for row in read_rows(run / "eval.csv")]
    scored = {(row.protocol, row.scored_with) for row in rows if row.run == rope.name}
    assert scored == {("paired", "rope"), ("paired", "rope_pi factor=2.0"), ("nonoverlapping", "rope")}
    assert len({(row.protocol, row.target_hash) for row in rows}) == 2, "stages are scored on equal targets"

    path = configs / "study" / "toy.csv"
    table = read_table(path)
    assert "rope -> rope_pi factor=2.0" in {level["encoding"] for level in table}
    level = float(table[0]["level"])
    path.write_text(path.read_text().replace(f",{level},", f",{level + 0.5:.6f},", 1))
    times = {path: path.stat().st_mtime_ns for path in rope.rglob("*.safetensors")}
    shutil.rmtree(tuned)
    again = command(*arguments(configs))
    assert (tuned / "result.json").is_file()
    assert times and all(path.stat().st_mtime_ns == time for path, time in times.items())
    assert f"{len(table) - 1} of {len(table)} levels agree" in again.out and "differs: rope" in again.out
    assert (again.code, again.line) == (1, f"pe-bench: levels that differ from {path}: 1")

    # The toy size has fewer seeds and tokens, the same lengths over training, and scores few tokens.
    before = set(Path("results/runs").iterdir())
    assert command(*arguments(configs), "--quick").code == 0
    assert Path("results/studies/toy-quick-files.png").exists()
    for run in set(Path("results/runs").iterdir()) - before:
        rows = [row for row in read_rows(run / "eval.csv") if row.protocol == "nonoverlapping"]
        assert rows and all(0 < row.targets <= 4096 for row in rows)


def test_a_sweep_may_have_an_encoding_with_modifiers_and_options(command: Command, configs: Path) -> None:
    text, _, _ = TOY.partition("scorings:")
    (configs / "study" / "toy.yaml").write_text(text.replace("[mine]", "[nope+sink, rope base=500]"))
    outcome = command(*arguments(configs))
    assert outcome.code == 0, outcome.err
    configurations = [read_config(run).encoding for run in Path("results/runs").iterdir()]
    names = {(each["name"], *each["modifiers"], each.get("base")) for each in configurations}
    assert names >= {("nope", "sink", None), ("rope", 500.0)}


def test_a_scoring_of_some_encodings_is_of_no_other_encoding_with_their_name(
    command: Command, configs: Path
) -> None:
    text = TOY.partition("  - {name: tuned")[0].replace(
        "[rope]", "[rope, sink]"
    )  # sink is rope with a modifier
    scorings = "\n".join(
        f"  - {{protocol: {protocol}, times: [2], encodings: [{encoding}]}}"
        for protocol, encoding in (("nonoverlapping", "rope"), ("sliding", "sink"))
    )
    (configs / "study" / "toy.yaml").write_text(f"{text}scorings:\n{scorings}\n")
    outcome = command(*arguments(configs))
    assert outcome.code == 0, outcome.err
    protocols = {
        run.name.partition("-")[0]: {row.protocol for row in read_rows(run / "eval.csv")}
        for run in Path("results/runs").iterdir()
    }
    assert protocols == {"rope": {"paired", "nonoverlapping"}, "rope+sink": {"paired", "sliding"}}


def test_runs_that_are_scored_again_are_explained_once(
    command: Command, configs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, _, _ = TOY.partition("  - {name: tuned")
    scorings = "scorings:\n  - {protocol: nonoverlapping, times: [2]}\n"
    (configs / "study" / "toy.yaml").write_text(f"{text}{scorings}explains: true\n")
    explained_runs: list[str] = []

    def note_runs(runs: StudyRuns, step: FinishedStep) -> Explanation:
        explained_runs.extend(step.runs)
        losses = (Loss(32, reason="nothing was scored"),)
        return Explanation("rope", (Path("run"),), 16, (32,), 0, 0, True, losses, (), "")

    monkeypatch.setattr(explained, "explain_step", note_runs)
    outcome = command(*arguments(configs))
    assert outcome.code == 0, outcome.err
    assert explained_runs == [run.name for run in Path("results/runs").iterdir()]


def test_the_shipped_studies_share_the_runs_of_a_plain_train() -> None:
    def named(overrides: Sequence[str]) -> str:
        config = compose_config(overrides)
        return run_name(config, identity(config, "data", "float32", []))

    more = {"alibi": [], "kerple": [], "scalings": [], "windowed": [], "extend": []}
    for name in (*more, "nope_same_targets"):
        study = read_study(name)
        encoding = f"encoding={study.sweeps[0].encodings[0]}"
        plain = [encoding, *([] if name in more else ["train.tokens=2048000"])]
        assert named([*study.shared_overrides(study.sweeps[0]), encoding]) == named(plain)


def test_the_tasks_of_a_shipped_study_have_examples_of_each_length_that_it_scores() -> None:
    for name in study_names():
        study = read_study(name)
        for sweep in study.sweeps:
            if sweep.task:
                shared = study.shared_overrides(sweep)
                config = compose_config([*shared, f"encoding={sweep.encodings[0]}"])
                assert config.task is not None and config.eval.lengths
                for length in config.eval.lengths:
                    build_task(config.task).size_at(length)


def test_a_mistake_in_a_study_names_its_file(configs: Path) -> None:
    path = configs / "study" / "toy.yaml"
    for before, after, said in (
        ("minutes: 1", "minutes: soon", "study.minutes must be a whole number, not 'soon'"),
        ("kind: holds", "kind: hold", "unknown kind of claim 'hold': did you mean 'holds'?"),
        ("after: first", "after: long", "the sweep 'tuned' needs an earlier one, and 'long' is none"),
        ("sweep: tuned", "sweep: tunde", "unknown sweep 'tunde': did you mean 'tuned'?"),
        ("of: [first]", "encodings: [roep]", "unknown encoding of a scoring 'roep': did you mean 'rope'?"),
        ("seeds: 1", "sedes: 1", "did you mean 'seeds'?"),
        ("title: A toy", "", "study needs title"),
    ):
        path.write_text(TOY.replace(before, after))
        with pytest.raises(UserError) as error:
            read_study("toy", [configs])
        assert str(error.value).startswith(f"{path}: ") and said in str(error.value)


def test_a_claim_may_be_about_a_training_length_that_the_file_does_not_list(configs: Path) -> None:
    path = configs / "study" / "toy.yaml"
    text = TOY.replace("times: [1, 2, 4]", "times: [4]")
    path.write_text(
        text.replace(
            "kind: holds, of: rope, sweep: first, at: 4", "kind: falls, of: rope, sweep: first, at: 4"
        )
    )
    assert read_study("toy", [configs]).claims[0].since == 1


def test_a_study_that_cannot_be_run_or_judged_is_refused_when_its_file_is_read(configs: Path) -> None:
    path = configs / "study" / "toy.yaml"
    holds = "kind: holds, of: rope, sweep: first, at: 4"
    changed = {
        "kind: holds, of: rope, sweep: first, at: 0": r"claims\[0\].at must be a number above 0, not 0",
        "kind: falls, of: rope, sweep: first, at: 4, since: 0": "since must be a number above 0, not 0",
        "kind: holds, of: rope, sweep: first, at: 3": "has at: 3, .* add 3 to times, or take one of 1, 2, 4",
        "kind: falls, of: rope, sweep: first, at: 4, since: 0.5": "has since: 0.5, and the study scores noth",
        "kind: holds, of: rpoe, sweep: first, at: 4": "is about 'rpoe', and the sweep 'first' has rope: name",
        "kind: holds, of: rope, at: 4": "names no sweep: give its sweep, one of first, tuned, own",
        "kind: holds, of: rope -> yarn, sweep: first, at: 4": "no such scores: .*rope_pi factor=2.*to scored",
        "kind: order, of: rope, than: t5, sweep: first, at: 4": "is about 't5', and the sweep 'first' has",
        "kind: order, of: rope, sweep: first, at: 4": "compares 'rope' with itself: name the other with than",
        "kind: alike, of: rope, than: rope, sweep: first, at: 4": "of kind alike compares two encodings",
        "kind: solves, of: rope, sweep: first, at: 4": "is about a task, and the sweep 'first' has none",
    }
    mistakes = [(holds, after, said) for after, said in changed.items()]
    mistakes += [
        ("seeds: 1", "seeds: 0", "study.seeds must be a whole number of at least 1, not 0"),
        ("times: [1, 2, 4]", "times: []", "times is empty: give the lengths to score"),
        ("times: [1, 2, 4]", "times: [0, 1]", "study.times must be a list, each item a number above 0"),
        ("encodings: [rope]", "encodings: []", "the sweep 'first' has no encodings: give at least one"),
        ("encodings: [rope]", "encodings: [rope, nope]", "names no encoding, and the sweep 'first' has rope"),
        ("title: A toy", "title: A toy\ntext: books", "text is no key of a study's file: .*--text DIR"),
    ]
    mistakes += [
        ("title: A toy", f"title: A toy\n{key}: x", key) for key in ("name", "size", "path", "search")
    ]
    for before, after, said in mistakes:
        text = TOY.replace(before, after)
        if "names no encoding" in said:
            text = text.replace("of: rope, sweep: first, ", "sweep: first, ")
        path.write_text(text)
        with pytest.raises(UserError, match=said) as error:
            read_study("toy", [configs])
        assert str(error.value).startswith(f"{path}: ") and "\n" not in str(error.value)
    assert "unknown key of study 'search'" in str(error.value) and "'text'" not in str(error.value)


def test_a_claim_may_name_an_encoding_by_its_file_by_its_name_and_with_options(configs: Path) -> None:
    (configs / "encoding" / "low.yaml").write_text("defaults: [gate]\nbase: 500\n")
    path = configs / "study" / "toy.yaml"
    for encodings, label in (
        ("low", "rope+gate base=500.0"),
        ("rope+gate", "rope+gate"),
        ("gate", "rope+gate"),
        ("own", "own"),
        ("rope", "rope -> rope_pi factor=2.0"),
    ):
        (configs / "encoding" / "own.yaml").write_text("name: own\nclass: mine.py:Mine\n")
        text = TOY.replace("name: first, encodings: [rope]", f"name: first, encodings: [{encodings}]")
        text, _, _ = text.partition("  - {kind: order")
        path.write_text(text.replace("kind: holds, of: rope,", f"kind: holds, of: {label},"))
        assert read_study("toy", [configs]).claims[0].of == label
    # Only what is given as lengths in place of `times` can be scored elsewhere.
    path.write_text(TOY.replace("at: 4", "at: 3").replace("eval.targets=6", "'eval.lengths=[16,48]'"))
    assert read_study("toy", [configs]).claims[0].at == 3


def test_an_unknown_encoding_is_refused_before_anything_is_trained(command: Command, configs: Path) -> None:
    for name, unknown in (("[mine]", "[mien]"), ("rope_pi factor=2]", "rope_ip]")):
        (configs / "study" / "toy.yaml").write_text(TOY.replace(name, unknown))
        outcome = command(*arguments(configs))
        assert outcome.code == 2 and "did you mean" in outcome.line and not Path("results").exists()


def test_reproduce_alone_lists_all_studies_and_how_many_runs_of_each_are_stored(
    command: Command, folder: Path
) -> None:
    picture = read_study("gpu").picture_path(Path("results"))
    picture.parent.mkdir(parents=True)
    picture.touch()
    listed = command("reproduce").out
    lines = listed.splitlines()
    studies = study_names()
    assert [line.split()[0] for line in lines[1 : len(studies) + 1]] == studies and max(map(len, lines)) <= 80
    counts = {line.split()[0]: line.split()[2:4] for line in lines[1 : len(studies) + 1]}
    assert counts["windowed"] == ["15", "15"] and counts["real"] == ["7", "7"]
    assert counts["gpu"][0] == "0", "a picture says nothing of stored runs"
    assert all(int(stored) <= int(runs) for stored, runs in counts.values())
    assert command("list", "studies").out == listed


def test_the_claims_of_a_shipped_study_are_of_what_its_runs_score() -> None:
    encodings = {path.stem for path in (config_dir() / "encoding").glob("*.yaml")}
    for name in study_names():
        study = read_study(name)
        trained: dict[str, list[str]] = {}
        scored_with = {text.split()[0] for step in study.scorings for text in step.scored_with or []}
        for sweep in study.sweeps:
            trained.setdefault(sweep.name, []).extend(sweep.encodings)
            scored_with |= {text.split()[0] for text in sweep.scored_with}
        assert {*chain(*trained.values())} <= encodings
        says_how = "--write-table" in study.path.read_text(encoding="utf-8")
        is_in_pieces = says_how or StoredPieces(study).read()
        assert study.minutes <= 90 or is_in_pieces, "a long study is made in pieces that stay, and says how"
        scored = {("paired", time) for time in study.times} | {("task", time) for time in study.times}
        scored |= {(step.protocol, time) for step in study.scorings for time in step.times}
        for claim in study.claims:
            if isinstance(claim, LedgerClaim) and claim.rule:  # what is predicted need not be scored yet
                continue
            assert claim.source and (claim.than or claim.than_sweep or claim.kind not in COMPARING)
            for protocol in WINDOW_PROTOCOLS if claim.kind == "early_tokens" else [claim.protocol]:
                assert (protocol, claim.at) in scored, (name, claim)
            for label, sweep in series_of(claim):
                assert re.split("[ +]", label)[0] in trained[sweep] if label else len(trained[sweep]) == 1
                assert "->" not in label or label.split(" -> ")[1].split()[0] in scored_with
