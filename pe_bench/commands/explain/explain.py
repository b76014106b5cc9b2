"""`explain`: score trained models with one change after another, and say in a sentence what follows."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise, product
from pathlib import Path
from typing import Literal

import numpy as np

from pe_bench.commands.evaluate import Evaluation, load_finished, prepare
from pe_bench.commands.explain.bench import Bench, chosen_lengths, plan_targets
from pe_bench.commands.explain.changes import Change, changes_of, changes_of_head, made
from pe_bench.commands.explain.effects import (
    Effect,
    Loss,
    Place,
    best_of,
    effect_of,
    loss_of,
    sentence_of,
    worst_layer,
)
from pe_bench.commands.explain.explanation import Explanation
from pe_bench.commands.explain.measures import Quantity, measures_of
from pe_bench.commands.job import with_weights
from pe_bench.encodings.base import LengthError
from pe_bench.errors import RunError, require
from pe_bench.report.verdicts import unlearned
from pe_bench.runs.find import ScoredRuns, find_runs, is_checkpoint, read_anchors, without_tries
from pe_bench.runs.folder import RunFolder
from pe_bench.runs.rows import Row
from pe_bench.system.cost import count, expect, said_once
from pe_bench.system.machine import cores_of
from pe_bench.system.terminal import Bar, progress_bar
from pe_bench.values import check_type

UNLEARNED = {
    "frequencies": "has learned nothing: at the training length it is no better than token frequencies",
    "trigram": "has not learned yet: at the training length it is worse than a trigram model",
}
By = Literal["head", "layer"]
MOST_SINGLE = 8  # layers: in a model with more, quarters of the depth come before single layers
QUARTERS = 4
TARGETS = 20  # blocks: as many documents as an interval over documents needs
TARGETS_OF_CHECKPOINT = 4


def explain_runs(names: Sequence[str], by: Sequence[str], request: Evaluation) -> Explanation:
    """Return why runs of one encoding fail at longer texts.

    by: head: also change the heads of the layer that matters most; layer: also measure each layer. Raises
    `UserError`, `RunError`.
    """
    for each in by:
        check_type(each, By, "--by")
    benches = [load_bench(name, request) for name in _found(names, request)]
    first = benches[0].job
    for bench in benches[1:]:
        is_same = (bench.job.label, bench.job.setting) == (first.label, first.setting)
        message = f"{bench.job.folder.name} is not another seed of {first.folder.name}: name one run in full"
        require(is_same, message)
    lengths = chosen_lengths(first.config, request.lengths)
    runs = tuple(bench.job.folder for bench in benches)
    with said_once(lambda pieces: f"explaining {count(len(runs), 'run')}"):
        work = Work(benches, lengths)
        losses, effects = work.explain(by_head="head" in by)
        measures = work.measures() if "layer" in by else []
    train_length = first.config.train.length
    plan = benches[0].plans[train_length]
    unlearned_text = _unlearned(runs)
    sentence = sentence_of(first.label, train_length, losses, effects)
    return Explanation(
        label=first.label,
        runs=runs,
        train_length=train_length,
        lengths=tuple(lengths),
        targets=plan.targets,
        documents=plan.documents,
        has_bytes=not first.data.validation.loses_text,
        losses=tuple(losses),
        effects=tuple(effects),
        measures=tuple(measures),
        unlearned=unlearned_text,
        sentence=sentence,
    )


def _found(names: Sequence[str], request: Evaluation) -> list[str | Path]:
    """Return the runs with these names, or one checkpoint."""
    checkpoints = [name for name in names if is_checkpoint(name)]
    if checkpoints:
        require(len(names) == 1, f"give one checkpoint at a time, not {', '.join(names)}")
        return [*checkpoints]
    return [*without_tries(find_runs(names, request.results_dir, anywhere=True))]


def _unlearned(folders: Sequence[Path]) -> str:
    """Return the warning for runs that do not beat token frequencies or a trigram model, by their scores.

    Empty for runs that do, for later stages of a training, and where the scores do not tell.
    """
    runs = {folder.name: RunFolder(folder) for folder in folders if (folder / "result.json").is_file()}
    rows: list[Row] = []
    for run in runs.values():
        if not run.first_stage:
            rows += [row for row in run.rows if (row.protocol, row.score_dtype) == ("paired", "float32")]
    anchors = read_anchors(folders[0].parent.parent / "anchors")
    lacks = unlearned(rows, ScoredRuns(runs.__getitem__, anchors))
    return UNLEARNED.get(lacks, "")


def load_bench(run: str | Path, request: Evaluation) -> Bench:
    """Load a finished run, or a checkpoint, with the targets to score. Raises `UserError`, `RunError`."""
    is_run = isinstance(run, Path)
    message = f"{run} has no default lengths to score: give them with --lengths"
    require(is_run or request.lengths is not None, message)
    targets = request.targets or (TARGETS if is_run else TARGETS_OF_CHECKPOINT)
    planner = partial(plan_targets, request.lengths)
    prepared = prepare(run, replace(request, targets=targets), planner=planner)
    message = f"{prepared.folder.name} answers a task, and explain scores text: name another run"
    require(prepared.config.task is None, message)
    if prepared.loaded is not None:
        job, plans, _ = prepared.loaded
        why = "keeps its own attention, in which nothing can be changed: leave --plain out"
        require(getattr(job.model, "state", None) is not None, f"{run} {why}")
        return Bench.of(job, plans)
    loaded = load_finished(prepared.folder, prepared.config, planner)
    message = f"{prepared.folder.name} is a run of a Hugging Face model: use pe-bench explain hf:FOLDER"
    require(loaded.trained is not None, message)
    assert loaded.trained is not None
    return Bench.of(with_weights(loaded.job, loaded.trained), loaded.plans)


@dataclass
class Work:
    """The models of all seeds with their scores."""

    benches: list[Bench]
    lengths: list[int]

    def __post_init__(self) -> None:
        self.train_length = self.benches[0].train_length
        self.n_layers = self.benches[0].job.model.n_layers
        self.levels: dict[int, np.ndarray] = {}  # as they are, [seeds, documents]
        self.seconds: dict[int, float] = {}

    def explain(self, *, by_head: bool = False) -> tuple[list[Loss], list[Effect]]:
        """Return what is lost at each length, and what each change restores of it."""
        losses = self._losses()
        effects: list[Effect] = []
        if not any(loss.is_sure for loss in losses):
            return losses, effects
        changes = changes_of(self.train_length)
        of_each = [change for change in changes if change.of_each]
        singles = [Place((number,)) for number in range(self.n_layers)]
        parts = singles if self.n_layers <= MOST_SINGLE else quarters(self.n_layers)
        everything = Place(tuple(range(self.n_layers)), is_all=True)
        of_all = [(change, everything) for change in changes if change.of_all]
        effects += self._effects([*of_all, *product(of_each, parts)], losses)
        if parts is not singles:
            best = best_of((effect for effect in effects if effect.place in parts), losses)
            worst = parts[0] if best is None else best.place
            effects += self._effects([*product(of_each, [singles[n] for n in worst.layers])], losses)
        layer = worst_layer(losses, effects)
        if by_head and layer is not None:
            effects += self._effects(self._of_heads(layer), losses)
        order = {change.name: number for number, change in enumerate(changes)}
        return losses, sorted(effects, key=lambda effect: order[effect.change])

    def _of_heads(self, layer: int) -> list[tuple[Change, Place]]:
        """Return the changes of each head of a layer."""
        n_heads = self.benches[0].job.config.model.n_heads
        planned: list[tuple[Change, Place]] = []
        for head in range(n_heads):
            changes = changes_of_head(self.train_length, head, n_heads)
            planned += [(change, Place((layer,), head)) for change in changes]
        return planned

    def measures(self) -> list[Quantity]:
        """Return what is measured in each layer at each length that was scored."""
        values: dict[int, list[dict[tuple[int, str], np.ndarray]]] = {}
        for length in self.levels:
            values[length] = [bench.measured(length) for bench in self.benches]
        model = self.benches[0].job.model
        layers = [model.layer(number) for number in range(self.n_layers)]
        return measures_of(values, self.benches[0].clusters, layers, self.train_length)

    def _losses(self) -> list[Loss]:
        """Score the unchanged models, and return what is lost at each length. Raises `RunError`."""
        reason = self._score_unchanged(self.train_length)
        if reason:
            raise RunError(f"nothing can be scored at the training length: {reason}")
        losses: list[Loss] = []
        for length in self.lengths:
            reason = self._score_unchanged(length)
            if reason:
                losses.append(Loss(length, reason=reason))
            else:
                losses.append(loss_of(length, self.levels[self.train_length], self.levels[length]))
        return losses

    def _score_unchanged(self, length: int) -> str:
        """Keep the levels and the seconds at a length, or return why it cannot be scored."""
        began = time.monotonic()
        levels = [bench.plain_level(length) for bench in self.benches]
        self.seconds[length] = time.monotonic() - began
        reasons = [level for level in levels if isinstance(level, str)]
        if reasons:
            return reasons[0]
        self.levels[length] = np.stack(levels)
        return ""

    def _effects(self, planned: Sequence[tuple[Change, Place]], losses: Sequence[Loss]) -> list[Effect]:
        """Return the effect of each change at each length where something is lost."""
        lost = {loss.length: loss for loss in losses if loss.is_sure}
        jobs = [(change, place, length) for length in lost for change, place in planned]
        jobs += [(change, place, self.train_length) for change, place in planned if change.acts_within]
        # By the first changed layer, so that the inputs of one layer are kept at a time.
        jobs.sort(key=lambda job: (job[2], job[1].layers[0]))
        job = self.benches[0].job
        seconds = sum(self._cost(place, length) for _, place, length in jobs)
        expect(seconds, cores_of(job.device, job.threads))
        effects: list[Effect] = []
        with progress_bar("explain", len(jobs)) as bar:
            for number, (change, place, length) in enumerate(jobs):
                self._show(bar, number, jobs)
                effects.append(self._effect(change, place, length, lost.get(length)))
        return effects

    def _cost(self, place: Place, length: int) -> float:
        """Return the seconds to score a change; layers below it are computed once for many changes."""
        shared = place.layers[0] if self.benches[0].job.model.has_parts else 0
        return self.seconds[length] * (1 - shared / self.n_layers)

    def _show(self, bar: Bar, number: int, jobs: Sequence[tuple[Change, Place, int]]) -> None:
        change, place, length = jobs[number]
        is_next = number > 0 and jobs[number - 1][2] != length
        line = f"length {jobs[number - 1][2]:,} done" if is_next else None
        bar.show(number, f"length {length:,}, {change.name}, layer {place}", line)

    def _effect(self, change: Change, place: Place, length: int, loss: Loss | None) -> Effect:
        changed: list[np.ndarray] = []
        for bench in self.benches:
            model = made(bench.subject(length), change, place.layers, is_all=place.is_all)
            if isinstance(model, str):
                return Effect(change.name, change.words, place, length, reason=model)
            try:
                changed.append(bench.level(model, length))
            except LengthError as error:
                return Effect(change.name, change.words, place, length, reason=str(error))
        levels = (self.levels[self.train_length], self.levels[length], np.stack(changed))
        return effect_of(change, place, length, levels, loss)


def quarters(n_layers: int) -> list[Place]:
    """Return the layers 0 to n_layers - 1 as four ranges of consecutive layers, as equal as can be."""
    edges = [round(n_layers * number / QUARTERS) for number in range(QUARTERS + 1)]
    return [Place(tuple(range(*pair))) for pair in pairwise(edges)]
