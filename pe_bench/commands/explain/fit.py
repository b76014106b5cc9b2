"""Fit a factor of each head's logits, so that its mean entropy is the same as at the training length."""

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from pe_bench.commands.explain.changes import Subject
from pe_bench.commands.explain.observe import Seen, Watch, entropies, queries_of, watched
from pe_bench.model.decoder import LanguageModel
from pe_bench.scoring.protocols import Plan

FACTORS = 2.0 ** np.linspace(-1, 3, 17)  # between these, a factor is interpolated
EVERY = 8  # the factors are fitted on one of so many targets


class Entropies(Watch):
    """The mean entropy of each layer's heads, for several factors of the logits.

    queries: the indices of the targets' queries. factors: of the logits.
    """

    def __init__(self, queries: range, factors: np.ndarray) -> None:
        super().__init__(queries)
        self.factors = factors
        self.sums: dict[int, Tensor] = {}  # [factors, H]
        self.counts: dict[int, int] = {}

    def softmax(self, number: int, blocks: Iterator[Seen]) -> None:
        for block in blocks:
            if block.layer.overrides("weights"):
                return
            rows = ((block.queries.index - self.queries.start) % EVERY == 0).nonzero().flatten()
            null = block.layer.null_logit(block.queries)
            if null is not None:
                null = null.expand(*block.logits.shape[:-1], 1)[:, :, rows]
            masked = block.masked[:, :, rows]
            each = [entropies(masked, factor, null).double().sum((0, 2)) for factor in self.factors.tolist()]
            self.sums[number] = torch.stack(each) + self.sums.get(number, 0)
            self.counts[number] = self.counts.get(number, 0) + len(rows) * len(masked)

    def mean(self, number: int) -> np.ndarray:
        """Return the mean entropy [factors, H] of a layer in nats."""
        return (self.sums[number] / self.counts[number]).cpu().numpy()


def fitted_factors(
    subject: Subject, within: Plan, beyond: Plan, score: Callable[[LanguageModel, Plan], object]
) -> dict[int, Tensor]:
    """Return the factor [H] of each layer with softmax, between 1/2 and 8, from plans of the same targets.

    within, beyond: the plans at the training length and at the subject's length. score: scores a plan with a
    model.
    """
    at_training = Entropies(queries_of(within), np.ones(1))
    at_length = Entropies(queries_of(beyond), FACTORS)
    for measured, plan in ((at_training, within), (at_length, beyond)):
        score(watched(subject.model, measured), plan)
    factors: dict[int, Tensor] = {}
    for number in at_length.sums:
        wanted = at_training.mean(number)[0]
        found = at_length.mean(number)
        # Entropy falls as the factor rises; np.interp wants rising points.
        heads = range(found.shape[1])
        logs = [np.interp(wanted[head], found[::-1, head], np.log(FACTORS)[::-1]) for head in heads]
        factors[number] = torch.tensor(np.exp(logs), device=subject.model.device)
    return factors
