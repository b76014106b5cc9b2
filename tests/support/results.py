"""Results that were never trained, written through the functions that write real ones."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from pe_bench.runs.rows import TASK, Row, read_rows, write_rows
from pe_bench.runs.scores import Scores, compute_level, save_scores, score_file, with_level
from pe_bench.system.files import write_text

ROW = Row(
    run="rope-s0-aaaaaaaa",
    encoding="rope",
    scored_with="rope",
    forced=False,
    knows_length=False,
    seed=0,
    model="tiny",
    setting="5e77136a",
    train_length=128,
    length=128,
    protocol="paired",
    control="none",
    status="ok",
    reason="",
    nll=2.0,
    perplexity=7.38905609893065,
    bits_per_byte=2.8853900817779268,
    stride=None,
    stride_rule="",
    context_mean=120.5,
    targets=96,
    target_tokens=16,
    documents=24,
    target_hash="7a56e7",
    data="stdlib",
    data_hash="da7a0123456789",
    tokenizer="bytes",
    parameters=820_000,
    steps=250,
    train_tokens=1_024_000,
    tokens_per_second=20_000.0,
    peak_memory_mb=None,
    device="cpu",
    train_dtype="float32",
    score_dtype="float32",
    threads=2,
    torch="2.13.0",
    pe_bench="0.1.0",
    git="",
    date="2025-01-01",
)

EXAMPLES, ANSWERS, CHANCE = 128, 4, 0.05  # of a task


def scores_of(level: float, documents: int, seed: int, spread: float = 0.01) -> Scores:
    """Return four one-byte targets for each document; documents differ by the same amounts at every level."""
    common = np.random.default_rng(99).normal(size=documents) * 0.2
    own = np.random.default_rng(seed).normal(size=documents) * spread
    own -= own.mean() + common.mean()
    nats = np.repeat((level + common + own) * np.log(2), 4)
    numbers = np.repeat(np.arange(documents), 4)
    return Scores(nats.astype(np.float32), numbers, np.ones(4 * documents, np.int64))


def add_run(results_dir: Path, encoding: str, levels: Mapping[int, float | None], **changes: object) -> Path:
    """Write a finished run with these bits per byte at these lengths; None is a length out of reach.

    `changes` are other values for columns of its rows; `spread` is that of documents, `code` gives
    the hash of an encoding's code, `label` what tables call it if that is not `encoding`, and
    `sliding` is a number of tokens, or "half" the length.
    """
    spread, code = float(str(changes.pop("spread", 0.01))), changes.pop("code", "")
    label = changes.pop("label", encoding)
    sliding = changes.pop("sliding", None)
    if sliding is not None:
        changes |= {"protocol": "sliding", "stride_rule": str(sliding)}
    changes = {"encoding": label, "scored_with": label, **changes}
    first = replace(ROW, **changes)  # pyright: ignore[reportArgumentType]
    first = replace(first, run=f"{encoding}-s{first.seed}-{first.setting[:4]}{first.data_hash[:4]}{code}")
    run = results_dir / "runs" / first.run
    run.mkdir(parents=True, exist_ok=True)
    rows = []
    for length, level in levels.items():
        stride = (
            None if sliding is None else length // 2 if sliding == "half" else min(length, int(str(sliding)))
        )
        context = first.context_mean if "context_mean" in changes else length - 8.5  # of blocks of 16 targets
        row = replace(first, length=length, stride=stride, context_mean=context)
        if level is None:
            reason = f"position {length - 1} is past the table of {row.train_length}"
            row = replace(
                row, status="undefined", reason=reason, nll=None, perplexity=None, bits_per_byte=None
            )
        else:
            scores = scores_of(level, row.documents, seed=1000 * row.seed + length, spread=spread)
            save_scores(score_file(run, row), scores)
            row = replace(row, **compute_level(scores, row.protocol))
        rows.append(row)
    write_rows(run / "eval.csv", [*read_rows(run / "eval.csv"), *rows])
    write_text(run / "config.yaml", "{}\n")
    write_text(run / "result.json", "{}\n")
    return run


def add_task_run(
    results_dir: Path,
    encoding: str,
    right: Mapping[int, float],
    seed: int = 0,
    train_length: int = 32,
    examples: int = EXAMPLES,
) -> Path:
    """Write a run of a task with these shares of examples that are right; the others have no right answer.

    Another call for the same run adds rows: another number of examples is another set of them.
    """
    run = add_run(results_dir, encoding, {}, seed=seed)
    task = {"protocol": TASK, "data": "copy", "tokenizer": "symbols", "model": "probe", "chance": CHANCE}
    rows = []
    for length, share in right.items():
        row = replace(ROW, run=run.name, encoding=encoding, scored_with=encoding, seed=seed, length=length)
        target_hash = f"{length:06x}{examples:x}"
        row = replace(row, train_length=train_length, target_tokens=None, target_hash=target_hash, **task)
        row = replace(row, documents=examples, targets=examples * ANSWERS)
        correct = np.repeat(np.arange(examples) < round(share * examples), ANSWERS).astype(np.float32)
        documents = np.repeat(np.arange(examples), ANSWERS)
        nll = np.where(correct, 0.1, 3).astype(np.float32)
        scores = Scores(nll, documents, np.ones_like(documents), correct)
        save_scores(score_file(run, row), scores)
        rows.append(with_level(row, scores))
    write_rows(run / "eval.csv", [*read_rows(run / "eval.csv"), *rows])
    return run


def edit_rows(run: Path, edit: Callable[[Row], Row]) -> None:
    write_rows(run / "eval.csv", [edit(row) for row in read_rows(run / "eval.csv")])


def edit_text(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")
