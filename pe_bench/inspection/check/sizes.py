"""Checks at sizes at which code often has a limit of its own: wide heads, many keys, the ends of options.

Letters: B batch, H query heads, T tokens, K head width.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from pe_bench.encodings.base import LayerEncoding, LengthError, Side
from pe_bench.encodings.spec import EncodingSpec
from pe_bench.errors import first_line
from pe_bench.inspection.check import layers, model
from pe_bench.inspection.check.case import (
    EXACT,
    MODEL,
    TRAIN_LENGTH,
    Case,
    Finding,
    Inputs,
    as_type,
    at_most,
    both_precisions,
    largest,
    layers_of,
    where,
    worst,
)
from pe_bench.model.attention import attention, project, reference_attention, slice_tokens

WIDE = 136  # features of a head
LIMITS = (64, 128, 256, 512, 1_000, 1_024, 2_048, 4_096, 8_192, 32_768, 65_536)
MOST_KEYS = 8_192
# Of texts of these lengths groups of tokens leave the same rest.
LENGTHS = [5 + TRAIN_LENGTH * groups for groups in (3, 19, 35, 67, 257)]
ROUGH = 1e-3  # float32 against float64 in products of many features
AROUND = 8  # tokens on either side of a limit
FACTORS = (1e-3, 0.1, 10.0, 1e3)
COUNTS = (0, 1, 2, 50, 300)

Check = Callable[[Case], Finding]


def wide_heads_are_as_narrow_ones(case: Case) -> Finding:
    """Heads wider than 64 are treated as narrow ones.

    Look at: a width that is written as a number; d_head, where half of it was meant.

    Repeat in heads wider than 64 what holds in narrow ones, and see which features positions change.
    """
    wide = _wide(case)
    try:
        wide.as_built()
    except ValueError as error:
        return Finding("not claimed", first_line(error))
    for narrow_layer, layer in zip(layers_of(case.encoding), layers_of(wide.encoding), strict=True):
        changed = _changed_share(layer, wide)
        if changed < 1 == _changed_share(narrow_layer, case):
            return Finding(
                "fails", f"positions change {changed:.0%} of {WIDE} features, and all of {MODEL.d_head}"
            )
    checks = (
        layers.norm_preserving,
        layers.scores_are_scaled,
        layers.blocks_are_the_whole,
        _fast_path_is_the_reference,
        model.shift_invariant,
    )
    return _first_failure(wide, case, checks) or Finding("holds", f"heads of {WIDE} features as well")


def no_number_of_keys_is_a_limit(case: Case) -> Finding:
    """No number of keys or position changes what an encoding does.

    Look at: a table, a cache or a type of whole numbers that ends; a number of keys that is compared.

    Look for a round number from which on texts are treated in another way, if short ones are not so.
    """
    if case.past_training == "undefined":
        return Finding("not claimed", f"undefined past {TRAIN_LENGTH} tokens")
    finding = _at_round_numbers(case)
    of_short_texts = (model.prefix_consistent, model.shift_invariant, layers.blocks_are_the_whole)
    if finding.state == "fails" and _fails(case, *of_short_texts):
        return Finding("not claimed", "short texts come first")
    return finding


@torch.no_grad()
def _at_round_numbers(case: Case) -> Finding:
    """Move texts over round positions, and compare rows with so many keys alone and beside later ones."""
    inputs = case.inputs(MOST_KEYS + AROUND, batch=1)
    text, start = _first(inputs, 2 * AROUND), torch.arange(2 * AROUND)
    for layer in layers_of(case.encoding):
        for limit in LIMITS:
            if case.claims("shift_invariant"):
                here, there = (
                    reference_attention(layer, *text, start + shift) for shift in (0, limit - AROUND)
                )
                if not worst(here, there) <= EXACT:
                    return Finding(
                        "fails", f"across position {limit:,} an output is off by {worst(here, there):.1e}"
                    )
            if limit <= MOST_KEYS:
                off = _off_beside_later_rows(layer, inputs, limit)
                if not off <= EXACT:
                    return Finding(
                        "fails", f"at {limit:,} keys a row alone and beside others differ by {off:.1e}"
                    )
        hidden = _hidden_by_a_limit(case, {tokens: _visible(layer, tokens) for tokens in LENGTHS})
        if hidden:
            return Finding("fails", hidden)
    return Finding("holds", f"no change at {len(LIMITS)} round numbers up to {LIMITS[-1]:,}")


def options_work_at_their_ends(case: Case) -> Finding:
    """Options work as small and as large as they can be.

    Look at: what the constructor should refuse with an error; a bound that it puts in silently.

    Check the encoding with each numeric option as small and as large as its constructor takes it.
    """
    count = 0
    for option, value in _numeric_options(case):
        built = sorted(_accepted(case, option, value))
        for end, changed in built[:: max(1, len(built) - 1)]:
            checks = (layers.blocks_are_the_whole, _fast_path_is_the_reference, layers.sees_its_window)
            failure = _first_failure(changed, case, checks)
            if failure:
                return failure._replace(measured=f"with {option}={end:g} {failure.measured}")
        count += len(built)
    return Finding("holds", f"{count} other values" if count else "no numeric options")


def _first_failure(changed: Case, case: Case, checks: Sequence[Check]) -> Finding | None:
    """Return the first check that fails of the changed case alone."""
    failures = ((check, _outcome(check, changed)) for check in checks)
    return next((it for check, it in failures if it.state == "fails" and not _fails(case, check)), None)


def _outcome(check: Check, case: Case) -> Finding:
    try:
        return check(case)
    except LengthError as error:
        return Finding("not claimed", first_line(error))
    except Exception as error:
        return Finding("fails", f"{where(error)}: {first_line(error)}")


def _fails(case: Case, *checks: Check) -> bool:
    """Return whether one of the checks fails, which is told where that property is checked."""
    return any(_outcome(check, case).state == "fails" for check in checks)


def _fast_path_is_the_reference(case: Case) -> Finding:
    inputs, position, errors = case.inputs(TRAIN_LENGTH), torch.arange(TRAIN_LENGTH), []
    for tensor in inputs:
        tensor.requires_grad_()
    for exact, rounded in both_precisions(case):
        truth = reference_attention(exact, *inputs, position)
        for trains in (True, False):
            with torch.set_grad_enabled(trains):
                errors.append(worst(attention(exact, *inputs, position), truth))
                errors.append(worst(attention(rounded, *as_type(inputs, torch.float32), position), truth))
    return at_most(largest(errors), ROUGH, "fast path and reference differ by")


def _wide(case: Case) -> Case:
    def widened(values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        return {
            key: WIDE if key == "d_head" else None if key in case.examples else widened(value)
            for key, value in values.items()
        }

    spec = EncodingSpec(widened(case.spec.values), case.spec.search).with_examples()
    return replace(case, spec=spec, sizes=replace(MODEL, d_head=WIDE))


@torch.no_grad()
def _changed_share(layer: LayerEncoding, case: Case) -> float:
    """Return the share of the features of queries and keys that depends on the position."""
    x, q, k, _ = case.inputs(AROUND)
    here, there = (project(layer, x, q, k, torch.arange(AROUND) + shift) for shift in (0, 5))
    changed = [(a.x != b.x).flatten(0, -2).any(0).float().mean() for a, b in zip(here, there, strict=True)]
    return float(min(changed))


def _first(inputs: Inputs, length: int) -> Inputs:
    x, q, k, v = inputs
    return x[:, :length], q[:, :, :length], k[:, :, :length], v[:, :, :length]


def _off_beside_later_rows(layer: LayerEncoding, inputs: Inputs, keys: int) -> float:
    """Return by how much the last row of a text of `keys` tokens differs where it has neighbours."""
    rows, longer = range(keys - AROUND, keys + AROUND), _first(inputs, keys + AROUND)
    together = reference_attention(layer, *longer, torch.arange(keys + AROUND), rows=rows)
    alone = reference_attention(layer, *longer, torch.arange(keys + AROUND), rows=range(keys - 1, keys))
    return worst(together[:, :, AROUND - 1], alone[:, :, 0])


def _numeric_options(case: Case) -> Iterator[tuple[str, float]]:
    """Yield the encoding's own options that are numbers, without the sizes of a model."""
    sizes = {"d_model", "n_heads", "n_kv_heads", "d_head", "n_layers", "train_length"}
    for option, value in case.spec.base.options.items():
        if isinstance(value, int | float) and not isinstance(value, bool) and option not in sizes:
            yield option, value


