"""Checks of an encoding in a whole decoder, and of calls and sequences that must not change each other."""

import re

import torch
from torch import Tensor, nn

from pe_bench.encodings.base import Layers, LengthError
from pe_bench.encodings.compose import Composition
from pe_bench.encodings.nope import NoPE
from pe_bench.inspection.check.case import TRAIN_LENGTH, Case, hidden, ids_of, other_tokens, parts_of, tokens
from pe_bench.inspection.check.hooks import SHAPES, never_called
from pe_bench.inspection.check.layers import clamps, levels_off_at
from pe_bench.inspection.check.result import SHOWS, FailureError, UnclaimedError, at_most, expect, worst
from pe_bench.model.decoder import Decoder

# Two lists of ids with the same length, ends and sum, and other ids in between.
IDS = torch.tensor([0, 2, 4, 6, 8, 10, 12, 14, 16])
OTHER_IDS = torch.tensor([0, 1, 4, 6, 8, 10, 12, 15, 16])


def causal(case: Case) -> str:
    """No output has a gradient at a later token.

    Look at: visible, adjust, embed.
    """
    model = case.model
    leaf = _random_embeddings(case.sizes.d_model).requires_grad_()
    handle = model.embedding.register_forward_hook(lambda module, arguments, output: leaf)
    try:
        output = hidden(model, tokens(2, TRAIN_LENGTH))
    finally:
        handle.remove()
    for i in (0, 1, TRAIN_LENGTH // 2, TRAIN_LENGTH - 2):
        (gradient,) = torch.autograd.grad(output[:, i].square().sum(), leaf, retain_graph=True)
        leak = gradient[:, i + 1 :].abs().amax((0, 2)).nan_to_num(torch.inf)
        j = int(leak.argmax())
        expect(bool(leak[j] == 0), f"token {i} has gradient {leak[j]:.1e} at token {i + 1 + j}")
    return "gradients at later tokens are 0"


def lookahead(case: Case) -> str:
    """No output depends on which tokens follow.

    Look at: ids and embed, where they read tokens.
    """
    half = TRAIN_LENGTH // 2  # exchanged, because reading token ids leaves no gradient
    text = tokens(2, TRAIN_LENGTH)
    changed = torch.cat([text[:, :half], other_tokens(text[:, half:])], -1)
    error = worst(hidden(case.model, text)[:, :half], hidden(case.model, changed)[:, :half])
    return at_most("other tokens behind change an output by", error)


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
    error = worst(hidden(case.model, text)[1:2], hidden(case.model, text[1:2]))
    at_most("a sequence alone and in a batch differ by", error)
    errors, text = [], tokens(2, len(IDS))
    for ids, moved in ((IDS, IDS + 3), (OTHER_IDS, IDS + 7)):
        both = case.model.hidden(text, torch.stack([moved, ids]))
        errors.append(worst(both[1:], case.model.hidden(text[1:], ids)))
    return at_most("alone and in a batch, also of other ids, a sequence differs by", *errors)


@torch.no_grad()
def pure(case: Case) -> str:
    """The same input gives the same output, whatever came before.

    Look at: a cache: its key must hold all that its values depend on, every id among it.
    """
    text, longer = tokens(2, 9), tokens(2, TRAIN_LENGTH if case.ends else 2 * TRAIN_LENGTH)
    model = case.new_model()  # which has seen nothing yet
    before = hidden(model, text)
    hidden(model, longer)
    at_most("after a longer text the same one differs by", worst(hidden(model, text), before))
    between = torch.cat([text[:, :1], other_tokens(text[:, 1:-1]), text[:, -1:]], -1)
    error = worst(hidden(model, between), hidden(case.new_model(), between))
    at_most("after a text with the same ends a text differs by", error)
    model = case.new_model()
    model.hidden(text, IDS)
    error = worst(model.hidden(text, OTHER_IDS), case.new_model().hidden(text, OTHER_IDS))
    label = "after other ids between the same ends, or another text, the same call differs by"
    return at_most(label, error)


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
    if not case.overrides(*SHAPES):
        raise UnclaimedError(f"no hook is changed; differs from no encoding by {error:.1e}")
    expect(error > SHOWS, f"differs from no encoding by {error:.1e}")
    return f"differs from no encoding by {error:.1e}"


def extrapolation(case: Case) -> str:
    """Past the training length it does what it says.

    Look at: past_training, and what is done with positions that no parameter was trained for.
    """
    length = 4 * TRAIN_LENGTH
    if case.ends:
        return _length_error(case, length)
    with torch.no_grad():
        output = hidden(case.model, tokens(2, length))
    expect(bool(output.isfinite().all()), f"{case.past_training}, but not finite at {length} tokens")
    if case.past_training == "clamps":
        return clamps(case)
    level = levels_off_at(case)
    expect(not level, f"defined, and from {level} on all are alike: `clamps`, if that is meant")
    return f"defined: finite at {length} tokens"


def gradients(case: Case) -> str:
    """Every parameter gets a gradient, and a finite one.

    Look at: a detach, or a part that is not used.
    """
    names = [name for name, _ in case.encoding.named_parameters()]
    if not names:
        raise UnclaimedError("no parameters")
    models = (case.model, case.model_of(case.as_built()))
    for name, *pair in zip(names, *map(_gradients, models), strict=True):
        some = [gradient for gradient in pair if gradient is not None]
        is_finite = all(gradient.isfinite().all() for gradient in some)
        expect(is_finite, f"{name} gets a gradient that is not finite")
        expect(any(gradient.any() for gradient in some), f"{name} gets no gradient")
    return f"{len(names)} parameter tensors get gradients"


def state(case: Case) -> str:
    """Only parameters are saved, they are all that is needed, and every tensor moves with the model.

    Look at: register_buffer(..., persistent=False); random numbers that no parameter holds.

    A table that is saved would keep weights from loading under another encoding without parameters. A tensor
    that is not a buffer would not move when the model moves to a GPU.
    """
    names = {name for name, _ in case.encoding.named_parameters()}
    extra = sorted(set(case.encoding.state_dict()) ^ names)
    expect(not extra, f"saved, and no parameter: {', '.join(extra)}")
    loose = dict.fromkeys(name for part in parts_of(case.encoding) for name in _plain_tensors(part))
    expect(not loose, f"a tensor that is no buffer: {', '.join(loose)}")
    first, second, text = case.as_built(seed=0), case.as_built(seed=1), tokens(2, TRAIN_LENGTH)
    second.load_state_dict(first.state_dict())
    error = worst(hidden(case.model_of(first), text), hidden(case.model_of(second), text))
    at_most("saved and loaded into one of another seed, its output differs by", error)
    return f"{len(names)} tensors" if names else "empty, as that of nope"


def scale(case: Case) -> str:
    """The input keeps its scale at the start.

    Look at: embed and the initial values.

    The input's scale decides curves that would be credited to the encoding.
    """
    text, encoding = tokens(2, TRAIN_LENGTH), case.as_built().double()
    embedded = encoding.embed(_random_embeddings(case.sizes.d_model), ids_of(encoding, text), text)
    rms = float(embedded.detach().square().mean().sqrt())
    expect(0.5 < rms < 2, f"inputs of rms 1 leave with rms {rms:.2f}")
    return f"inputs of rms 1 leave with rms {rms:.2f}"


def ids(case: Case) -> str:
    """Position ids follow the given generator.

    Look at: ids.
    """
    text, before = tokens(2, TRAIN_LENGTH), torch.random.get_rng_state()
    first, again = (ids_of(case.encoding, text, train=True) for _ in range(2))
    is_same = torch.equal(first, again) and torch.equal(before, torch.random.get_rng_state())
    expect(is_same, "two draws with one seed differ, or torch's global generator was used")
    return f"from {float(first.min()):g} to {float(first.max()):g} in training"


def _random_embeddings(width: int) -> Tensor:
    """Return embeddings [2, T, D]."""
    generator = torch.Generator().manual_seed(5)
    return torch.randn(2, TRAIN_LENGTH, width, generator=generator, dtype=torch.float64)


def _gradients(model: Decoder) -> tuple[Tensor | None, ...]:
    text = tokens(2, TRAIN_LENGTH)
    output = model.hidden(text, ids_of(model.encoding, text, train=True))
    loss = output[:, -1].square().sum() + output[..., 0].sum() + output[:, 3, 1].sum()
    return torch.autograd.grad(loss, list(model.encoding.parameters()), allow_unused=True)


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


def _plain_tensors(part: nn.Module) -> list[str]:
    """Return attributes that are tensors, or lists of them, and that no module knows of."""
    return [
        f"{type(module).__name__}.{name}"
        for module in part.modules()
        for name, value in vars(module).items()
        if not type(module).__module__.startswith("torch.")
        if any(isinstance(item, Tensor) for item in (value if isinstance(value, list | tuple) else [value]))
    ]
