"""`explain`: score trained models with one change after another, and name the cause in a sentence."""

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise, product
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from pe_bench.commands.evaluate import Evaluation, load_finished, prepare
from pe_bench.commands.explain.bench import Bench, chosen_lengths, plan_targets
from pe_bench.commands.explain.changes import Change, changed_model, head_changes, layer_changes
from pe_bench.commands.explain.effects import (
    Effect,
    Loss,
    Place,
    best_effect,
    cause_sentence,
    effect_of,
    loss_of,
    surely_restores_something,
    worst_layer,
)
from pe_bench.commands.explain.explanation import Explanation
from pe_bench.commands.explain.measures import LayerMeasure, TargetValues, layer_measures
from pe_bench.commands.job import with_weights
from pe_bench.encodings.base import LengthError
from pe_bench.errors import RunError, require
from pe_bench.report.verdicts import unlearned
from pe_bench.runs.find import ScoredRuns, find_runs, is_hf_name, read_anchors, without_tries
from pe_bench.runs.folder import RunFolder
from pe_bench.runs.rows import Row
from pe_bench.system.cost import Cost, count, expect, print_cost_once
from pe_bench.system.machine import cores_of
from pe_bench.system.terminal import progress_bar, say
from pe_bench.values import check_type

UNLEARNED_TEXTS = {
    "frequencies": "has learned nothing: at the training length it is no better than token frequencies",
    "trigram": "has not learned yet: at the training length it is worse than a trigram model",
}
ByOption = Literal["head", "layer"]
MAX_SINGLE_LAYERS = 8  # layers: in a model with more, quarters of the depth come before single layers
QUARTERS = 4
MIN_SECONDS_BETWEEN_LINES = 60.0  # between lines of progress, if standard error is no terminal
# If scoring the training length takes longer, the cost is estimated before longer lengths are scored.
SLOW_SECONDS = 10.0
TARGET_BLOCKS = 20  # blocks: as many documents as an interval over documents needs
TARGET_BLOCKS_OF_HF_MODEL = 4


def explain_runs(names: Sequence[str], by: Sequence[str], request: Evaluation) -> Explanation:
    """Find out why runs of one encoding fail at longer texts.

    by: `head` also changes the heads of the layer in which a change restores most; `layer` also measures each
    layer. Raises `UserError`, `RunError`.
    """
    require(bool(names), "no run is named: give seeds of one encoding, such as rope, or hf:FOLDER")
    for each in by:
        check_type(each, ByOption, "--by")
    benches = [load_bench(name, request) for name in _find_runs_or_hf_model(names, request)]
    first = benches[0].job
    for bench in benches[1:]:
        job = bench.job
        message = f"{job.folder.name} is not another seed of {first.folder.name}: name one run in full"
        require(job.label == first.label and job.setting == first.setting, message)
    lengths = chosen_lengths(first.config, request.lengths)
    runs = tuple(bench.job.folder for bench in benches)
    explainer = Explainer(benches, lengths)
    losses, effects = explainer.explain(by_head="head" in by)
    measures = explainer.measures() if "layer" in by else []
    train_length = first.config.train.length
    plan = benches[0].plans[train_length]
    sentence = cause_sentence(first.label, train_length, losses, effects)
    warning = _unlearned_warning(first.label, runs)
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
        warning=warning,
        sentence=sentence,
    )


def _find_runs_or_hf_model(names: Sequence[str], request: Evaluation) -> list[str | Path]:
    """Return the folders of the runs with these names, or the name of the one Hugging Face model.

    Raises `UserError` for a name without a finished run, and for several names with a Hugging Face model.
    """
    if any(map(is_hf_name, names)):
        text = ", ".join(names)
        require(len(names) == 1, f"give one Hugging Face model at a time, not {text}")
        return [*names]
    return [*without_tries(find_runs(names, request.results_dir, anywhere=True))]


