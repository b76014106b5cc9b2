"""The basic properties. Without them nothing else can be measured: the first that fails ends the check.

Letters: B batch, H query heads, T tokens, Q queries, N keys, K head width, D model width, n distances.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from pe_bench.inspection.check.case import TRAIN_LENGTH, Case, hidden, ids_of, tokens, worst
from pe_bench.inspection.check.finding import Finding
from pe_bench.inspection.check.hooks import SHARED, SIZES, Returned, returned

OPTIONAL = ("logit_scale", "distance_bias", "bias", "null_logit")  # may return None
ANY = "*"  # an axis of any length
AXES = {"H": "head", "T": "token", "n": "distance", "Q": "query", "N": "key"}


def shapes_fit(case: Case) -> Finding:
    """Check that each hook returns a tensor of the shape that base.py gives for it."""
    count = 0
    for item in _all_returned(case):
        count += 1
        wrong = _misfit(item)
        if wrong:
            return Finding("fails", f"{item.place} {wrong}")
    return Finding("holds", f"{count} results of hooks")


def values_are_finite(case: Case) -> Finding:
    """Check that no hook returns an infinite value or nan, with initial and other parameters."""
    for item in _all_returned(case):
        if isinstance(item.value, Tensor) and item.value.is_floating_point():
            bad = ~item.value.detach().isfinite()
            if item.hidden is not None:
                bad &= ~item.hidden
            if bad.any():
                return Finding("fails", f"{item.place} {_first_bad(item, bad)}")
    return Finding("holds", "hooks return finite values")


def code_runs(case: Case) -> Finding:
    """Run a decoder forwards and backwards, with the ids of training and of scoring."""
    for length in (1, 2, TRAIN_LENGTH):
        text = tokens(2, length)
        output = case.model.hidden(text, ids_of(case.model.encoding, text, train=True))
        output.square().sum().backward()
        case.model.zero_grad()
        with torch.no_grad():
            if not hidden(case.model, text).isfinite().all():
                return Finding("fails", f"a decoder's output is not finite at {length} tokens")
    return Finding("holds", "forwards and backwards")


@torch.no_grad()
def is_repeatable(case: Case) -> Finding:
    """Run the same tokens twice, as in training and as in scoring: dropout and noise show."""
    model, text, state = case.model_of(case.with_random_parameters()), tokens(2, 9), torch.get_rng_state()
    for mode, training in (("training", True), ("scoring", False)):
        model.train(training)
        error = worst(hidden(model, text), hidden(model, text))
        if error > 0:
            return Finding("fails", f"two calls in {mode} with the same tokens and ids differ by {error:.1e}")
    if not torch.equal(state, torch.get_rng_state()):
        return Finding("fails", "a call draws from torch's global generator")
    return Finding("holds", "two calls are equal")


def _all_returned(case: Case) -> Iterator[Returned]:
    yield from returned(case, case.as_built(), torch.float32)
    yield from returned(case, case.encoding, torch.float64)


def _misfit(item: Returned) -> str:
    """Describe how a result differs from what its hook must return; empty if it does not."""
    if item.value is None and item.hook in OPTIONAL:
        return ""
    shapes = item.shapes[:2]  # further ones have fewer axes
    wanted = " or ".join(_in_letters(shape) for shape in shapes)
    if not isinstance(item.value, Tensor):
        return f"returned {type(item.value).__name__}, must be a tensor {wanted}"
    if item.hook == "visible" and item.value.dtype != torch.bool:
        return f"returned {item.value.dtype}, must be torch.bool: true for the keys that a query may see"
    if any(_fits(item.value.shape, shape, item.exact) for shape in item.shapes):
        return ""
    found, sizes = list(item.value.shape), " or ".join(_in_numbers(shape) for shape in shapes)
    return f"returned the shape {found}, must be {wanted}, here {sizes}"


def _fits(found: torch.Size, shape: str, exact: bool) -> bool:
    letters = _spelled(shape, len(found))
    return len(found) == len(letters) and all(
        letter == ANY or size == SIZES[letter] or (size == 1 and letter in SHARED and not exact)
        for size, letter in zip(found, letters, strict=True)
    )


def _spelled(shape: str, axes: int) -> str:
    """Return the shape with `...` spelled out, so that each of `axes` axes has a letter."""
    return shape.replace("...", ANY * (axes - len(shape.replace("...", ""))))


def _in_letters(shape: str) -> str:
    return f"[{', '.join(shape.replace('...', ANY))}]"


def _in_numbers(shape: str) -> str:
    return f"[{', '.join(str(SIZES.get(letter, letter)) for letter in shape.replace('...', ANY))}]"


def _first_bad(item: Returned, bad: Tensor) -> str:
    """Describe the first value that is not finite: what it is, at which distance or token, in which head."""
    index = [int(number) for number in bad.nonzero()[0]]
    letters = next((shape for shape in item.shapes if len(_spelled(shape, len(index))) == len(index)), "")
    axes = zip(_spelled(letters, len(index)), index, strict=True)
    at = {AXES[letter]: number for letter, number in axes if letter in AXES}
    if "query" in at and "key" in at:
        distance = at.pop("query") - at.pop("key")
        place = f"distance {distance}" if distance >= 0 else "a key after its query"
    else:
        place = next((f"{axis} {at[axis]}" for axis in ("distance", "token", "query") if axis in at), "")
    head = f"head {at['head']}" if "head" in at else ""
    where = " in ".join(filter(None, (place, head)))
    value = item.value[tuple(index)].item()
    return f"is {value} at {where}; {int(bad.sum())} of its {bad.numel()} values are not finite"
