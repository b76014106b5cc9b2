"""A study is made in pieces, whose scores are stored beside its file and outlive the runs."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.commands import Command
from support.hf_models import write_hf_model

from pe_bench.commands.reproduce import explained
from pe_bench.commands.reproduce.budgets import (
    BudgetResult,
    budget_agreements,
    budget_table_lines,
    first_budget_that_reads_far,
)
from pe_bench.commands.reproduce.lines import table_lines
from pe_bench.commands.reproduce.outcomes import read_table
from pe_bench.commands.reproduce.pieces import Piece, StoredPieces, _runs_of_fewer_seeds, pieces_of
from pe_bench.commands.reproduce.study import FinishedStep, Study, read_study
from pe_bench.errors import UserError
from pe_bench.report import draw
from pe_bench.report.records import Table
from pe_bench.runs.folder import RunFolder
from pe_bench.runs.kept import copy_run
from pe_bench.runs.rows import read_rows, write_rows

MODEL = """[model.d_model=16, model.n_layers=2, model.n_heads=2, model.d_ff=24, train.batch_tokens=64,
  train.warmup_steps=2, train.validation_tokens=64, eval.targets=6]"""
TOY = f"""\
title: A toy of two budgets
question: does it stay?
source: nobody
minutes: 1
seeds: 1
length: 16
tokens: 256
times: [0.25, 1, 2, 8]
over: tokens
overrides: {MODEL}
sweeps:
  - {{name: short, tokens: 256, encodings: [rope, nope]}}
  - {{name: long, tokens: 512, encodings: [rope]}}
claims:
  - {{kind: reads_far, of: rope, sweep: long, at: 2, source: nobody}}
  - {{kind: loses_less, of: rope, sweep: short, than_sweep: long, at: 8, source: nobody}}
