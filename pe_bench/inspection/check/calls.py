"""Checks that calls of an encoding, and sequences of a batch, do not change each other."""

import torch
from torch import Tensor

from pe_bench.inspection.check.case import TRAIN_LENGTH, VOCABULARY, Case, hidden, tokens, worst
from pe_bench.inspection.check.finding import EXACT, Finding, at_most
from pe_bench.model.decoder import Decoder

# Two lists of ids with the same length, ends and sum, and other ids in between.
IDS = torch.tensor([0, 2, 4, 6, 8, 10, 12, 14, 16])
OTHER_IDS = torch.tensor([0, 1, 4, 6, 8, 10, 12, 15, 16])


@torch.no_grad()
def pure(case: Case) -> Finding:
    """Compare the output before and after other calls, in models that have seen nothing yet."""
    text = tokens(2, 9)
    longer = tokens(2, TRAIN_LENGTH if case.past_training == "undefined" else 2 * TRAIN_LENGTH)
    between = text.clone()
    between[:, 1:-1] = (between[:, 1:-1] + 1 + torch.arange(7) % 9) % len(VOCABULARY)

    def fresh() -> Decoder:
        return case.model_of(case.with_random_parameters())

    model = fresh()
    before = hidden(model, text)
    hidden(model, longer)
    error = worst(hidden(model, text), before)
    if not error <= EXACT:
        return Finding("fails", f"after a longer text the same one differs by {error:.1e}")
    error = worst(hidden(model, between), hidden(fresh(), between))
    if not error <= EXACT:
        return Finding("fails", f"after a text with the same ends a text differs by {error:.1e}")
    model = fresh()
    model.hidden(text, IDS)
    error = worst(model.hidden(text, OTHER_IDS), fresh().hidden(text, OTHER_IDS))
    label = "after other ids between the same ends, or another text, the same call differs by"
    return at_most(error, EXACT, label)


@torch.no_grad()
def batch_independent(case: Case) -> Finding:
    """Compare a sequence alone with the same one in a batch: with other tokens, and with other ids."""
    text = tokens(3, TRAIN_LENGTH)
    error = worst(hidden(case.model, text)[1:2], hidden(case.model, text[1:2]))
    if not error <= EXACT:
        return Finding("fails", f"a sequence alone and in a batch differ by {error:.1e}")
    error = max(_beside_others(case, ids, others) for ids, others in ((IDS, IDS + 3), (OTHER_IDS, IDS + 7)))
    return at_most(error, EXACT, "alone and in a batch, also of other ids, a sequence differs by")


def _beside_others(case: Case, ids: Tensor, others: Tensor) -> float:
    text = tokens(2, len(ids))
    both = case.model.hidden(text, torch.stack([others, ids]))
    return worst(both[1:], case.model.hidden(text[1:], ids))
