r"""What can be measured in each layer: how far back the queries of the targets read, and how sharply.

These numbers describe; only the changes of `changes.py` show causes. Every length has the same
targets, so that a number is compared with the same query's number at the training length L. A_ij is the
weight that query i gives key j, z_ij the logit before the softmax, n_i how many keys the query sees. All are
means over heads, then over targets:

- entropy: -sum_j A_ij ln A_ij over ln n_i: 1 if all visible keys have the same weight. Weight that goes to no
  key (a null logit) counts as one more key.
- first token, first four: the weight of the window's first token, of its first four tokens.
- distance: sum_j A_ij (i - j) over sum_j A_ij, in tokens; `distance without first`: the same without the
  first four tokens of the window.
- far mass: the weight of keys at distance L or more.
- logit range: the largest logit minus the median of visible logits.
- largest far: the share of queries whose largest logit is at distance L or more.
- order kept: of two random keys within L tokens, how often their logits keep their order if the query is
  n - L positions later, at a length of n tokens.
- energy in a band: the sum of |q_i^c| mean_j<=i |k_j^c| over the pairs of features c whose wavelengths, in
  training lengths, are in the band, divided by the sum over all features; the norms are before rotation.
- logit in a band: what these pairs add to the logits that the query reads, sum_j A_ij z_ij^c.
- half-life: of a layer without softmax, the median over heads and features of ln 2 / -g, in tokens.
- state norm: the root of the sum of squares of a head's state after the window's last token.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from pe_bench.commands.explain.changes import (
    BANDS,
    NO_POSITIONS,
    NO_SOFTMAX,
    NOT_TURNED,
    OF_DISTANCES,
    band_text,
)
from pe_bench.commands.explain.observe import Seen, Watch
from pe_bench.encodings.base import LayerEncoding
from pe_bench.encodings.compose import leaves_of
from pe_bench.encodings.recurrent.recurrence import State
from pe_bench.encodings.rotary.rope import Layout, split_pairs
from pe_bench.encodings.scalings.rope_scaling import rotation_at
from pe_bench.model.attention.reference import logits, select_tokens
from pe_bench.report.statistics import Interval, paired_interval

FIRST_TOKENS = 4
PAIRS = 32  # of distances of keys
OF_SOFTMAX = (
    *("entropy", "first token", "first four", "distance", "distance without first", "far mass"),
    *("logit range", "largest far"),
)
OF_STATES = ("half-life", "state norm")
ORDER_KEPT = "order kept"
EDGES = tuple(pairwise((0.0, *BANDS, math.inf)))  # of bands of wavelengths, in training lengths
BAND_TEXTS = tuple(band_text(low, high) for low, high in EDGES)
OF_BANDS = (*(f"energy {band}" for band in BAND_TEXTS), *(f"logit {band}" for band in BAND_TEXTS))
NAMES = (*OF_SOFTMAX, ORDER_KEPT, *OF_BANDS, *OF_STATES)


@dataclass(frozen=True)
class Measure:
    """A number measured in a layer at a length.

    mean: over targets and heads. change: against the training length, query by query; None at the training
    length. reason: why there is no number.
    """

    name: str
    layer: int
    length: int
    mean: float | None = None
    change: Interval | None = None
    reason: str = ""


class Measuring(Watch):
    """Collects the numbers of all queries of a plan's targets, by layer and name.

    queries: the indices of the targets' queries. values: a tensor [B, queries] for each pass.
    """

    def __init__(self, train_length: int, length: int, queries: range) -> None:
        super().__init__(queries, max(0, length - train_length))
        self.train_length = train_length
        self.values: dict[tuple[int, str], list[Tensor]] = {}

    def softmax(self, number: int, blocks: Iterator[Seen]) -> None:
        of_blocks = [measured(block, self.train_length) for block in blocks]
        for name in of_blocks[0]:
            self._add(number, name, torch.cat([values[name] for values in of_blocks], -1))

    def recurrent(self, number: int, state: State) -> None:
        decays = -state.log_decay[:, :, self.queries.start : self.queries.stop].double()
        half_lives = (math.log(2) / decays).permute(0, 2, 1, 3).flatten(2).median(-1).values
        norm = state.last.double().square().sum((-2, -1)).sqrt().mean(-1, keepdim=True)
        self._add(number, "half-life", half_lives)
        self._add(number, "state norm", norm.expand_as(half_lives))

    def _add(self, number: int, name: str, values: Tensor) -> None:
        self.values.setdefault((number, name), []).append(values.cpu())

    def of_targets(self, targets: int) -> dict[tuple[int, str], np.ndarray]:
        """Return the number of each target, float64 [targets], in the order of the plan."""
        found: dict[tuple[int, str], np.ndarray] = {}
        for key, passes in self.values.items():
            values = torch.cat([values_of_pass.flatten() for values_of_pass in passes]).double().numpy()
            assert len(values) == targets, "every pass shows the queries of its targets alone"
            found[key] = values
        return found


def measured(seen: Seen, train_length: int) -> dict[str, Tensor]:
    """Return the numbers of a block's queries [B, Q] by name."""
    distance = (seen.queries.index.unsqueeze(-1) - seen.keys.index).clamp(min=0)
    weights = seen.weights
    masked = seen.masked
    is_far = distance >= train_length
    largest = masked.argmax(-1, keepdim=True)
    after_first = slice(FIRST_TOKENS, None)
    found = {
        "entropy": normalised_entropy(weights, seen.visible),
        "first token": weights[..., 0],
        "first four": weights[..., :FIRST_TOKENS].sum(-1),
        "distance": mean_distance(weights, distance),
        "distance without first": mean_distance(weights[..., after_first], distance[..., after_first]),
    }
    found["far mass"] = (weights * is_far).sum(-1)
    found["logit range"] = masked.amax(-1) - median_of_visible(masked)
    found["largest far"] = is_far.expand(masked.shape).gather(-1, largest)[..., 0]
    if reads_distances(seen.layer):
        found[ORDER_KEPT] = order_kept(seen, train_length)
    found |= band_numbers(seen, weights, train_length)
    return {name: values.double().mean(1) for name, values in found.items()}


