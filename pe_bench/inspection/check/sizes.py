"""Checks at sizes at which code often has a limit of its own: wide heads, many keys, the ends of options.

Letters: B batch, H query heads, T tokens, K head width.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import torch

from pe_bench.encodings.base import LayerEncoding, LengthError
from pe_bench.encodings.signatures import SIZES
from pe_bench.encodings.spec import EncodingSpec
from pe_bench.errors import first_line
from pe_bench.inspection.check import decoder, layers
from pe_bench.inspection.check.case import MODEL, TRAIN_LENGTH, Case, Inputs
from pe_bench.inspection.check.reference import with_options
from pe_bench.inspection.check.result import (
    EXACT,
    FailureError,
    Finding,
    UnclaimedError,
    describe,
    expect,
    worst,
)
from pe_bench.model.attention import reference_attention

WIDE = 136  # features of a head
LIMITS = (64, 128, 256, 512, 1_000, 1_024, 2_048, 4_096, 8_192, 32_768, 65_536)
MOST_KEYS = 8_192
# Of texts of these lengths groups of tokens leave the same rest.
LENGTHS = [5 + TRAIN_LENGTH * groups for groups in (3, 19, 35, 67, 257)]
AROUND = 8  # tokens on either side of a limit
FACTORS = (1e-3, 0.1, 10.0, 1e3)
COUNTS = (0, 1, 2, 50, 300)
paths_agree = partial(
    layers.paths_agree, lengths=(TRAIN_LENGTH,), limits=(layers.ROUGH, layers.ROUGH, math.inf)
)


def wide_heads(case: Case) -> str:
    """Heads wider than 64 are treated as narrow ones.

    Look at: a width that is written as a number; d_head, where half of it was meant.
    """
    wide = _widened(case)
    try:
        wide.as_built()
    except ValueError as error:
        raise UnclaimedError(first_line(error)) from error
    for share, narrow in zip(_changed_shares(wide), _changed_shares(case), strict=True):
        measured = f"positions change {share:.0%} of {WIDE} features, and all of {MODEL.d_head}"
        expect(narrow < 1 or share == 1, measured)
    checks = (layers.norm, layers.score_scale, layers.blocks, paths_agree, decoder.shift)
    _expect_too(wide, case, *checks)
    return f"heads of {WIDE} features as well"


def many_keys(case: Case) -> str:
    """No number of keys or position changes what an encoding does.

    Look at: a table, a cache or a type of whole numbers that ends; a number of keys that is compared.
    """
    if case.ends:
        raise UnclaimedError(f"undefined past {TRAIN_LENGTH} tokens")
    try:
        _try_round_numbers(case)
    except FailureError as failure:
        if any(_failure(case, check) for check in (decoder.prefix, decoder.shift, layers.blocks)):
            raise UnclaimedError("short texts come first") from failure
        raise
    return f"no change at {len(LIMITS)} round numbers up to {LIMITS[-1]:,}"


@torch.no_grad()
def _try_round_numbers(case: Case) -> None:
    """Move texts over round positions, and compare rows with so many keys alone and beside later ones."""
    inputs, start = case.inputs(MOST_KEYS + AROUND, batch=1), torch.arange(2 * AROUND)
    text = _first(inputs, 2 * AROUND)
    for layer in case.layers:
        for limit in LIMITS:
            if case.claims("shift_invariant"):
                off = worst(*(reference_attention(layer, *text, start + at) for at in (0, limit - AROUND)))
                expect(off <= EXACT, f"across position {limit:,} an output is off by {off:.1e}")
            if limit <= MOST_KEYS:
                off = _off_beside_later_rows(layer, inputs, limit)
                expect(off <= EXACT, f"at {limit:,} keys a row alone and beside others differ by {off:.1e}")
        _expect_no_hidden_keys(case, layer)


def _off_beside_later_rows(layer: LayerEncoding, inputs: Inputs, keys: int) -> float:
    """Return by how much the last row of a text of `keys` tokens differs where it has neighbours."""
    longer, position = _first(inputs, keys + AROUND), torch.arange(keys + AROUND)
    together = reference_attention(layer, *longer, position, rows=range(keys - AROUND, keys + AROUND))
    alone = reference_attention(layer, *longer, position, rows=range(keys - 1, keys))
    return worst(together[:, :, AROUND - 1], alone[:, :, 0])


def _expect_no_hidden_keys(case: Case, layer: LayerEncoding) -> None:
    """Raise `FailureError` for keys that a longer text hides where no option says so."""
    counts = {length: layers.visible_keys(layer, length) for length in LENGTHS}
    shortest, longest, most = LENGTHS[0], LENGTHS[-1], 0
    for length, count in counts.items():
        measured = f"of {length:,} keys a query sees {count:,}, and of {shortest:,} keys {most:,}"
        expect(count >= most, measured)
        most = max(most, count)
    options = [value for part in case.spec.parts for value in part.options.values()]
    is_said = any(isinstance(value, int) and value > shortest for value in options)
    is_hidden = counts[shortest] == shortest and most < longest and not is_said
    expect(not is_hidden, f"of {longest:,} keys a query sees {most:,}, and no option is as large")


def option_ends(case: Case) -> str:
    """Options work as small and as large as they can be.

    Look at: what the constructor should refuse with an error; a bound that it puts in silently.
    """
    count = 0
    for option, value in case.spec.base.options.items():
        if (
            option in (*SIZES, "train_length")
            or isinstance(value, bool)
            or not isinstance(value, int | float)
        ):
            continue
        accepted = sorted(_accepted(case, option, value), key=lambda pair: pair[0])
        for end, changed in accepted[:: max(1, len(accepted) - 1)]:
            told = f"with {option}={end:g} "
            _expect_too(changed, case, layers.blocks, paths_agree, layers.sight, told=told)
        count += len(accepted)
    return f"{count} other values" if count else "no numeric options"


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


def _expect_too(changed: Case, case: Case, *checks: Callable[[Case], str | Finding], told: str = "") -> None:
    """Raise `FailureError` for the first check that fails of the changed case alone."""
    for check in checks:
        failure = _failure(changed, check)
        expect(not failure or bool(_failure(case, check)), f"{told}{failure}")


def _failure(case: Case, check: Callable[[Case], str | Finding]) -> str:
    """Return how a check fails; empty where it does not."""
    try:
        check(case)
    except (LengthError, UnclaimedError):
        return ""
    except FailureError as failure:
        return str(failure)
    except Exception as error:
        return describe(error)
    return ""


def _widened(case: Case) -> Case:
    examples = dict.fromkeys(case.examples)  # which are made anew
    values = with_options(case.spec.values, {**examples, "d_head": WIDE})
    spec = EncodingSpec(values, case.spec.search).with_examples()
    return replace(case, spec=spec, sizes=replace(MODEL, d_head=WIDE))


@torch.no_grad()
def _changed_shares(case: Case) -> list[float]:
    """Return for each kind of layer the share of features of queries and keys that depends on positions."""
    shares = []
    for (_, *here), (_, *there) in zip(case.sides(AROUND), case.sides(AROUND, shift=5), strict=True):
        pairs = zip(here, there, strict=True)
        shares.append(float(min((a.x != b.x).flatten(0, -2).any(0).float().mean() for a, b in pairs)))
    return shares


def _first(inputs: Inputs, length: int) -> Inputs:
    x, q, k, v = inputs
    return x[:, :length], q[:, :, :length], k[:, :, :length], v[:, :, :length]
