"""Fit a factor of each head's logits, so that its mean entropy is the same as at the training length."""

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from pe_bench.commands.explain.changes import ModelAtLength
from pe_bench.commands.explain.observe import Observer, QueryBlock, entropies, observed_model, target_queries
from pe_bench.model.decoder import LanguageModel
from pe_bench.scoring.protocols import Plan

TRIED_FACTORS = 2.0 ** np.linspace(-1, 3, 17)  # a factor between two of these is interpolated
FIT_EVERY_TARGETS = 8  # targets, of which the first is used in the fit


class EntropyObserver(Observer):
    """Measures the mean entropy of each layer's heads, with logits times each of several factors.

    queries: the indices of the targets' queries.
    """

    def __init__(self, queries: range, factors: np.ndarray) -> None:
        super().__init__(queries)
        self.factors = factors
        self.sums: dict[int, Tensor] = {}  # [factors, H]
        self.counts: dict[int, int] = {}  # the number of summed queries

    def see_softmax(self, number: int, blocks: Iterator[QueryBlock]) -> None:
        """Add up the entropies of each `FIT_EVERY_TARGETS`-th query, unless the layer overrides `weights`."""
        for block in blocks:
            if block.layer.overrides("weights"):
                return
            place = block.queries.index - self.queries.start
            rows = (place % FIT_EVERY_TARGETS == 0).nonzero().flatten()
            null = block.layer.null_logit(block.queries)
            if null is not None:
                null = null.expand(*block.logits.shape[:-1], 1)
                null = null[:, :, rows]
            masked = block.masked[:, :, rows]
            entropy_sums: list[Tensor] = []
            for factor in self.factors.tolist():
                entropy_sums.append(entropies(masked, factor, null).double().sum((0, 2)))
            self.sums[number] = self.sums.get(number, 0) + torch.stack(entropy_sums)
            count = len(rows) * len(masked)
            self.counts[number] = self.counts.get(number, 0) + count

    def mean(self, number: int) -> np.ndarray:
        """Return the mean entropy of the weights in layer `number` over the queries seen: nats, [factors, H].

        There is a row for each factor that the logits are multiplied by.
        """
        return (self.sums[number] / self.counts[number]).cpu().numpy()


def fitted_factors(
    subject: ModelAtLength, within: Plan, beyond: Plan, score: Callable[[LanguageModel, Plan], object]
) -> dict[int, Tensor]:
    """Return a factor of each head's logits [H], between 1/2 and 8, for each layer with softmax.

    within, beyond: plans of the same targets, at the training length and at the subject's length. score:
    scores a plan with a model.
    """
    at_training = EntropyObserver(target_queries(within), np.ones(1))
    at_length = EntropyObserver(target_queries(beyond), TRIED_FACTORS)
    score(observed_model(subject.model, at_training), within)
    score(observed_model(subject.model, at_length), beyond)
    # Entropy falls as the factor rises; np.interp wants rising points.
    falling = np.log(TRIED_FACTORS)[::-1]
    factors: dict[int, Tensor] = {}
    for number in at_length.sums:
        (wanted,) = at_training.mean(number)
        found = at_length.mean(number)[::-1]
        logs = [np.interp(wanted[head], found[:, head], falling) for head in range(len(wanted))]
        factors[number] = torch.tensor(np.exp(logs), device=subject.model.device)
    return factors
