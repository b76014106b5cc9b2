r"""The measures of a layer: how far back the queries of the targets read, and how sharply.

These numbers describe; only the changes of `changes.py` show causes. Every length has the same
targets, so that a number is compared with the same query's number at the training length L. A_ij is the
weight that query i gives key j, z_ij the logit before the softmax, n_i the number of keys that the query
sees. All numbers are means over heads, then over targets:

- entropy: -sum_j A_ij ln A_ij over ln n_i: 1 if all visible keys have the same weight. Weight that goes to no
  key (a null logit) counts as one more key.
- first token, first four: the weight of the window's first token, of its first four tokens.
- distance: sum_j A_ij (i - j) over sum_j A_ij, in tokens; `distance without first`: the same without the
  first four tokens of the window.
- far mass: the weight of keys at distance L or more.
- logit range: the largest logit minus the median of visible logits.
- largest far: the share of queries whose largest logit is at distance L or more.
- order kept: the share of pairs of random keys within L tokens whose logits keep their order if the query is
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
from itertools import product

import numpy as np
import torch
from torch import Tensor

from pe_bench.commands.explain.changes import (
    NO_POSITIONS,
    NO_ROTATION,
    NO_SOFTMAX,
    WAVELENGTH_BANDS,
    band_text,
    is_in_band,
    layout_of,
    why_not_by_distance,
)
from pe_bench.commands.explain.observe import Observer, QueryBlock
from pe_bench.encodings.base import LayerEncoding
from pe_bench.encodings.compose import leaves_of
from pe_bench.encodings.recurrent.recurrence import State
from pe_bench.encodings.rotary.rope import Layout, split_pairs
from pe_bench.encodings.scalings.rope_scaling import rotation_at
from pe_bench.model.attention.reference import logits, select_tokens
from pe_bench.report.statistics import Interval, paired_interval

FIRST_TOKENS = 4
KEY_PAIRS = 32  # the number of pairs of random keys for each query
SOFTMAX_NAMES = (
    *("entropy", "first token", "first four", "distance", "distance without first", "far mass"),
    *("logit range", "largest far"),
)
STATE_NAMES = ("half-life", "state norm")
ORDER_KEPT = "order kept"
BAND_TEXTS = tuple(band_text(low, high) for low, high in WAVELENGTH_BANDS)
BAND_NAMES = tuple(f"{kind} {band}" for kind, band in product(("energy", "logit"), BAND_TEXTS))
MEASURE_NAMES = (*SOFTMAX_NAMES, ORDER_KEPT, *BAND_NAMES, *STATE_NAMES)
# Keys: the layer and the name of a measure; float64 [targets].
TargetValues = dict[tuple[int, str], np.ndarray]


@dataclass(frozen=True)
class LayerMeasure:
    """A number measured in a layer at a length."""

    name: str
    layer: int
    length: int
    mean: float | None = None  # the mean over targets and heads
    # The change from the training length, query by query; None at the training length.
    change: Interval | None = None
    reason: str = ""  # why there is no number


class MeasureCollector(Observer):
    """Collects the measures of the targets' queries in each layer. queries: their indices in a window."""

    def __init__(self, train_length: int, length: int, queries: range) -> None:
        super().__init__(queries, max(0, length - train_length))
        self.train_length = train_length
        self.values: dict[tuple[int, str], list[Tensor]] = {}  # [B, queries] for each pass

    def see_softmax(self, number: int, blocks: Iterator[QueryBlock]) -> None:
        measured = [block_measures(block, self.train_length) for block in blocks]
        for name in measured[0]:
            values = torch.cat([block[name] for block in measured], -1)
            self._collect(number, name, values)

    def see_recurrent(self, number: int, state: State) -> None:
        queries = slice(self.queries.start, self.queries.stop)
        decays = -state.log_decay[:, :, queries].double()  # [B, H, queries, features]
        by_query = (math.log(2) / decays).transpose(1, 2).flatten(2)
        half_lives = by_query.median(-1).values
        norms = state.last.double().square().sum((-2, -1)).sqrt()
        norm = norms.mean(-1, keepdim=True)
        self._collect(number, "half-life", half_lives)
        self._collect(number, "state norm", norm.expand_as(half_lives))

    def _collect(self, number: int, name: str, values: Tensor) -> None:
        """Keep the values [B, queries] of a measure in layer `number` during one pass."""
        self.values.setdefault((number, name), []).append(values.cpu())

    def target_values(self, targets: int) -> TargetValues:
        """Return the measures of all targets, in the order of the plan. targets: the number of targets."""
        values_of_targets: TargetValues = {}
        for key, passes in self.values.items():
            values = torch.cat([values.flatten() for values in passes])
            assert len(values) == targets, "every pass shows the queries of its targets alone"
            values_of_targets[key] = values.double().numpy()
        return values_of_targets


