"""Checks of an encoding in a whole decoder, and of calls and sequences that must not change each other."""

import re

import torch

from pe_bench.encodings.base import Layers, LengthError
from pe_bench.encodings.compose import Composition
from pe_bench.encodings.nope import NoPE
from pe_bench.inspection.check.case import (
    SHOWS,
    TRAIN_LENGTH,
    Case,
    FailureError,
    UnclaimedError,
    at_most,
    changed_hooks,
    expect,
    hidden,
    ids_of,
    other_tokens,
    parts_of,
    tokens,
    worst,
)
from pe_bench.inspection.check.hooks import SHAPES, never_called
from pe_bench.inspection.check.layers import FARTHEST, levels_of

# Two lists of ids with the same length, ends and sum, and other ids in between.
IDS = torch.tensor([0, 2, 4, 6, 8, 10, 12, 14, 16])
OTHER_IDS = torch.tensor([0, 1, 4, 6, 8, 10, 12, 15, 16])
CLAMPED = 512  # the distance from which an encoding that clamps makes no difference


@torch.no_grad()
def causal(case: Case) -> str:
    """No output depends on the tokens that follow.

    Look at: visible and adjust; ids and embed, where they read tokens.
    """
    text, errors = tokens(2, TRAIN_LENGTH), []
    before = hidden(case.model, text)
    for seen in (1, TRAIN_LENGTH // 2, TRAIN_LENGTH - 1):
        changed = torch.cat([text[:, :seen], other_tokens(text[:, seen:])], -1)
        errors.append(worst(before[:, :seen], hidden(case.model, changed)[:, :seen]))
    return at_most("other tokens behind change an output by", *errors)


@torch.no_grad()
def prefix(case: Case) -> str:
    """A prefix is treated as if nothing followed.

    Look at: what reads the number of keys, k.shape[-2], or the largest position.
    """
    pairs = [(9, 16), (TRAIN_LENGTH // 2, TRAIN_LENGTH)]
    if not case.ends:
        pairs += [(TRAIN_LENGTH, 2 * TRAIN_LENGTH), (2 * TRAIN_LENGTH, 3 * TRAIN_LENGTH + 5)]
    errors = {}
    for short, long in pairs:
        text = tokens(2, long)
        errors[short, long] = worst(hidden(case.model, text)[:, :short], hidden(case.model, text[:, :short]))
    short, long = max(errors, key=lambda pair: errors[pair])
    label = f"the first {short} of {long} tokens differ from {short} alone by"
    return case.as_claimed("prefix_consistent", label, errors[short, long])


@torch.no_grad()
def shift(case: Case) -> str:
    """Moving all positions changes nothing, where claimed, and something, where not.

    Look at: transform, bias and scores: a position where a difference of two should be; or `claims`.
    """
    text, errors = tokens(2, TRAIN_LENGTH - 5 if case.ends else 3 * TRAIN_LENGTH), {}
    for steps in (5, 403):  # multiples of no group of tokens
        try:
            errors[steps] = worst(hidden(case.model, text, steps), hidden(case.model, text))
        except LengthError:
            if case.claims("shift_invariant") or not errors:
                raise
    label = f"positions + {' or + '.join(map(str, errors))} change an output by"
    return case.as_claimed("shift_invariant", label, *errors.values())


@torch.no_grad()
def batch(case: Case) -> str:
    """Sequences of a batch do not influence each other, nor do their ids.

    Look at: a sum or a maximum over the batch; ids of the first sequence taken for all; a shared cache.
    """
    text = tokens(3, TRAIN_LENGTH)
    errors = [worst(hidden(case.model, text)[1:2], hidden(case.model, text[1:2]))]
    text = tokens(2, len(IDS))
    for ids, moved in ((IDS, IDS + 3), (OTHER_IDS, IDS + 7)):
        both = case.model.hidden(text, torch.stack([moved, ids]))
        errors.append(worst(both[1:], case.model.hidden(text[1:], ids)))
    return at_most("alone and in a batch, also of other ids, a sequence differs by", *errors)


@torch.no_grad()
def pure(case: Case) -> str:
    """The same input gives the same output, whatever came before.

    Look at: a cache: its key must hold all that its values depend on, every id among it.
    """
    text, longer = tokens(2, len(IDS)), tokens(2, TRAIN_LENGTH if case.ends else 2 * TRAIN_LENGTH)
    between = torch.cat([text[:, :1], other_tokens(text[:, 1:-1]), text[:, -1:]], -1)
    ids = ids_of(case.encoding, text)
    pairs = {
        "a longer text": ((longer, ids_of(case.encoding, longer)), (text, ids)),
        "a text with the same ends": ((text, ids), (between, ids_of(case.encoding, between))),
        "other ids with the same ends": ((text, IDS), (text, OTHER_IDS)),
    }
    for before, (first, then) in pairs.items():
        used = case.new_model()
        used.hidden(*first)
        at_most(
            f"after {before} a text differs by", worst(used.hidden(*then), case.new_model().hidden(*then))
        )
    return "the same after other texts and ids"


@torch.no_grad()
def effect(case: Case) -> str:
    """The output differs from that of no encoding.

    Look at: a misspelt hook; a result not returned; parameters that cancel.
    """
    for part in parts_of(case.encoding):
        unheard = never_called(part)
        expect(not unheard, f"{type(part).__name__}.{unheard}")
    # An encoding that acts only past the training length must show an effect there.
    text = tokens(2, TRAIN_LENGTH if case.ends else 3 * TRAIN_LENGTH)
    nope = case.model_of(Composition(Layers([NoPE()]), {}, case.sizes.n_layers))
    error = worst(hidden(case.model, text), hidden(nope, text))
    if not changed_hooks(case.encoding, SHAPES):
        raise UnclaimedError(f"no hook is changed; differs from no encoding by {error:.1e}")
    expect(error > SHOWS, f"differs from no encoding by {error:.1e}")
    return f"differs from no encoding by {error:.1e}"


@torch.no_grad()
def extrapolation(case: Case) -> str:
    """Past the training length it does what it says.

    Look at: past_training, and what is done with positions that no parameter was trained for.
    """
    length = 4 * TRAIN_LENGTH
    if case.ends:
        return _length_error(case, length)
    output = hidden(case.model, tokens(2, length))
    expect(bool(output.isfinite().all()), f"{case.past_training}, but not finite at {length} tokens")
    for what, level, is_step in levels_of(case):
        if case.past_training == "clamps":
            expect(level <= CLAMPED, f"clamps: beyond {what} {CLAMPED} equal tokens differ")
        # A window or a table of the training length is a design; of another length, a limit left in the code.
        is_limit = is_step and TRAIN_LENGTH < level < FARTHEST / 2 and case.past_training == "defined"
        expect(
            not is_limit, f"defined, and from {what} {level:,} on all are alike: `clamps`, if that is meant"
        )
    return f"{case.past_training}: finite at {length} tokens"


@torch.no_grad()
def state(case: Case) -> str:
    """Only parameters are saved, and they are all that is needed.

    Look at: register_buffer(..., persistent=False); random numbers that no parameter holds.

    A table that is saved would keep weights from loading under another encoding without parameters.
    """
    names = {name for name, _ in case.encoding.named_parameters()}
    extra = sorted(set(case.encoding.state_dict()) ^ names)
    expect(not extra, f"saved, and no parameter: {', '.join(extra)}")
    first, second, text = case.as_built(seed=0), case.as_built(seed=1), tokens(2, TRAIN_LENGTH)
    second.load_state_dict(first.state_dict())
    error = worst(hidden(case.model_of(first), text), hidden(case.model_of(second), text))
    at_most("saved and loaded into one of another seed, its output differs by", error)
    return f"{len(names)} tensors" if names else "empty, as that of nope"


@torch.no_grad()
def scale(case: Case) -> str:
    """The input keeps its scale at the start.

    Look at: embed and the initial values.

    The input's scale decides curves that would be credited to the encoding.
    """
    text, encoding = tokens(2, TRAIN_LENGTH), case.as_built().double()
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(2, TRAIN_LENGTH, case.sizes.d_model, generator=generator, dtype=torch.float64)
    rms = float(encoding.embed(x, ids_of(encoding, text), text).square().mean().sqrt())
    expect(0.5 < rms < 2, f"inputs of rms 1 leave with rms {rms:.2f}")
    return f"inputs of rms 1 leave with rms {rms:.2f}"


def _length_error(case: Case, length: int) -> str:
    """Return the error of a text that is too long, which must name both lengths, or its last position."""
    try:
        hidden(case.model, tokens(2, length))
    except LengthError as error:
        numbers = set(re.findall(r"\d+", str(error)))
        is_told = str(TRAIN_LENGTH) in numbers and not numbers.isdisjoint({str(length), str(length - 1)})
        expect(is_told, f"of {length} tokens after {TRAIN_LENGTH} the error says: {error}")
        return f"undefined: {error}"
    raise FailureError(f"undefined, but {length} tokens raise no LengthError")
