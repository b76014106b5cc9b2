"""Reference numbers, which `reference_numbers.yaml` explains, and what an encoding has in their place.

Letters: B batch, H query heads, T tokens, K head width, D model width.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor, nn

from pe_bench.encodings.base import LayerEncoding, PositionalEncoding
from pe_bench.encodings.spec import PartSpec
from pe_bench.inspection.check.layers import with_options
from pe_bench.model.attention import reference_attention
from pe_bench.model.attention.reference import logits, project

H, T, K = 2, 4, 4
FILE = Path(__file__).parents[1] / "encodings" / "reference_numbers.yaml"
DIGITS = 6

Entry = Mapping[str, Any]
NUMBERS: dict[str, list[Entry]] = yaml.safe_load(FILE.read_text(encoding="utf-8"))


def wrong_numbers(parts: Sequence[PartSpec]) -> list[str]:
    """Return what the parts of an encoding lack of the numbers of their preset, or of their class."""
    return [
        f"{entry['of']} with {entry['options']} is off by {error_of(part, entry):.1e}"
        for part in parts
        for entry in NUMBERS.get(part.values.get("name", "")) or NUMBERS.get(part.name, [])
        if error_of(part, entry) > 2 * 10.0 ** -entry.get("digits", DIGITS)
    ]


@torch.no_grad()
def error_of(part: PartSpec, entry: Entry) -> float:
    """Return the largest difference between what an encoding has and its reference numbers."""
    encoding = _built(part, entry["options"]).double()
    for name, parameter in encoding.named_parameters():
        for key, value in entry.get("parameters", {}).items():
            if key in ("*", name):
                parameter.copy_(_values(value, parameter.shape))
    quantity = _quantity(encoding, entry).flatten().double()
    quantity = quantity[entry["at"]] if "at" in entry else quantity
    expected = torch.tensor(entry["numbers"], dtype=torch.float64)
    return math.inf if quantity.shape != expected.shape else float((quantity - expected).abs().max())


def _built(part: PartSpec, options: Mapping[str, Any]) -> nn.Module:
    """Build a part with these options alone, which those that it holds have too; the rest is as composed."""
    if not part.nested:
        return part.encoding_class(**options)
    return PartSpec(with_options(part.values, options)).build(options["n_layers"])


def series(wave: str, *shape: int) -> Tensor:
    """Return sin(step t) or cos(step t) for t = 1, 2, .. in row-major order; `wave` is as in `sin 0.15`."""
    function, step = wave.split()
    t = torch.arange(1, math.prod(shape) + 1, dtype=torch.float64)
    return getattr(torch, function)(float(step) * t).view(*shape)


def _values(value: Any, shape: torch.Size) -> Tensor:
    if value == "steps":
        return (torch.arange(shape.numel()) / 10 - 0.15).view(shape)
    if value == "eye":
        return torch.eye(*shape)
    return series(value, *shape) if isinstance(value, str) else torch.tensor(value).expand(shape)


def _quantity(encoding: nn.Module, entry: Entry) -> Tensor:
    """Return what the numbers of an entry are `of`; the head of `reference_numbers.yaml` explains each."""
    if entry["of"] == "input":
        assert isinstance(encoding, PositionalEncoding)
        ids = torch.tensor(entry["positions"])
        x = torch.zeros(1, len(ids), entry["options"]["d_model"], dtype=torch.float64)
        return encoding.embed(x, ids, torch.zeros(1, len(ids), dtype=torch.long))
    layer = encoding.layer(entry["layer"]) if isinstance(encoding, PositionalEncoding) else encoding
    assert isinstance(layer, LayerEncoding)
    if entry["of"] in ("frequencies", "norm"):
        return _turned(layer, entry)
    tokens = len(entry["positions"]) if "positions" in entry else entry.get("tokens", T)
    x = torch.zeros(1, tokens, H * K, dtype=torch.float64)
    if "x" in entry:
        features = entry["x"]["features"]
        x[..., :features] = series(entry["x"]["wave"], 1, tokens, features)
    q, k, v = (series(wave, 1, H, tokens, K) for wave in ("sin 0.1", "cos 0.2", "sin 0.3"))
    position = torch.tensor(entry.get("positions", range(tokens)))
    queries, keys = project(layer, x, q, k, position)
    match entry["of"]:
        case "output":
            return reference_attention(layer, x, q, k, v, position)[0, 0, -1]
        case "weights":  # what comes out where the values are the identity
            identity = torch.eye(tokens, dtype=torch.float64).expand(1, H, tokens, tokens)
            return reference_attention(layer, x, q, k, identity, position)[0, 0, -1]
        case "scores":
            return layer.scores(queries, keys, K**-0.5)[0, 0, -1]
        case "products":
            return layer.scores(queries, keys, 1.0)[0, 0, -1]
        case "logits":
            return logits(layer, queries, keys, K**-0.5)[0][0, 0, -1]
        case "query":
            return queries.x[0, 0, -1]
        case "sees":
            return layer.visible(queries, keys).sum(-1)
        case "factors":
            values = layer.logit_scale(queries)
        case "bias_of_heads":
            values = layer.distance_bias(torch.ones(1, dtype=torch.long))
        case _:
            bias = layer.bias(queries, keys)
            values = bias if bias is None else bias.reshape(-1, *bias.shape[-2:])[entry.get("head", 0), -1]
    assert values is not None
    return values


def _turned(layer: LayerEncoding, entry: Entry) -> Tensor:
    """Return the angles by which the pairs (1, 0) of a query at position 1 are turned, or their new norm."""
    width, tokens = entry["options"]["d_head"], entry.get("tokens", T)
    features = entry.get("features", width)  # that are turned
    q = torch.zeros(1, 1, tokens, width, dtype=torch.float64)
    q[..., : features // 2] = 1
    queries, _ = project(layer, q[:, 0], q, q, torch.arange(tokens))
    first, second = queries.x[0, 0, 1, :features].chunk(2)
    return torch.atan2(second, first) if entry["of"] == "frequencies" else torch.hypot(first, second)[:1]