def normalised_entropy(weights: Tensor, visible: Tensor) -> Tensor:
    """Return the entropy of weights [B, H, Q, N] over the logarithm of the visible keys, [B, H, Q]."""
    rest = (1 - weights.sum(-1)).clamp(min=0)
    entropy = -(weights.xlogy(weights).sum(-1) + rest.xlogy(rest))
    return entropy / visible.sum(-1).clamp(min=2).log()


def mean_distance(weights: Tensor, distance: Tensor) -> Tensor:
    """Return the mean distance [B, H, Q] by weights [B, H, Q, N] that need not add up to 1."""
    return (weights * distance).sum(-1) / weights.sum(-1).clamp(min=1e-30)


def median_of_visible(masked: Tensor) -> Tensor:
    """Return the median [B, H, Q] of logits [B, H, Q, N], of which hidden keys have minus infinity."""
    return masked.masked_fill(masked == float("-inf"), math.nan).nanmedian(-1).values


def reads_distances(layer: LayerEncoding) -> bool:
    """Return whether a layer's logits depend on positions, through their differences alone."""
    acting = [leaf for leaf in leaves_of(layer) if leaf.overrides(*OF_DISTANCES)]
    return bool(acting) and all(
        "shift_invariant" in leaf.claims and leaf.family != "content" for leaf in acting
    )


def order_kept(seen: Seen, train_length: int) -> Tensor:
    """Return the share [B, H, Q] of pairs of near keys whose order stays when the query moves away."""
    if seen.far_queries is None:
        return torch.ones(seen.logits.shape[:-1])
    count = len(seen.keys.index)
    first = max(0, int(seen.queries.index[0]) - train_length + 1)
    moved, _ = logits(seen.layer, seen.far_queries, select_tokens(seen.keys, range(first, count)), seen.scale)
    near = seen.logits[..., first:]
    generator = torch.Generator().manual_seed(train_length)
    one = torch.randint(train_length, (PAIRS,), generator=generator)
    other = (one + torch.randint(1, train_length, (PAIRS,), generator=generator)) % train_length
    orders: list[Tensor] = []
    for scores in (near, moved.expand_as(near)):
        of_pair: list[Tensor] = []
        for distance in (one, other):
            place = seen.queries.index.unsqueeze(-1) - distance.to(scores.device) - first
            of_pair.append(scores.gather(-1, place.clamp(min=0).expand(*scores.shape[:-1], PAIRS)))
        orders.append((of_pair[0] - of_pair[1]).sign())
    return (orders[0] == orders[1]).double().mean(-1)


