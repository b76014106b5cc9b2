"""A comparison of pe-bench's own encodings with their reference numbers.

Letters: B batch, H query heads, T tokens, K head width, D model width.
"""

import math
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor, nn

from pe_bench.encodings.base import LayerEncoding, PositionalEncoding, Side
from pe_bench.encodings.spec import PartSpec
from pe_bench.inspection.check.case import Case, Finding
from pe_bench.model.attention import logits, project, reference_attention

H, T, K = 2, 4, 4
FILE = Path(__file__).with_name("reference_numbers.yaml")
DIGITS = 6

Entry = Mapping[str, Any]


def has_its_reference_numbers(case: Case) -> Finding:
    """Pe-bench's own encodings have their reference numbers.

    Look at: reference_numbers.yaml, which says where they come from; PyTorch's version.

    Compare each part of the encoding that is pe-bench's own with its reference numbers.
    """
    count, largest = 0, 0.0
    for part in case.spec.parts:
        for entry in entries_of(part):
            error = error_of(part, entry)
            count, largest = count + len(entry["numbers"]), max(largest, error)
            if not error <= tolerance_of(entry):
                return Finding("fails", f"{entry['of']} with {entry['options']} is off by {error:.1e}")
    if not count:
        return Finding("not claimed", "none is known")
    found = f"{count} reference numbers, off by {largest:.0e} at most"
    return Finding("holds", found, found)


@cache
def reference_numbers() -> dict[str, list[Entry]]:
    """Return the reference numbers by the names of encodings; `reference_numbers.yaml` says what they are."""
    return yaml.safe_load(FILE.read_text(encoding="utf-8"))


def tolerance_of(entry: Entry) -> float:
    return 2 * 10.0 ** -entry.get("digits", DIGITS)


def entries_of(part: PartSpec) -> list[Entry]:
    """Return the reference numbers of a part that is pe-bench's own: of the preset, or of its class."""
    numbers = reference_numbers() if part.is_built_in else {}
    return numbers.get(part.values.get("name", "")) or numbers.get(part.name, [])


def error_of(part: PartSpec, entry: Entry) -> float:
    """Return the largest difference between what an encoding has and its reference numbers."""
    built = _built(part, entry["options"]).double()
    _fill(built, entry.get("parameters", {}))
    with torch.no_grad():
        found = QUANTITIES[entry["of"]](built, entry).flatten().double()
    found = found[entry["at"]] if "at" in entry else found
    expected = torch.tensor(entry["numbers"], dtype=torch.float64)
    return math.inf if found.shape != expected.shape else float((found - expected).abs().max())


def _built(part: PartSpec, options: Mapping[str, Any]) -> nn.Module:
    """Build a part with these options alone, which those that it holds have too; the rest is as composed."""
    if not part.nested:
        return part.encoding_class(**options)
    return PartSpec(_with_options(part.values, options)).build(options["n_layers"])