"""


@pytest.fixture
def study(folder: Path) -> Study:
    """Write a study of two budgets, and return it with the text that it is trained on."""
    path = folder / "own" / "study" / "toy.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(TOY)
    return replace(read_study("toy", [folder / "own"]), text=str(folder / "corpus"))


def arguments(study: Study) -> list[str]:
    folders = [
        "--config-dir",
        str(study.path.parent.parent),
        "--text",
        study.text,
        "--results-dir",
        "results",
    ]
    return ["reproduce", "toy", *folders]


def long_rope(study: Study) -> Piece:
    return pieces_of(study, study.sweeps[1])[0]


def test_stored_pieces_say_what_their_runs_said_and_are_not_made_again(
    command: Command, study: Study
) -> None:
    made = command(*arguments(study), "threads=1", "--write-table")
    assert made.code == 0, made.err
    stored = StoredPieces(study)
    assert [str(piece) for piece in stored.read()] == [
        "rope (short), seeds: 1",
        "nope (short), seeds: 1",
        "rope (long), seeds: 1",
    ]
    assert not stored.missing()
    table = read_table(study.table_path)
    assert {level["sweep"] for level in table} == {"short", "long"} and all(
        level["machine"] for level in table
    )

    ours = command(*arguments(study), "threads=1")
    shutil.rmtree("results")
    alone = command(*arguments(study), "--stored")
    assert (ours.code, alone.code) == (0, 0), alone.err
    assert alone.out == ours.out and alone.out.split()[:4] == ["tokens", "seeds", "at", "16"]
    assert Path("results/studies/toy-files.png").stat().st_size > 10_000
    assert not Path("results/runs").exists()

    again = command(*arguments(study), "threads=1", "--write-table")
    assert again.code == 0 and "stored: rope (long)" in again.err and not Path("results/runs").exists()


def test_a_picture_names_no_learning_rate_that_only_later_stages_have(
    command: Command, study: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = "encodings: [yarn], overrides: [train.lr=0.001]"
    later = f"{{name: later, after: short, times: 2, tokens: 64, {keys}}}"
    text, _, _ = TOY.replace("over: tokens\n", "").partition("  - {name: long")
    study.path.write_text(f"{text}  - {later}\n")
    drawn: list[Table] = []
    monkeypatch.setattr(draw, "plot_tables", lambda tables, path: drawn.extend(tables))
    made = command(*arguments(study), "threads=1")
    assert made.code == 0, made.err
    labels = {line.label for table in drawn for line in table.lines}
    assert labels >= {"rope", "nope"} and any(label.startswith("rope, then yarn x2") for label in labels)
    assert not any("train.lr" in label for label in labels), labels


def test_stored_explanations_have_the_label_of_an_encoding_with_options(
    command: Command, study: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim = "{kind: restores, of: rope base=500.0, sweep: long, change: window, at: 8, source: nobody}"
    options = TOY.replace("tokens: 512, encodings: [rope]", "tokens: 512, encodings: ['rope base=500']")
    text, _, _ = options.replace("over: tokens", "explains: true").partition("claims:")
    study.path.write_text(f"{text}claims: [{claim}]\n")
    made = command(*arguments(study), "threads=1", "--write-table")
    assert made.code == 0, made.err
    titles: list[str] = []
    draw_layers = explained.draw_layers

    def draw(path: Path, title: str, *rest: Any) -> None:
        titles.append(title)
        draw_layers(path, title, *rest)

    monkeypatch.setattr(explained, "draw_layers", draw)
    alone = command(*arguments(study), "--stored")
    assert "rope base=500.0 (long) at 128 regains" in alone.out and "not scored" not in alone.out, alone.out
    written = replace(read_study("toy", [study.path.parent.parent]), text=study.text)
    labels = [shares.series.label for shares in explained.stored_shares(StoredPieces(written))]
    assert labels == ["rope", "nope", "rope base=500.0"]
    assert any(title.startswith("rope base=500.0 (long), seeds: 1: ") for title in titles), titles


def test_a_study_that_explains_stores_why_the_runs_of_each_piece_fail(command: Command, study: Study) -> None:
    claim = "  - {kind: restores, of: rope, sweep: long, change: window, at: 8, source: nobody}\n"
    study.path.write_text(TOY.replace("over: tokens", "explains: true") + claim)
    made = command(*arguments(study), "threads=1", "--write-table")
    assert made.code == 0, made.err
    explained = StoredPieces(study).folder / "explained"
    tables = sorted(explained.glob("*.txt"))
    assert [path.name.split("-")[:2] for path in tables] == [
        ["nope", "short"],
        ["rope", "long"],
        ["rope", "short"],
    ]
    assert len(list(explained.glob("*.csv"))) == 3
    text = tables[1].read_text()
    assert "rope, trained at 16 tokens" in text and "what each layer reads" in text
    assert study.text not in text
    alone = command(*arguments(study), "--stored")
    stored = alone.out
    assert text in stored
    for picture in re.findall(r"what each layer does: (.*)", alone.err):
        assert Path(picture).stat().st_size > 10_000, picture
    ours = command(*arguments(study), "threads=1")
    for out in (made.out, stored, ours.out):
        assert "rope (long) at 128 regains over half of its loss with 'window'" in out

    tables[1].unlink()
    again = command(*arguments(study), "threads=1", "--write-table")
    assert again.code == 0 and again.err.count("explaining rope (long)") == 1
    assert tables[1].read_text() == text and "explaining nope" not in again.err

    (explained / "rope-long-9-seeds-ab.txt").write_text("of a piece that the study no longer has")
    assert "no longer has" not in command(*arguments(study), "--stored").out


def test_more_seeds_of_a_stored_piece_train_only_the_seeds_that_are_not_stored(
    command: Command, study: Study
) -> None:
    scored_again = TOY + "scorings:\n  - {protocol: nonoverlapping, times: [2], of: [short]}\n"
    study.path.write_text(scored_again)
    assert command(*arguments(study), "threads=1", "--write-table").code == 0
    of_one_seed = {
        piece.encoding: piece.runs for piece in StoredPieces(study).read() if piece.sweep == "short"
    }
    shutil.rmtree("results")
    study.path.write_text(scored_again.replace("seeds: 1\n", "seeds: 3\n"))
    made = command(*arguments(study), "threads=1", "--write-table")
    assert made.code == 0, made.err
    assert "toy short: nope, seeds: 3 (1 stored)" in made.err
    trained = {path.name for path in Path("results/runs").iterdir()}
    assert len(trained) == 6 and not any("-s0-" in name for name in trained)
    pieces = StoredPieces(study)
    for piece in pieces.read():
        if (piece.sweep, piece.seeds) == ("short", 3):
            first, *others = piece.runs
            assert (first,) == of_one_seed[piece.encoding] and len(others) == 2
            assert trained >= {*others}
            for run in piece.runs:
                protocols = {row.protocol for row in RunFolder(pieces.folder / "runs" / run).rows}
                assert protocols == {"paired", "nonoverlapping"}
    seeds = {level["seeds"] for level in read_table(study.table_path) if level["sweep"] == "short"}
    assert seeds == {"3"}


def test_a_piece_of_another_training_length_that_is_stored_first_changes_nothing(
    command: Command, study: Study
) -> None:
    longer = TOY.replace("name: long, tokens", "name: long, times: 2, tokens")
    study.path.write_text(longer.replace("eval.targets=6", "eval.targets=6, eval.target_tokens=2"))
    assert command(*arguments(study), "threads=1", "--write-table").code == 0
    before = command(*arguments(study), "--stored")
    index = StoredPieces(study).folder / "pieces.json"
    pieces = json.loads(index.read_text())["pieces"]
    index.write_text(json.dumps({"pieces": pieces[::-1]}))
    after = command(*arguments(study), "--stored")
    assert before.code == after.code == 0 and before.out == after.out


def test_a_stored_run_names_no_folder_of_the_machine_that_trained_it(command: Command, study: Study) -> None:
    assert command(*arguments(study), "threads=1", "--write-table", "cache_dir=kept_here").code == 0
    files = [path for path in StoredPieces(study).folder.rglob("*") if path.is_file()]
    assert not any(study.text.encode() in path.read_bytes() for path in files)
    runs = {
        path.relative_to(StoredPieces(study).folder / "runs").parts[0]
        for path in files
        if "runs" in path.parts
    }
    assert len(runs) == 3 and not any(path.suffix == ".pt" or path.parent.name == "scores" for path in files)
    for path in files:
        assert b"kept_here" not in path.read_bytes()
    size = sum(path.stat().st_size for path in files if "runs" in path.parts)
    assert size / len(runs) < 20_000


def test_a_stored_piece_with_several_runs_of_a_seed_is_made_anew_for_more_seeds() -> None:
    wanted = Piece("short", "rope", 3, "ab")
    one_run = replace(wanted, seeds=1, runs=("rope-s0",))
    two_runs = replace(wanted, seeds=1, runs=("rope-s0-a", "rope-s0-b"))
    assert _runs_of_fewer_seeds(wanted, [one_run]) == ("rope-s0",)
    assert _runs_of_fewer_seeds(wanted, [two_runs]) == ()
    assert _runs_of_fewer_seeds(wanted, [replace(one_run, settings="cd")]) == ()


def test_a_claim_about_a_change_needs_a_study_that_explains(study: Study) -> None:
    claim = "  - {kind: restores, of: rope, sweep: long, change: window, at: 8, source: nobody}\n"
    study.path.write_text(TOY + claim)
    with pytest.raises(UserError, match="a claim of kind restores needs a study with explains: true"):
        read_study("toy", [study.path.parent.parent])


def test_a_study_that_explains_answers_or_hf_models_is_refused(folder: Path) -> None:
    for sweep in ("task: mqar, encodings: [rope]", "hf_model: model, encodings: [rope]"):
        path = folder / "own" / "study" / "toy.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        head = TOY.partition("sweeps:")[0]
        path.write_text(f"{head}explains: true\nsweeps:\n  - {{name: other, {sweep}}}\n")
        with pytest.raises(UserError, match="the sweep 'other' has none"):
            read_study("toy", [folder / "own"])


def test_a_piece_of_other_text_targets_or_torch_is_refused_before_anything_is_stored(
    command: Command, study: Study
) -> None:
    assert command(*arguments(study), "threads=1", "--write-table").code == 0
    stored = StoredPieces(study)
    index = stored.folder / "pieces.json"
    pieces = json.loads(index.read_text())
    last = pieces["pieces"].pop()
    index.write_text(json.dumps(pieces))
    path = Path("results/runs") / last["runs"][0] / "eval.csv"
    rows = read_rows(path)
    for changes, said in (
        ({"data_hash": "0123"}, "rope (long), seeds: 1 has text 0123 at "),
        ({"target_hash": "4567"}, "has targets 4567 at "),
        ({"torch": "2.11.0+cpu"}, "was made with PyTorch 2.11, the stored rows with 2."),
    ):
        write_rows(path, [replace(row, **changes) for row in rows])
        keys = {row.key for row in read_rows(path)}
        with pytest.raises(UserError) as error:
            stored.add(long_rope(study), [FinishedStep("long", (last["runs"][0],), keys)], Path("results"))
        assert said in str(error.value)
        assert json.loads(index.read_text()) == pieces
    # Targets of another tokenizer are others.
    other_rows = [replace(row, tokenizer="bpe", target_hash="4567") for row in rows]
    stored._require_comparable(long_rope(study), other_rows)
    write_rows(path, [replace(row, torch=f"{row.torch.partition('+')[0]}+cu126") for row in rows])
    stored.add(
        long_rope(study),
        [FinishedStep("long", (last["runs"][0],), {row.key for row in rows})],
        Path("results"),
    )
    assert len(json.loads(index.read_text())["pieces"]) == 3


def test_what_is_not_stored_is_said_and_nothing_is_trained(command: Command, study: Study) -> None:
    empty = command(*arguments(study), "--stored")
    assert empty.code == 2 and "no piece of toy is stored" in empty.line
    both = command(*arguments(study), "--stored", "--quick")
    assert both.code == 2 and "leave out --quick" in both.line
    assert not Path("results").exists()
    stored = StoredPieces(study)
    stored.folder.mkdir(parents=True)
    (stored.folder / "pieces.json").write_text('{"pieces": [{"sweep": 3}]}')
    damaged = command(*arguments(study), "--stored")
    assert damaged.code == 2 and "pieces.json is damaged" in damaged.line
    obeyed_by_nothing = command(*arguments(study), "--stored", "threads=1")
    assert obeyed_by_nothing.code == 2 and "leave out threads=1" in obeyed_by_nothing.line


def test_the_pieces_of_a_text_are_not_reported_as_those_of_another_text(
    command: Command, study: Study, folder: Path
) -> None:
    assert command(*arguments(study), "threads=1", "--write-table").code == 0
    table = read_table(study.table_path)
    other = replace(study, text=str(folder / "other"))
    shutil.copytree(study.text, other.text)
    same = command(*arguments(other), "--stored")
    assert same.code == 0, "the same text in another folder"
    (folder / "other" / ".hidden").write_text("is not read")
    assert StoredPieces(other).folder == StoredPieces(study).folder
    for path in (folder / "other").glob("*.txt"):
        path.write_text(path.read_text()[::-1])
    nothing = command(*arguments(other), "--stored")
    options = f"--config-dir {folder / 'own'} --text {other.text}"
    assert nothing.code == 2 and f"`pe-bench reproduce toy --write-table {options}` makes" in nothing.line
    assert command(*arguments(other), "threads=1", "--write-table").code == 0
    assert StoredPieces(other).folder != StoredPieces(study).folder
    both = read_table(study.table_path)
    assert len(both) == 2 * len(table) and all(level in both for level in table)
    for text in (study, other):
        stored = command(*arguments(text), "--stored")
        assert stored.code == 0 and f"toy.csv: {len(table)} of {len(table)} levels agree" in stored.out


def test_a_changed_study_has_other_pieces_and_a_damaged_piece_or_table_is_named(
    command: Command, study: Study
) -> None:
    assert command(*arguments(study), "threads=1", "--write-table").code == 0
    table = study.table_path.read_text()
    study.table_path.write_text(re.sub(r"(rope,paired,none,16),\d", r"\1,9", table))
    differing = command(*arguments(study), "--stored")
    assert differing.code == 1 and "levels that differ from" in differing.line
    study.table_path.write_text(table)
    study.path.write_text(TOY.replace("tokens: 512,", "tokens: 320,"))
    changed = command(*arguments(study), "--stored")
    assert changed.code == 1 or "pieces that are not stored: 1, first rope (long)" in changed.err
    study.path.write_text(TOY)
    (next(StoredPieces(study).folder.glob("runs/nope-*")) / "means.safetensors").unlink()
    damaged = command(*arguments(study), "--stored")
    assert damaged.code == 2 and "is missing or damaged" in damaged.line


def test_a_piece_keeps_the_validation_losses_of_its_runs(command: Command, study: Study) -> None:
    often = TOY.replace("overrides: [", "overrides: [train.log_every=1, train.validate_every=3, ")
    study.path.write_text(often)
    written = replace(read_study("toy", [study.path.parent.parent]), text=study.text)
    assert command(*arguments(written), "threads=1", "--write-table").code == 0
    stored = StoredPieces(written)
    name = stored.read()[0].runs[0]
    run = RunFolder(Path("results/runs") / name)
    kept = RunFolder(stored.folder / "runs" / name)
    assert kept.validation_loss == run.validation_loss is not None
    assert 0 < len(kept.losses) < len(run.losses)


def test_a_second_piece_keeps_what_an_earlier_one_stored_of_the_same_run(
    command: Command, study: Study
) -> None:
    assert command(*arguments(study), "threads=1", "--write-table").code == 0
    stored = StoredPieces(study)
    run = stored.read()[0].runs[0]
    rows = read_rows(stored.folder / "runs" / run / "eval.csv")
    first = next(row for row in rows if row.length == 16)
    copy_run(Path("results/runs") / run, [first], stored.folder / "runs" / run)
    folder = RunFolder(stored.folder / "runs" / run)
    assert {row.key for row in folder.rows} == {row.key for row in rows}
    assert all(folder.means.of(row) is not None for row in rows if row.bits_per_byte is not None)


REAL = """\
title: A toy model
question: does it break?
source: nobody
minutes: 1
seeds: 1
length: 32
times: [0.25, 1, 2]
overrides: [eval.targets=4]
sweeps:
  - name: tiny
    hf_model: llama
    encodings: [rope]
    scored_with: [yarn factor=2]
    get: make MODELS/llama