def block_measures(block: QueryBlock, train_length: int) -> dict[str, Tensor]:
    """Return the measures of a block's queries by name, each a mean over heads, float64 [B, Q]."""
    distance = block.queries.index.unsqueeze(-1) - block.keys.index
    distance = distance.clamp(min=0)
    weights = block.weights
    masked = block.masked
    is_far = distance >= train_length
    largest = masked.argmax(-1, keepdim=True)
    later_weights = weights[..., FIRST_TOKENS:]
    found = {
        "entropy": normalised_entropy(weights, block.visible),
        "first token": weights[..., 0],
        "first four": weights[..., :FIRST_TOKENS].sum(-1),
        "distance": mean_distance(weights, distance),
        "distance without first": mean_distance(later_weights, distance[..., FIRST_TOKENS:]),
    }
    found["far mass"] = (weights * is_far).sum(-1)
    found["logit range"] = masked.amax(-1) - median_of_visible(masked)
    found["largest far"] = is_far.expand(masked.shape).gather(-1, largest).squeeze(-1)
    if not why_not_by_distance(block.layer):
        found[ORDER_KEPT] = order_kept(block, train_length)
    found |= band_measures(block, weights, train_length)
    return {name: values.double().mean(1) for name, values in found.items()}


def normalised_entropy(weights: Tensor, visible: Tensor) -> Tensor:
    """Return the entropy [B, H, Q] of weights [B, H, Q, N] over ln of the number of visible keys."""
    rest = (1 - weights.sum(-1)).clamp(min=0)
    entropy = -weights.xlogy(weights).sum(-1) - rest.xlogy(rest)
    count = visible.sum(-1).clamp(min=2)
    return entropy / count.log()


def mean_distance(weights: Tensor, distance: Tensor) -> Tensor:
    """Return the mean distance [B, H, Q] by weights [B, H, Q, N] that need not add up to 1."""
    total = weights.sum(-1).clamp(min=1e-30)
    return (weights * distance).sum(-1) / total


def median_of_visible(masked: Tensor) -> Tensor:
    """Return the median [B, H, Q] of logits [B, H, Q, N]; those of hidden keys are minus infinity."""
    visible = masked.masked_fill(masked == float("-inf"), math.nan)
    return visible.nanmedian(-1).values


def order_kept(block: QueryBlock, train_length: int) -> Tensor:
    """Return the share [B, H, Q] of pairs of near keys whose order stays when the query moves away."""
    if block.far_queries is None:
        return torch.ones(block.logits.shape[:-1])
    count = len(block.keys.index)
    first = max(0, int(block.queries.index[0]) - train_length + 1)
    near_keys = select_tokens(block.keys, range(first, count))
    near = block.logits[..., first:]
    far, _ = logits(block.layer, block.far_queries, near_keys, block.scale)
    generator = torch.Generator().manual_seed(train_length)
    distance = torch.randint(train_length, (KEY_PAIRS,), generator=generator)
    step = torch.randint(1, train_length, (KEY_PAIRS,), generator=generator)
    random_keys: list[Tensor] = []
    for back in (distance, (distance + step) % train_length):
        place = block.queries.index.unsqueeze(-1) - back.to(near.device) - first
        random_keys.append(place.clamp(min=0).expand(*near.shape[:-1], KEY_PAIRS))
    orders_of_keys: list[Tensor] = []
    for scores in (near, far.expand_as(near)):
        one, other = (scores.gather(-1, place) for place in random_keys)
        orders_of_keys.append((one - other).sign())
    return torch.eq(*orders_of_keys).double().mean(-1)