def _with_options(values: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    return {
        option: _with_options(value, options) if isinstance(value, dict) else options.get(option, value)
        for option, value in values.items()
    }


def series(wave: str, *shape: int) -> Tensor:
    """Return sin(step t) or cos(step t) for t = 1, 2, .. in row-major order; `wave` is as in `sin 0.15`."""
    function, step = wave.split()
    t = torch.arange(1, math.prod(shape) + 1, dtype=torch.float64)
    return getattr(torch, function)(float(step) * t).view(*shape)


def _fill(encoding: nn.Module, values: Mapping[str, Any]) -> None:
    for wanted, value in values.items():
        for name, parameter in encoding.named_parameters():
            if wanted in ("*", name):
                parameter.data.copy_(_filled(value, parameter.shape))


def _filled(value: Any, shape: torch.Size) -> Tensor:
    if value == "steps":
        return (torch.arange(shape.numel()) / 10 - 0.15).view(shape)
    if value == "eye":
        return torch.eye(*shape)
    return series(value, *shape) if isinstance(value, str) else torch.tensor(value).expand(shape)


def _inputs(entry: Entry) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the layer's input [1, T, D], and queries, keys and values [1, H, T, K]."""
    tokens = entry.get("tokens", T)
    x = torch.zeros(1, tokens, H * K, dtype=torch.float64)
    if "x" in entry:
        features = entry["x"]["features"]
        x[..., :features] = series(entry["x"]["wave"], 1, tokens, features)
    q, k, v = (series(wave, 1, H, tokens, K) for wave in ("sin 0.1", "cos 0.2", "sin 0.3"))
    return x, q, k, v


def _layer(encoding: nn.Module, entry: Entry) -> LayerEncoding:
    found = encoding.layer(entry["layer"]) if isinstance(encoding, PositionalEncoding) else encoding
    assert isinstance(found, LayerEncoding)
    return found


def _output(encoding: nn.Module, entry: Entry) -> Tensor:
    x, q, k, v = _inputs(entry)
    return reference_attention(_layer(encoding, entry), x, q, k, v, torch.arange(q.shape[-2]))[0, 0, -1]


def _weights(encoding: nn.Module, entry: Entry) -> Tensor:
    """Return the weights of a query: its output where the values are the identity."""
    x, q, k, _ = _inputs(entry)
    identity = torch.eye(T, dtype=torch.float64).expand(1, H, T, T)
    return reference_attention(_layer(encoding, entry), x, q, k, identity, torch.arange(T))[0, 0, -1]


def _scores(encoding: nn.Module, entry: Entry) -> Tensor:
    x, q, k, _ = _inputs(entry)
    layer = _layer(encoding, entry)
    return layer.scores(*project(layer, x, q, k, torch.arange(T)), K**-0.5)[0, 0, -1]


def _logits(encoding: nn.Module, entry: Entry) -> Tensor:
    x, q, k, _ = _inputs(entry)
    layer = _layer(encoding, entry)
    return logits(layer, *project(layer, x, q, k, torch.arange(q.shape[-2])), K**-0.5)[0][0, 0, -1]


def _query(encoding: nn.Module, entry: Entry) -> Tensor:
    x, q, k, _ = _inputs(entry)
    return project(_layer(encoding, entry), x, q, k, torch.arange(T))[0].x[0, 0, -1]


def _bias(encoding: nn.Module, entry: Entry) -> Tensor:
    x, q, k, _ = _inputs(entry)
    layer = _layer(encoding, entry)
    bias = layer.bias(*project(layer, x, q, k, torch.arange(q.shape[-2])))
    assert bias is not None
    return bias.reshape(-1, *bias.shape[-2:])[entry.get("head", 0), -1]


def _bias_of_heads(encoding: nn.Module, entry: Entry) -> Tensor:
    bias = _layer(encoding, entry).distance_bias(torch.ones(1, dtype=torch.long))
    assert bias is not None
    return bias[:, 0]


def _factors(encoding: nn.Module, entry: Entry) -> Tensor:
    position, layer = torch.tensor(entry["positions"]), _layer(encoding, entry)
    zeros = torch.zeros(1, H, len(position), K, dtype=torch.float64)
    queries, _ = project(layer, zeros[:, 0], zeros, zeros, position)
    factors = layer.logit_scale(queries)
    assert factors is not None
    return factors


def _input(encoding: nn.Module, entry: Entry) -> Tensor:
    assert isinstance(encoding, PositionalEncoding)
    ids = torch.tensor(entry["positions"])
    x = torch.zeros(1, len(ids), entry["options"]["d_model"], dtype=torch.float64)
    return encoding.embed(x, ids, torch.zeros(1, len(ids), dtype=torch.long))


def _sees(encoding: nn.Module, entry: Entry) -> Tensor:
    x, q, k, _ = _inputs(entry)
    layer = _layer(encoding, entry)
    return layer.visible(*project(layer, x, q, k, torch.arange(q.shape[-2]))).sum(-1)


def _turned(encoding: nn.Module, entry: Entry) -> tuple[Tensor, Tensor]:
    """Return the pairs of a query at position 1 after `transform`; before it, each of them is (1, 0)."""
    width, tokens = entry["options"]["d_head"], entry.get("tokens", T)
    features = entry.get("features", width)  # that are turned
    keys = torch.zeros(1, 1, tokens, width, dtype=torch.float64)
    query = keys[:, :, :1].clone()
    query[..., : features // 2] = 1
    at_1, places = torch.tensor([1]), torch.arange(tokens)
    sides = Side(query, query, at_1, at_1, {}), Side(keys, keys, places, places, {})
    turned, _ = _layer(encoding, entry).transform(*sides)
    first, second = turned[0, 0, 0, :features].chunk(2)
    return first, second


def _frequencies(encoding: nn.Module, entry: Entry) -> Tensor:
    first, second = _turned(encoding, entry)
    return torch.atan2(second, first)


def _norm(encoding: nn.Module, entry: Entry) -> Tensor:
    first, second = _turned(encoding, entry)
    return torch.hypot(first, second)[:1]


QUANTITIES: dict[str, Callable[[nn.Module, Entry], Tensor]] = {
    "output": _output,
    "weights": _weights,
    "scores": _scores,
    "products": lambda encoding, entry: _scores(encoding, entry) * math.sqrt(K),
    "logits": _logits,
    "query": _query,
    "bias": _bias,
    "bias_of_heads": _bias_of_heads,
    "factors": _factors,
    "input": _input,
    "sees": _sees,
    "frequencies": _frequencies,
    "norm": _norm,
}