def _unlearned_warning(label: str, folders: Sequence[Path]) -> str:
    """Return the warning for runs that do not beat token frequencies or a trigram model, by their scores.

    Empty for runs that beat both, for later stages of a training, and where scores are missing.
    """
    finished = [folder for folder in folders if (folder / "result.json").is_file()]
    runs = {folder.name: RunFolder(folder) for folder in finished}
    rows: list[Row] = []
    for run in runs.values():
        if not run.first_stage:
            paired = [row for row in run.rows if row.protocol == "paired"]
            rows += [row for row in paired if row.score_dtype == "float32"]
    anchors = read_anchors(folders[0].parent.parent / "anchors")
    anchor = unlearned(rows, ScoredRuns(runs.__getitem__, anchors))
    if anchor not in UNLEARNED_TEXTS:
        return ""
    return f"{label} {UNLEARNED_TEXTS[anchor]}, so its losses at longer lengths mean little"


def load_bench(run: str | Path, request: Evaluation) -> Bench:
    """Load a finished run, or a Hugging Face model, and plan its targets. Raises `UserError`, `RunError`."""
    is_run = isinstance(run, Path)
    message = f"{run} has no default lengths to score: give them with --lengths"
    require(is_run or request.lengths is not None, message)
    targets = request.targets
    if targets is None:
        targets = TARGET_BLOCKS if is_run else TARGET_BLOCKS_OF_HF_MODEL
    planner = partial(plan_targets, request.lengths)
    prepared = prepare(run, replace(request, targets=targets), planner=planner)
    message = f"{prepared.folder.name} answers a task, and explain scores text: name another run"
    require(prepared.config.task is None, message)
    if prepared.loaded is not None:
        job, plans, _ = prepared.loaded
        has_encoding = getattr(job.model, "state", None) is not None
        why = "keeps its own attention, in which nothing can be changed: leave --plain out"
        require(has_encoding, f"{run} {why}")
        return Bench.from_job(job, plans)
    message = f"{prepared.folder.name} is a run of a Hugging Face model: use pe-bench explain hf:FOLDER"
    require(prepared.config.hf_model is None, message)
    loaded = load_finished(prepared.folder, prepared.config, planner)
    assert loaded.trained is not None
    return Bench.from_job(with_weights(loaded.job, loaded.trained), loaded.plans)


class Experiment(NamedTuple):
    """A change to score in a place at a length."""

    change: Change
    place: Place
    length: int

    def __str__(self) -> str:
        return f"length {self.length:,}, {self.change.name}, layer {self.place}"


