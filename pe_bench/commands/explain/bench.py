"""The targets that `explain` scores, and a model's levels on these targets, changed and unchanged."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from torch import Tensor

from pe_bench.commands.explain.changes import Subject
from pe_bench.commands.explain.fit import fitted_factors
from pe_bench.commands.explain.measures import Measuring
from pe_bench.commands.explain.observe import queries_of, watched
from pe_bench.config.schema import Config, EvalConfig
from pe_bench.data.packed import Data
from pe_bench.errors import require
from pe_bench.model.decoder import LanguageModel
from pe_bench.runs.job import Job
from pe_bench.scoring.protocols import Plan, paired_plan, scores_of
from pe_bench.scoring.scorer import Scored, Scorer
from pe_bench.scoring.targets import TargetBlocks, target_blocks

FITTED_BLOCKS = 8  # of targets to fit on, in documents without a scored target
TIMES = (2, 4)  # times the training length; the longest length is scored too


def chosen_lengths(config: Config, asked: Sequence[int] | None) -> list[int]:
    """Return the lengths to explain, in rising order: by default 2, 4 and 16 times the training length."""
    train_length = config.train.length
    usual = [*(times * train_length for times in TIMES), config.eval.resolved_max_length(train_length)]
    lengths = sorted({length for length in asked or usual if length > train_length})
    message = f"--lengths has no length above the training length, {train_length:,}: give longer ones"
    require(bool(lengths), message)
    return lengths


def plan_targets(
    asked: Sequence[int] | None, config: Config, evaluation: EvalConfig, data: Data
) -> list[Plan]:
    """Return the plans of the scored targets at each length, then the plans of the targets to fit on.

    asked: lengths in tokens, beyond the training length. Raises `UserError` where no document is long enough.
    """
    lengths = [config.train.length, *chosen_lengths(config, asked)]
    count = evaluation.targets
    size = evaluation.resolved_target_tokens(config.train.length)
    room = (data.validation, max(lengths), size, count + FITTED_BLOCKS)
    blocks = target_blocks(*room, evaluation.seed, data.hash, evaluation.half)
    scored = blocks.chosen(blocks.turn < count)
    others = blocks.chosen(~np.isin(blocks.document, scored.document))
    return [paired_plan(part, length) for part in _not_empty(scored, others) for length in lengths]


def _not_empty(*parts: TargetBlocks) -> list[TargetBlocks]:
    return [part for part in parts if len(part)]


class Inputs(NamedTuple):
    """What a layer of the unchanged model gets at a length: a tensor [B, T, D] for each pass of the plan."""

    length: int
    layer: int
    of_passes: list[Tensor]


@dataclass
class Bench:
    """A trained model on its device, and the plans of its targets.

    plans, fitted_on: by length; fitted_on is empty if all documents are scored.
    """

    job: Job
    plans: dict[int, Plan]
    fitted_on: dict[int, Plan]
    _subjects: dict[int, Subject] = field(default_factory=dict)
    _inputs: "Inputs | None" = None

    @classmethod
    def of(cls, job: Job, plans: Sequence[Plan]) -> "Bench":
        scored_hash = plans[0].target_hash
        scored = {plan.length: plan for plan in plans if plan.target_hash == scored_hash}
        fitted_on = {plan.length: plan for plan in plans if plan.target_hash != scored_hash}
        return cls(replace(job, model=job.model.to(job.device).eval()), scored, fitted_on)

    @property
    def train_length(self) -> int:
        return self.job.config.train.length

    def subject(self, length: int) -> Subject:
        """Return the model at a length, with the factors fitted at this length."""
        if length not in self._subjects:
            first = self.plans[length].windows[0].first
            self._subjects[length] = self._fitted(Subject(self.job.model, self.train_length, length, first))
        return self._subjects[length]

    def _fitted(self, subject: Subject) -> Subject:
        if not self.fitted_on or subject.length <= subject.train_length:
            return subject
        within = self.fitted_on[subject.train_length]
        beyond = self.fitted_on[subject.length]
        return replace(subject, factors=fitted_factors(subject, within, beyond, self.pass_through))

    def pass_through(self, model: LanguageModel, plan: Plan) -> Scored:
        """Score a plan with a model. Raises `LengthError`."""
        return Scorer(model, self.job.data.validation, self.job.config.eval).score(plan)

    def plain_level(self, length: int) -> np.ndarray | str:
        """Return the level of the unchanged model by document, or why it cannot be scored at this length."""
        scorer = Scorer(self.job.model, self.job.data.validation, self.job.config.eval)
        plan = self.plans[length]
        ((_, scored),) = scorer.scores([plan])
        return scored.reason if scored.status != "ok" else self._by_document(plan, scored)

    def level(self, model: LanguageModel, length: int) -> np.ndarray:
        """Return the bits per byte of each document, or of parts of documents if there are few documents.

        The layers below the first changed layer compute what they do in the unchanged model, so they are
        computed once for all models with this first changed layer.
        """
        plan = self.plans[length]
        unchanged = self.job.model
        if unchanged.has_parts:
            first = min(unchanged.first_difference(model), unchanged.n_layers - 1)
            if first:
                model = model.part(range(first, model.n_layers), self._inputs_of(first, length).of_passes)
        return self._by_document(plan, self.pass_through(model, plan))

    def measured(self, length: int) -> dict[tuple[int, str], np.ndarray]:
        """Return what is measured in the unchanged model, by layer and name, float64 [targets]."""
        plan = self.plans[length]
        measuring = Measuring(self.train_length, length, queries_of(plan))
        self.pass_through(watched(self.job.model, measuring), plan)
        return measuring.of_targets(plan.targets)

    @property
    def clusters(self) -> np.ndarray:
        """Return the document of each target, or its part of a document, int64 [targets]."""
        plan = self.plans[self.train_length]
        nothing = np.zeros(plan.targets, np.float32)
        return scores_of(plan, self.job.data.validation, nothing).clusters.index

    def _inputs_of(self, layer: int, length: int) -> Inputs:
        """Return what a layer above the first gets; it is computed from the kept inputs of a lower layer."""
        kept = self._inputs
        if kept is None or kept.length != length or kept.layer > layer:
            kept = Inputs(length, 0, [])
        if kept.layer < layer:
            outputs: list[Tensor] = []
            below = self.job.model.part(range(kept.layer, layer), kept.of_passes or None, outputs)
            self.pass_through(below, self.plans[length])
            kept = Inputs(length, layer, outputs)
        self._inputs = kept
        return kept

    def _by_document(self, plan: Plan, scored: Scored) -> np.ndarray:
        return scores_of(plan, self.job.data.validation, scored.nll).by_cluster()[1]
