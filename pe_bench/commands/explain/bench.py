"""The targets that `explain` scores, and a model's levels on these targets, changed and unchanged."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import NamedTuple

import numpy as np
from torch import Tensor

from pe_bench.commands.explain.changes import ModelAtLength
from pe_bench.commands.explain.fit import fitted_factors
from pe_bench.commands.explain.measures import MeasureCollector, TargetValues
from pe_bench.commands.explain.observe import observed_model, target_queries
from pe_bench.config.schema import Config, EvalConfig
from pe_bench.data.packed import Data
from pe_bench.errors import require
from pe_bench.model.decoder import LanguageModel
from pe_bench.runs.job import Job
from pe_bench.scoring.protocols import Plan, paired_plan, scores_of
from pe_bench.scoring.scorer import Scored, Scorer
from pe_bench.scoring.targets import target_blocks

# At most so many blocks of targets, in other documents, are used for a fit, and no more than are scored.
MOST_FITTED_BLOCKS = 8
DEFAULT_TIMES = (2, 4)  # times the training length; the longest length is scored too


def chosen_lengths(config: Config, asked: Sequence[int] | None) -> list[int]:
    """Return the lengths to explain, in rising order.

    By default they are 2 and 4 times the training length, and the longest length with the same targets: 16
    times the training length unless `eval.max_length` is given. asked: lengths in tokens, of which only those
    above the training length count. Raises `UserError` without any.
    """
    train_length = config.train.length
    usual = [times * train_length for times in DEFAULT_TIMES]
    usual.append(config.eval.resolved_max_length(train_length))
    longer = {length for length in asked or usual if length > train_length}
    message = f"--lengths has no length above the training length, {train_length:,}: give longer ones"
    require(bool(longer), message)
    return sorted(longer)


def plan_targets(
    asked: Sequence[int] | None, config: Config, evaluation: EvalConfig, data: Data
) -> list[Plan]:
    """Return the plans of the scored targets, then of the targets to fit on if there are any, at each length.

    The training length is one of the lengths. asked: as in `chosen_lengths`. evaluation: the section `eval`
    that chooses the targets. Raises `UserError` where no document is long enough.
    """
    lengths = [config.train.length, *chosen_lengths(config, asked)]
    count = evaluation.targets
    size = evaluation.resolved_target_tokens(config.train.length)
    with_fitted = count + min(count, MOST_FITTED_BLOCKS)
    room = (data.validation, max(lengths), size, with_fitted)
    blocks = target_blocks(*room, evaluation.seed, data.hash, evaluation.half)
    scored = blocks.chosen(blocks.turn < count)
    others = blocks.chosen(~np.isin(blocks.document, scored.document))
    parts = [scored, others] if len(others) else [scored]
    return [paired_plan(part, length) for part, length in product(parts, lengths)]


class LayerInputs(NamedTuple):
    """The inputs of one layer of the unchanged model when the plan of a length is scored."""

    length: int
    layer: int
    passes: list[Tensor]  # [B, T, D] for each pass of the plan


@dataclass
class Bench:
    """A trained model on its device, with the plans by which it is scored, changed and unchanged."""

    job: Job
    plans: dict[int, Plan]  # the plan of each length
    # The plan of each length for the change `fitted`; empty if all documents are scored.
    fitted_on: dict[int, Plan]
    _subjects: dict[int, ModelAtLength] = field(default_factory=dict)  # the subject of each length
    _inputs: "LayerInputs | None" = None  # the inputs that were computed last, of one layer

    @classmethod
    def from_job(cls, job: Job, plans: Sequence[Plan]) -> "Bench":
        """Return the bench of a job, its model moved to its device. plans: the plans from `plan_targets`."""
        model = job.model.to(job.device).eval()
        scored_plans: dict[int, Plan] = {}
        fitted_on: dict[int, Plan] = {}
        for plan in plans:
            is_scored = plan.target_hash == plans[0].target_hash
            (scored_plans if is_scored else fitted_on)[plan.length] = plan
        return cls(replace(job, model=model), scored_plans, fitted_on)

    @property
    def train_length(self) -> int:
        return self.job.config.train.length

    def fit_windows_ratio(self, length: int) -> float:
        """Return the number of windows that a fit at a length still reads, over the number scored there.

        Windows of the training length have the same ratio. It is 0 if nothing is left to fit.
        """
        if length in self._subjects or length <= self.train_length or not self.fitted_on:
            return 0
        return len(self.fitted_on[length].windows) / len(self.plans[length].windows)

    def subject(self, length: int) -> ModelAtLength:
        """Return the model to change at a length, the training length or a longer one.

        At a longer length, it has the factors fitted at this length, if there are documents to fit on.
        """
        if length not in self._subjects:
            first = self.plans[length].windows[0].first
            subject = ModelAtLength(self.job.model, self.train_length, length, first)
            self._subjects[length] = self._with_fitted_factors(subject)
        return self._subjects[length]

    def _with_fitted_factors(self, subject: ModelAtLength) -> ModelAtLength:
        """Return the subject with factors fitted at its length, or unchanged where nothing can be fitted."""
        if not self.fitted_on or subject.length <= subject.train_length:
            return subject
        within = self.fitted_on[subject.train_length]
        beyond = self.fitted_on[subject.length]
        return replace(subject, factors=fitted_factors(subject, within, beyond, self.score))

    def score(self, model: LanguageModel, plan: Plan) -> Scored:
        """Score a plan with a model. Raises `LengthError`."""
        return self._scorer(model).score(plan)

    def _scorer(self, model: LanguageModel) -> Scorer:
        return Scorer(model, self.job.data.validation, self.job.config.eval)

    def unchanged_levels(self, length: int) -> np.ndarray | str:
        """Return the unchanged model's levels [clusters], or the reason why the length has no score."""
        plan = self.plans[length]
        ((_, scored),) = self._scorer(self.job.model).scores([plan])
        if scored.status != "ok":
            return scored.reason
        return self._cluster_levels(plan, scored)

    def levels(self, model: LanguageModel, length: int) -> np.ndarray:
        """Return a changed model's level in each cluster (a document or a part of one), float64 [clusters].

        Levels are in bits per byte, or in nats per token where the tokenizer loses text. The layers below the
        first changed layer have the outputs of the unchanged model, so they are computed once for all models
        with this first changed layer.
        """
        plan = self.plans[length]
        unchanged = self.job.model
        if unchanged.has_parts:
            first = min(unchanged.first_difference(model), unchanged.n_layers - 1)
            if first:
                inputs = self._inputs_of(first, length)
                model = model.part(range(first, model.n_layers), inputs.passes)
        return self._cluster_levels(plan, self.score(model, plan))

    def measure(self, length: int) -> TargetValues:
        """Return the measures of all layers of the unchanged model, with a value for each target."""
        plan = self.plans[length]
        collector = MeasureCollector(self.train_length, length, target_queries(plan))
        self.score(observed_model(self.job.model, collector), plan)
        return collector.target_values(plan.targets)

    @property
    def clusters(self) -> np.ndarray:
        """Return the cluster of each target, int64 [targets]: its document, or a part of the document."""
        plan = self.plans[self.train_length]
        zeros = np.zeros(plan.targets, np.float32)  # clusters depend on no score
        return scores_of(plan, self.job.data.validation, zeros).clusters.index

    def _inputs_of(self, layer: int, length: int) -> LayerInputs:
        """Return the inputs of a layer above the first, computed from the kept inputs of a lower layer."""
        kept = self._inputs
        if kept is None or kept.length != length or kept.layer > layer:
            kept = LayerInputs(length, 0, [])
        if kept.layer < layer:
            outputs: list[Tensor] = []
            between = range(kept.layer, layer)
            below = self.job.model.part(between, kept.passes or None, outputs)
            self.score(below, self.plans[length])
            kept = LayerInputs(length, layer, outputs)
        self._inputs = kept
        return kept

    def _cluster_levels(self, plan: Plan, scored: Scored) -> np.ndarray:
        """Return the level of each cluster of a plan's targets, float64 [clusters]."""
        scores = scores_of(plan, self.job.data.validation, scored.nll)
        _, levels = scores.by_cluster()
        return levels