@dataclass
class Explainer:
    """Scores the models of all seeds, unchanged and with changes."""

    benches: list[Bench]  # one for each seed
    lengths: list[int]  # the lengths to explain, above the training length

    def __post_init__(self) -> None:
        self.train_length = self.benches[0].train_length
        self.n_layers = self.benches[0].job.model.n_layers
        # Of the unchanged models, by length.
        self.levels: dict[int, np.ndarray] = {}  # [seeds, clusters]
        self.seconds: dict[int, float] = {}

    def explain(self, *, by_head: bool = False) -> tuple[list[Loss], list[Effect]]:
        """Return the loss at each length, and the effect of each change at the lengths with a sure loss.

        Without a sure loss there are no effects. by_head: also change the heads of the worst layer.
        """
        changes = layer_changes(self.train_length)
        for_parts = [change for change in changes if change.in_single_layers]
        everything = Place(tuple(range(self.n_layers)), is_all=True)
        singles = [Place((number,)) for number in range(self.n_layers)]
        planned = [(change, everything) for change in changes if change.in_all_layers]
        is_deep = self.n_layers > MAX_SINGLE_LAYERS
        if not is_deep:
            planned += product(for_parts, singles)
        with self._printed_cost("changes of all layers" if is_deep else ""):
            losses = self._score_losses(planned)
            effects: list[Effect] = []
            if not any(loss.is_sure for loss in losses):
                return losses, effects
            effects += self._effects_of_changes(planned, losses)
        if is_deep:
            effects += self._effects_in_parts(helpful_changes(for_parts, effects), losses)
        layer = worst_layer(losses, effects)
        if by_head and layer is not None:
            effects += self._effects_of_changes(self._head_changes(layer), losses)
        order = {change.name: number for number, change in enumerate(changes)}
        return losses, sorted(effects, key=lambda effect: order[effect.change])

    def _printed_cost(self, work: str) -> AbstractContextManager[Cost]:
        """Return a context that prints, once, the expected time of `work`; empty: of the whole command."""
        text = f"explaining {count(len(self.benches), 'run')}"
        return print_cost_once(lambda left: f"{text}: {work}" if work else text)

    def _effects_in_parts(self, changes: Sequence[Change], losses: Sequence[Loss]) -> list[Effect]:
        """Return the effects of changes in quarters of the depth, then in each layer of the worst quarter.

        The worst quarter is the one in which a change surely restores most. In its layers, only the changes
        that surely restore something in the whole quarter are tried.
        """
        if not changes:
            say("no change of all layers surely restores anything, so no part of the model is changed alone")
            return []
        with self._printed_cost("changes of quarters"):
            effects = self._effects_of_changes([*product(changes, quarters(self.n_layers))], losses)
        worst = best_effect(filter(surely_restores_something, effects), losses)
        if worst is None:
            say("no change of a quarter surely restores anything, so no single layer or head is changed")
            return effects
        changes = helpful_changes(changes, [effect for effect in effects if effect.place == worst.place])
        inside = [Place((number,)) for number in worst.place.layers]
        with self._printed_cost("changes of single layers"):
            effects += self._effects_of_changes([*product(changes, inside)], losses)
        return effects

    def _head_changes(self, layer: int) -> list[tuple[Change, Place]]:
        """Return the changes to try in each head of a layer, each with its place."""
        n_heads = self.benches[0].job.config.model.n_heads
        changes_with_places: list[tuple[Change, Place]] = []
        for head in range(n_heads):
            changes = head_changes(self.train_length, head, n_heads)
            changes_with_places += [(change, Place((layer,), head)) for change in changes]
        return changes_with_places

    def measures(self) -> list[LayerMeasure]:
        """Measure each layer at each length that was scored."""
        values_at_lengths: dict[int, list[TargetValues]] = {}
        for length in self.levels:
            values_at_lengths[length] = [bench.measure(length) for bench in self.benches]
        model = self.benches[0].job.model
        layers = [model.layer(number) for number in range(self.n_layers)]
        return layer_measures(values_at_lengths, self.benches[0].clusters, layers, self.train_length)

    def _score_losses(self, planned: Sequence[tuple[Change, Place]]) -> list[Loss]:
        """Score the unchanged models, and return the loss at each length. Raises `RunError`.

        planned: the changes to come, each with its place, for an early estimate of the cost.
        """
        reason = self._score_unchanged(self.train_length)
        if reason:
            raise RunError(f"nothing can be scored at the training length: {reason}")
        if self.seconds[self.train_length] > SLOW_SECONDS:
            self._expect_cost(planned)
        within = self.levels[self.train_length]
        losses: list[Loss] = []
        for length in self.lengths:
            reason = self._score_unchanged(length)
            if reason:
                losses.append(Loss(length, reason=reason))
            else:
                losses.append(loss_of(length, within, self.levels[length]))
        return losses

    def _expect_cost(self, planned: Sequence[tuple[Change, Place]]) -> None:
        """Report the cost of all lengths and of the planned changes, before longer lengths are scored.

        The cost is assumed to be proportional to the length, and every length to have a sure loss.
        """
        for length in self.lengths:
            self.seconds[length] = self.seconds[self.train_length] * length / self.train_length
        experiments = [Experiment(*each, length) for length, each in product(self.lengths, planned)]
        unchanged = sum(self.seconds[length] for length in self.lengths)
        self._expect_seconds(unchanged + self._seconds_of(experiments))

    def _expect_seconds(self, seconds: float) -> None:
        """Report the expected seconds of the work, and the cores in use."""
        job = self.benches[0].job
        expect(seconds, cores_of(job.device, job.threads))

    def _score_unchanged(self, length: int) -> str:
        """Score the unchanged models at a length. Returns the reason for a missing score, else ""."""
        began = time.monotonic()
        levels = [bench.unchanged_levels(length) for bench in self.benches]
        self.seconds[length] = time.monotonic() - began
        reasons = [level for level in levels if isinstance(level, str)]
        if reasons:
            return reasons[0]
        self.levels[length] = np.stack(levels)
        return ""

    def _effects_of_changes(
        self, planned: Sequence[tuple[Change, Place]], losses: Sequence[Loss]
    ) -> list[Effect]:
        """Return the effect of each change at each length with a sure loss.

        A change that also acts on texts of the training length has an effect at the training length too.
        planned: each change with its place.
        """
        lost = {loss.length: loss for loss in losses if loss.is_sure}
        experiments = [Experiment(*each, length) for length, each in product(lost, planned)]
        acting = [each for each in planned if each[0].acts_within]
        experiments += [Experiment(*each, self.train_length) for each in acting]
        # By the first changed layer, so that the inputs of one layer are kept at a time.
        experiments.sort(key=lambda each: (each.length, each.place.layers[0]))
        self._expect_seconds(self._seconds_of(experiments))
        effects: list[Effect] = []
        last_line = time.monotonic()
        with progress_bar("explain", len(experiments)) as bar:
            for number, experiment in enumerate(experiments):
                line = None
                if time.monotonic() > last_line + MIN_SECONDS_BETWEEN_LINES:
                    line = f"{number} of {len(experiments)} changes scored, next: {experiment}"
                    last_line = time.monotonic()
                bar.show(number, str(experiment), line)
                effects.append(self._score_change(experiment, lost.get(experiment.length)))
        return effects

    def _seconds_of(self, experiments: Sequence[Experiment]) -> float:
        """Return the expected seconds to score changes, and to fit what is not fitted yet."""
        scoring = sum(map(self._seconds_to_score, experiments))
        lengths = {experiment.length for experiment in experiments}
        return scoring + sum(map(self._seconds_to_fit, lengths))

    def _seconds_to_fit(self, length: int) -> float:
        """Return the expected seconds of the passes that fit factors at a length, a lower bound.

        The time to compute entropies is left out.
        """
        once = self.seconds[length] + self.seconds[self.train_length]
        return once * self.benches[0].fit_windows_ratio(length)

    def _seconds_to_score(self, experiment: Experiment) -> float:
        """Return the expected seconds to score a change.

        The layers below the first changed layer do not count, because changes share their outputs.
        """
        has_parts = self.benches[0].job.model.has_parts
        shared = experiment.place.layers[0] if has_parts else 0
        return self.seconds[experiment.length] * (1 - shared / self.n_layers)

    def _score_change(self, experiment: Experiment, loss: Loss | None) -> Effect:
        """Score a change in its place, and return its effect. loss: None at the training length."""
        change, place, length = experiment
        changed_levels: list[np.ndarray] = []
        for bench in self.benches:
            model = changed_model(bench.subject(length), change, place.layers, is_all=place.is_all)
            if isinstance(model, str):
                return Effect(change.name, change.words, place, length, reason=model)
            try:
                changed_levels.append(bench.levels(model, length))
            except LengthError as error:
                return Effect(change.name, change.words, place, length, reason=str(error))
        within = self.levels[self.train_length]
        levels = (within, self.levels[length], np.stack(changed_levels))
        return effect_of(change, place, length, levels, loss)


def quarters(n_layers: int) -> list[Place]:
    """Return the layers 0 to n_layers - 1 as four ranges of consecutive layers, as equal as can be."""
    depths = range(QUARTERS + 1)
    edges = [round(n_layers * quarter / QUARTERS) for quarter in depths]
    return [Place(tuple(range(*pair))) for pair in pairwise(edges)]


def helpful_changes(changes: Sequence[Change], effects: Sequence[Effect]) -> list[Change]:
    """Return the changes with at least one effect that surely restores a part of the loss."""
    helpful = {effect.change for effect in effects if surely_restores_something(effect)}
    return [change for change in changes if change.name in helpful]