claims:
  - {kind: breaks, of: rope, sweep: tiny, at: 2, source: nobody}
  - {kind: order, of: rope -> yarn factor=2.0, than: rope, sweep: tiny, at: 2, source: nobody}
"""


@pytest.fixture
def real(folder: Path) -> Study:
    """Write a study of a Hugging Face model in `folder/models`, and return the study with its text."""
    path = folder / "own" / "study" / "toy.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(REAL)
    write_hf_model(folder / "models" / "llama", "llama")
    return replace(read_study("toy", [folder / "own"]), text=str(folder / "corpus"))


def test_an_hf_model_under_one_encoding_is_a_piece_that_is_judged_without_the_model(
    command: Command, real: Study, folder: Path
) -> None:
    models = ("--models", str(folder / "models"))
    made = command(*arguments(real), *models, "threads=1", "--write-table")
    assert made.code == 0, made.err
    stored = StoredPieces(real)
    assert [piece.encoding for piece in stored.read()] == ["rope", "yarn factor=2"]
    assert "pieces that are not stored" not in made.err and not stored.missing()
    table = {(level["encoding"], level["length"]) for level in read_table(real.table_path)}
    labels = ("rope", "rope -> yarn factor=2.0")
    assert {(label, length) for label in labels for length in ("8", "32", "64")} <= table
    for file in stored.folder.rglob("*"):
        assert file.is_dir() or str(folder).encode() not in file.read_bytes(), file

    whole = command(*arguments(real), *models, "threads=1")
    shutil.rmtree("results")
    shutil.rmtree(folder / "models")
    alone = command(*arguments(real), "--stored")
    assert (whole.code, alone.code) == (0, 0), alone.err
    assert alone.out == whole.out and "tiny) degrades or fails at 64" in alone.out
    again = command(*arguments(real), "--write-table", "--models", str(folder))
    assert again.code == 2 and not Path("results/runs").exists()


def test_a_study_of_an_hf_model_says_how_to_get_it_and_has_no_toy(
    command: Command, real: Study, study_without_hf_models: list[str], folder: Path
) -> None:
    unnamed = command(*arguments(real), "threads=1")
    assert (
        unnamed.code == 2
        and "in a folder that --models names: get it with `make MODELS/llama`" in unnamed.line
    )
    absent = command(*arguments(real), "--models", str(folder / "none"))
    assert absent.code == 2 and f"{folder / 'none' / 'llama'} is no folder: get it with" in absent.line
    toy = command(*arguments(real), "--quick", "--models", str(folder / "models"))
    assert toy.code == 2 and "toy scores llama: leave out --quick" in toy.line
    other = command(*study_without_hf_models, "--models", str(folder / "models"))
    assert (
        other.code == 2 and "--models has no effect on plain, which has no Hugging Face models" in other.line
    )
    for before, after, said in (
        ("encodings: [rope]", "encodings: [rope, nope]", "llama has one encoding of its own, not 2"),
        ("hf_model: llama", "tokens: 64", "has scored_with or get, which only a Hugging Face model has"),
    ):
        real.path.write_text(REAL.replace(before, after))
        with pytest.raises(UserError, match=said):
            read_study("toy", real.search)
    assert not Path("results").exists()


@pytest.fixture
def study_without_hf_models(real: Study) -> list[str]:
    """Write a study without Hugging Face models beside `real`; return the arguments that name it."""
    (real.path.parent / "plain.yaml").write_text(TOY)
    return ["reproduce", "plain", *arguments(real)[2:]]


def budget(encoding: str, tokens: int, reads_far: str) -> BudgetResult:
    return BudgetResult(encoding, tokens, 1, 1.5, None, None, None, None, reads_far, None)


def test_an_encoding_reads_far_from_the_budget_after_which_none_fails_to() -> None:
    budgets = [
        budget("alibi", 1_024_000, "no"),
        budget("alibi", 2_048_000, "yes"),
        budget("alibi", 4_096_000, "yes"),
        budget("rope", 1_024_000, "yes"),
        budget("rope", 2_048_000, "unclear"),
        replace(budget("nope", 500_000, ""), has_learned=False, level=2.5),
    ]
    assert first_budget_that_reads_far(budgets) == {"alibi": 2_048_000, "rope": None, "nope": None}
    lines = list(budget_table_lines(budgets, 128, 100))
    assert "alibi: surely reads far from 2M on (trained on up to 4M tokens)" in lines
    assert "nope: does not surely read far (trained on up to 500k tokens)" in lines
    assert lines[len(budgets)].split()[3] == "2.500*" and lines[4].split()[3] == "1.500"
    assert max(map(len, lines[: len(budgets) + 1])) <= 80


def test_the_orders_after_two_budgets_are_compared_by_kendalls_tau() -> None:
    """Of six pairs, the order of alibi and rope and that of alibi and t5 turn round: (4 - 2) / 6."""
    levels = {"alibi": (1.8, 1.3), "rope": (1.7, 1.4), "t5": (1.6, 1.35), "nope": (2.0, 1.7)}
    budgets = [
        replace(budget(encoding, tokens, ""), level=level)
        for encoding, of_budgets in levels.items()
        for tokens, level in zip((1_024_000, 2_048_000), of_budgets, strict=True)
    ]
    budgets.append(replace(budget("fox", 1_024_000, ""), level=1.9))
    budgets.append(replace(budget("fox", 2_048_000, ""), level=1.0, has_learned=False))
    (found,) = budget_agreements(budgets)
    assert (found.smaller, found.tokens, found.encodings) == (1_024_000, 2_048_000, 4)
    assert found.tau == pytest.approx((4 - 2) / 6)
    assert "after 2M +0.33 (4 encodings)" in list(budget_table_lines(budgets, 128, 100))
    assert budget_agreements(budgets[:4]) == [], "of two encodings"
    assert budget_agreements([replace(each, has_learned=False) for each in budgets]) == []
    late = [replace(each, tokens=2 * each.tokens) for each in budgets]
    late.append(replace(budget("alibi", 512_000, ""), level=2.1))
    assert budget_agreements(late)[0].smaller == 2_048_000, "at 512,000 tokens only one has learned"


def test_changes_of_an_hf_model_are_from_the_length_of_the_study_below_its_training_length(
    command: Command, real: Study, folder: Path
) -> None:
    text = real.path.read_text().partition("claims:")[0]
    text = text.replace("length: 32", "length: 16").replace("times: [0.25, 1, 2]", "times: [0.5, 1]")
    text = text.replace("eval.targets=4", "eval.targets=4, eval.controls=none")
    claim = "{kind: changes_by, sweep: tiny, at: 1, since: 0.5, low: -9, source: nobody}"
    real.path.write_text(f"{text}claims: [{claim}]\n".replace("    scored_with: [yarn factor=2]\n", ""))
    made = command(*arguments(real), "--models", str(folder / "models"), "threads=1")
    assert made.code == 0, made.err
    assert "changes are from 16 tokens" in made.out
    assert "holds         tiny changes by at least -9 from 8 to 16" in made.out
    [run] = Path("results/runs").iterdir()
    assert {row.length for row in RunFolder(run).rows} == {8, 16}, "the training length is not scored"


def test_a_table_fits_the_terminal_by_narrow_gaps_or_in_parts_that_begin_with_the_same_names() -> None:
    headings, rows = ("", "tokens", "level", "change"), [("rope", "1M", "1.777", "+1.261")]
    wide = list(table_lines(headings, rows, 80, keys=2))
    assert wide == ["      tokens  level  change", "rope      1M  1.777  +1.261"]
    assert list(table_lines(headings, rows, 24, keys=2)) == [
        "     tokens level change",
        "rope     1M 1.777 +1.261",
    ]
    parts = list(table_lines(headings, rows, 20, keys=2))
    assert parts == ["     tokens level", "rope     1M 1.777", "", "     tokens change", "rope     1M +1.261"]


def test_the_stored_budgets_are_printed_in_eighty_columns(
    command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    printed = command("reproduce", "budget", "--stored", "--results-dir", str(tmp_path))
    assert printed.code == 0 and max(map(len, printed.out.splitlines())) <= 80