def band_numbers(seen: Seen, weights: Tensor, train_length: int) -> dict[str, Tensor]:
    """Return energies and logits in bands of wavelengths, [B, H, Q]; nothing where no pair is rotated."""
    found = rotation_of(seen.layer, len(seen.keys.index))
    if found is None:
        return {}
    frequencies, layout = found
    energy = _energies(seen, len(frequencies), layout)
    read = weights @ seen.keys.x.to(weights.dtype)  # the mean key that each query reads
    first, second = split_pairs((seen.queries.x * read)[..., : 2 * len(frequencies)], layout)
    added = (first + second) * seen.scale
    lengths = 2 * math.pi / frequencies / train_length
    numbers: dict[str, Tensor] = {}
    for (low, high), band in zip(EDGES, BAND_TEXTS, strict=True):
        is_in = (lengths > low) & (lengths <= high) & (frequencies > 0)
        numbers[f"energy {band}"] = energy[..., is_in].sum(-1)
        numbers[f"logit {band}"] = added[..., is_in].sum(-1)
    return numbers


def rotation_of(layer: LayerEncoding, length: int) -> tuple[Tensor, Layout] | None:
    """Return the frequencies [pairs] and the layout of a layer that rotates pairs; None for others."""
    for leaf in leaves_of(layer):
        rotation = rotation_at(leaf, length)
        if rotation is not None:
            layout: Layout = getattr(leaf, "layout", "half")
            return rotation.frequencies, layout
    return None


def _energies(seen: Seen, pairs: int, layout: Layout) -> Tensor:
    """Return the share [B, H, Q, pairs] of each pair in the energy of all features."""
    query_pairs, query_rest = _norms(seen.queries.raw, pairs, layout)
    # Means over the keys up to each query.
    key_pairs, key_rest = (
        _running_means(norms)[..., seen.queries.index, :] for norms in _norms(seen.keys.raw, pairs, layout)
    )
    energy = query_pairs * key_pairs
    total = energy.sum(-1, keepdim=True) + query_rest * key_rest
    return energy / total


def _norms(x: Tensor, pairs: int, layout: Layout) -> tuple[Tensor, Tensor]:
    """Return the norms of the pairs [.., n, pairs] of x [.., n, K], and of all other features [.., n, 1]."""
    first, second = split_pairs(x[..., : 2 * pairs].float(), layout)
    return torch.hypot(first, second), x[..., 2 * pairs :].float().norm(dim=-1, keepdim=True)


def _running_means(x: Tensor) -> Tensor:
    """Return the means of x [.., n, K] over the tokens up to each."""
    counts = torch.arange(1, x.shape[-2] + 1, device=x.device)
    return x.double().cumsum(-2) / counts.unsqueeze(-1)


def why_missing(layer: LayerEncoding, name: str) -> str:
    """Return why a layer has no such number; empty for the numbers of another kind of layer."""
    if name in OF_SOFTMAX:
        return NO_SOFTMAX
    if name in OF_STATES or layer.overrides("attend"):
        return ""
    return NOT_TURNED if name in OF_BANDS else NO_POSITIONS


def measures_of(
    values: dict[int, list[dict[tuple[int, str], np.ndarray]]],
    clusters: np.ndarray,
    layers: list[LayerEncoding],
    train_length: int,
) -> list[Measure]:
    """Return the measures of all layers at all lengths.

    values: by length, for each seed, the numbers of the targets. clusters: the document of each target, or
    its part of a document, int64 [targets].
    """
    found: list[Measure] = []
    for name in NAMES:
        for number, layer in enumerate(layers):
            key = (number, name)
            if key not in values[train_length][0]:
                reason = why_missing(layer, name)
                found += [Measure(name, number, length, reason=reason) for length in values if reason]
                continue
            means = {length: _by_cluster(of_seeds, key, clusters) for length, of_seeds in values.items()}
            within = means[train_length]
            for length, beyond in means.items():
                change = None if length == train_length else paired_interval(beyond - within)
                found.append(Measure(name, number, length, float(beyond.mean()), change))
    return found


def _by_cluster(
    of_seeds: list[dict[tuple[int, str], np.ndarray]], key: tuple[int, str], clusters: np.ndarray
) -> np.ndarray:
    """Return the means by seed and cluster, float64 [seeds, clusters]."""
    counts = np.bincount(clusters)
    is_there = counts > 0
    means: list[np.ndarray] = []
    for of_seed in of_seeds:
        means.append(np.bincount(clusters, weights=of_seed[key])[is_there] / counts[is_there])
    return np.stack(means)
