"""Score the anchors of a run on its targets, once for all runs that train on the same windows."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np

from pe_bench.config.schema import Config
from pe_bench.data.packed import Data
from pe_bench.errors import RunError
from pe_bench.runs.anchors import NAMES
from pe_bench.runs.lock import locked
from pe_bench.runs.rows import APART, Row, read_rows, write_rows
from pe_bench.runs.scores import Scores, has_whole_scores, save_scores, score_file, with_level
from pe_bench.scoring.anchors import Anchors, count_anchors
from pe_bench.scoring.protocols import Plan, batches, inputs, target_bytes, target_documents, targets
from pe_bench.scoring.slices import keep_derived
from pe_bench.system.files import remove_leftovers
from pe_bench.system.versions import today

VERSION = 1  # of the models: raise it when their scores change
BATCH_TOKENS = 2**21

Place = tuple[object, ...]


def score_anchors(
    folder: Path, config: Config, data: Data, plans: Sequence[Plan], rows: Sequence[Row]
) -> None:
    """Score what is missing in the folder of anchors, for plans whose `rows` a run has.

    Controls and ranges of positions have no anchors. After each length its scores and its rows are on the
    disk.
    """
    row_of = {_place(row): row for row in rows}
    wanted = [
        plan
        for plan in plans
        if plan.control == "none" and plan.protocol not in APART and _place(plan) in row_of
    ]
    folder.mkdir(exist_ok=True)
    with locked(folder, waits=lambda reason: None):
        paths = {label: folder / f"{name}-{_suffix(config, data)}" for label, name in NAMES.items()}
        kept = {label: _kept_rows(path) for label, path in paths.items()}
        missing = [plan for plan in wanted if not all(_place(plan) in known for known in kept.values())]
        if not wanted:
            return
        for path in paths.values():
            path.mkdir(exist_ok=True)
            remove_leftovers(path)
        counted = [count_anchors(data, config.train, config.seed)] if missing else []
        for anchors, plan in product(counted, missing):
            for label, scores in _scores(anchors, data, plan).items():
                path = paths[label]
                row = with_level(_anchor_row(row_of[_place(plan)], path.name, label), scores)
                save_scores(score_file(path, row), scores)
                kept[label][_place(plan)] = row
                write_rows(path / "eval.csv", sorted(kept[label].values(), key=lambda row: row.order))
        for label, path in paths.items():
            keep_derived(path, data, wanted, kept[label].values(), config.train.length)


def _place(scored: Row | Plan) -> Place:
    """Return what tells the scores of one anchor apart."""
    return scored.protocol, scored.stride_rule, scored.control, scored.length, scored.target_hash


def _suffix(config: Config, data: Data) -> str:
    """Return the seed, and a hash of all that the models are counted on."""
    train = config.train
    words = repr((VERSION, data.hash, train.length, train.batch, train.total_steps, config.seed))
    return f"s{config.seed}-{hashlib.sha256(words.encode()).hexdigest()[:8]}"


def _kept_rows(path: Path) -> dict[Place, Row]:
    """Return the rows whose scores are there too; lost or damaged files are made again."""
    try:
        rows = read_rows(path / "eval.csv")
    except RunError:
        return {}
    return {_place(row): row for row in rows if has_whole_scores(path, row)}


def _scores(anchors: Anchors, data: Data, plan: Plan) -> Mapping[str, Scores]:
    """Return the scores of each model on the targets of a plan, each reading the plan's windows alone."""
    found: dict[str, list[np.ndarray]] = {label: [] for label in NAMES}
    split = data.validation
    for batch in batches(plan.windows, BATCH_TOKENS):
        first = batch[0].first + 1
        read = inputs(split, batch).numpy()[:, :first]
        tokens = np.concatenate([read, targets(split, batch).numpy()], axis=1)
        for label, probability in anchors.probabilities(tokens, first).items():
            found[label].append(-np.log(probability).ravel())
    documents, sizes = target_documents(plan.windows), target_bytes(split, plan.windows)
    return {
        label: Scores(np.concatenate(parts).astype(np.float32), documents, sizes)
        for label, parts in found.items()
    }


def _anchor_row(row: Row, name: str, label: str) -> Row:
    """Return the row of an anchor on the targets of a run's row: nothing of the run's model is in it."""
    return replace(
        row,
        run=name,
        encoding=label,
        scored_with=label,
        forced=False,
        knows_length=False,
        model="",
        setting="",
        status="ok",
        reason="",
        parameters=0,
        encoding_lr=1.0,
        tokens_per_second=0.0,
        peak_memory_mb=None,
        device="cpu",
        train_dtype="",
        score_dtype="float32",
        threads=1,
        date=today(),
    )