def _accepted(case: Case, option: str, value: float) -> Iterator[tuple[float, Case]]:
    """Yield other values that the constructor takes, with their cases."""
    values = COUNTS if isinstance(value, int) else [factor * (value or 1.0) for factor in FACTORS]
    for other in values:
        changed = replace(case, spec=EncodingSpec({**case.spec.values, option: other}, case.spec.search))
        try:
            changed.as_built()
        except ValueError:
            continue
        yield other, changed


def _hidden_by_a_limit(case: Case, visible: dict[int, int]) -> str:
    """Describe keys that a longer text hides, where no option says so; empty if there are none."""
    (shortest, most), *longer = visible.items()
    for tokens, count in longer:
        if count < most:
            return f"of {tokens:,} keys a query sees {count:,}, and of {shortest:,} keys {most:,}"
        most = max(most, count)
    options = [value for part in case.spec.parts for value in part.options.values()]
    is_said = any(isinstance(value, int) and value > shortest for value in options)
    if longer and visible[shortest] == shortest and most < longer[-1][0] and not is_said:
        return f"of {longer[-1][0]:,} keys a query sees {most:,}, and no option is as large"
    return ""


def _visible(layer: LayerEncoding, length: int) -> int:
    """Return how many keys the mask lets the last query see in some head."""
    empty, index = torch.empty(1, MODEL.n_heads, length, 0), torch.arange(length)
    keys = Side(empty, empty, index, index, {})
    return int(layer.visible(slice_tokens(keys, length - 1, length), keys).view(-1, length).any(0).sum())