def band_measures(block: QueryBlock, weights: Tensor, train_length: int) -> dict[str, Tensor]:
    """Return energies and logits in bands of wavelengths, [B, H, Q] by name; empty if no pair is rotated."""
    found = rotation_of(block.layer, block.tokens)
    if found is None:
        return {}
    frequencies, layout = found
    energy = _energy_shares(block, len(frequencies), layout)
    read = weights @ block.keys.x.to(weights.dtype)  # the mean key that each query reads
    rotated = 2 * len(frequencies)  # features
    first, second = split_pairs((block.queries.x * read)[..., :rotated], layout)
    added = (first + second) * block.scale
    measures: dict[str, Tensor] = {}
    for (low, high), band in zip(WAVELENGTH_BANDS, BAND_TEXTS, strict=True):
        is_in = is_in_band(frequencies, low * train_length, high * train_length)
        measures[f"energy {band}"] = energy[..., is_in].sum(-1)
        measures[f"logit {band}"] = added[..., is_in].sum(-1)
    return measures


def rotation_of(layer: LayerEncoding, length: int) -> tuple[Tensor, Layout] | None:
    """Return the frequencies [pairs] and the layout of a layer that rotates pairs; None for others."""
    for leaf in leaves_of(layer):
        rotation = rotation_at(leaf, length)
        if rotation is not None:
            return rotation.frequencies, layout_of(leaf)
    return None


def _energy_shares(block: QueryBlock, pairs: int, layout: Layout) -> Tensor:
    """Return the share [B, H, Q, pairs] of each pair in the energy of all features."""
    query_norms = _pair_norms(block.queries.raw, pairs, layout)
    # Means over the keys up to each query.
    key_norms = _running_means(_pair_norms(block.keys.raw, pairs, layout))[..., block.queries.index, :]
    energy = query_norms * key_norms
    return energy[..., :pairs] / energy.sum(-1, keepdim=True)


def _pair_norms(x: Tensor, pairs: int, layout: Layout) -> Tensor:
    """Return the norms of the pairs of x [.., n, K], then of all other features: [.., n, pairs + 1]."""
    rotated, rest = x.float().tensor_split([2 * pairs], -1)
    norms = torch.hypot(*split_pairs(rotated, layout))
    return torch.cat([norms, rest.norm(dim=-1, keepdim=True)], -1)


def _running_means(x: Tensor) -> Tensor:
    """Return the mean of x [.., n, K] over the tokens up to each token."""
    tokens = x.shape[-2]
    counts = torch.arange(1, tokens + 1, device=x.device)
    return x.double().cumsum(-2) / counts.unsqueeze(-1)


def missing_reason(layer: LayerEncoding, name: str) -> str:
    """Return the note to print where a layer lacks the measure `name`.

    Empty (no note) where the measure exists only in another kind of layer.
    """
    if name in SOFTMAX_NAMES:
        return NO_SOFTMAX
    if name in STATE_NAMES or layer.overrides("attend"):
        return ""
    return NO_ROTATION if name in BAND_NAMES else NO_POSITIONS


def layer_measures(
    values: dict[int, list[TargetValues]],
    clusters: np.ndarray,
    layers: list[LayerEncoding],
    train_length: int,
) -> list[LayerMeasure]:
    """Return the mean of each measure in each layer at each length, and its change from the training length.

    A measure that a layer lacks has a reason in place of numbers; a measure of another kind of layer is left
    out. values: by length, the values of each seed. clusters: the cluster of each target (its document or a
    part of the document), int64 [targets].
    """
    measured: list[LayerMeasure] = []
    for name in MEASURE_NAMES:
        for number, layer in enumerate(layers):
            key = (number, name)
            if key not in values[train_length][0]:
                reason = missing_reason(layer, name)
                measured += [LayerMeasure(name, number, length, reason=reason) for length in values if reason]
                continue
            within = _cluster_means(values[train_length], key, clusters)
            for length, seeds in values.items():
                beyond = _cluster_means(seeds, key, clusters)
                change = None if length == train_length else paired_interval(beyond - within)
                measured.append(LayerMeasure(name, number, length, float(beyond.mean()), change))
    return measured


def _cluster_means(seeds: list[TargetValues], key: tuple[int, str], clusters: np.ndarray) -> np.ndarray:
    """Return the mean of one measure by seed and cluster, float64 [seeds, clusters]."""
    counts = np.bincount(clusters)
    is_there = counts > 0
    sums = [np.bincount(clusters, weights=values[key]) for values in seeds]
    return (np.stack(sums) / counts.clip(1))[:, is_there]
