"""Checks of an encoding in a whole decoder, and of calls and sequences that must not change each other."""

import inspect
import re
from difflib import get_close_matches

import torch
from torch import Tensor, nn

from pe_bench.encodings.base import LayerEncoding, Layers, LengthError, PositionalEncoding
from pe_bench.encodings.compose import Composition, Stack
from pe_bench.encodings.nope import NoPE
from pe_bench.inspection.check.case import (
    EXACT,
    MODEL,
    SHOWS,
    TRAIN_LENGTH,
    VOCABULARY,
    Case,
    Finding,
    as_claimed,
    at_most,
    hidden,
    ids_of,
    largest,
    layers_of,
    one_token_repeated,
    tokens,
    worst,
)
from pe_bench.inspection.check.hooks import HOOKS
from pe_bench.inspection.check.layers import farthest_that_is_told_apart
from pe_bench.model.attention import logits, project, slice_tokens
from pe_bench.model.decoder import Decoder

# Two lists of ids with the same length, ends and sum, and other ids in between.
IDS = torch.tensor([0, 2, 4, 6, 8, 10, 12, 14, 16])
OTHER_IDS = torch.tensor([0, 1, 4, 6, 8, 10, 12, 15, 16])


@torch.no_grad()
def pure(case: Case) -> Finding:
    """The same input gives the same output, whatever came before.

    Look at: a cache: its key must hold all that its values depend on, every id among it.

    Compare the output before and after other calls, in models that have seen nothing yet.
    """
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
    """Sequences of a batch do not meet, nor do their ids.

    Look at: a sum or a maximum over the batch; ids of the first sequence taken for all; a shared cache.

    Compare a sequence alone with the same one in a batch: with other tokens, and with other ids.
    """
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


def causal(case: Case) -> Finding:
    """No output has a gradient at a later token.

    Look at: visible, adjust, embed.

    Check that gradients of outputs by the embeddings of later tokens are exactly zero: no leak.
    """
    model = case.model
    leaf = torch.randn(2, TRAIN_LENGTH, MODEL.d_model, generator=_generator(), dtype=torch.float64)
    leaf.requires_grad_()
    handle = model.embedding.register_forward_hook(lambda module, arguments, output: leaf)
    try:
        output = hidden(model, tokens(2, TRAIN_LENGTH))
        for i in (0, 1, TRAIN_LENGTH // 2, TRAIN_LENGTH - 2):
            (gradient,) = torch.autograd.grad(output[:, i].square().sum(), leaf, retain_graph=True)
            leak = gradient[:, i + 1 :].abs().amax((0, 2))
            if not (leak == 0).all():
                j = int(leak.nan_to_num(torch.inf).argmax())
                return Finding("fails", f"token {i} has gradient {leak[j]:.1e} at token {i + 1 + j}")
    finally:
        handle.remove()
    return Finding("holds", "gradients at later tokens are 0")


def independent_of_the_future(case: Case) -> Finding:
    """No output depends on which tokens follow.

    Look at: ids and embed, where they read tokens.

    Compare outputs after exchanging later tokens: reading token ids leaves no gradient.
    """
    text = tokens(2, TRAIN_LENGTH)
    changed, half = text.clone(), TRAIN_LENGTH // 2
    changed[:, half:] = (changed[:, half:] + 1 + torch.arange(TRAIN_LENGTH - half) % 9) % len(VOCABULARY)
    error = worst(hidden(case.model, text)[:, :half], hidden(case.model, changed)[:, :half])
    return at_most(error, EXACT, "other tokens behind change an output by")


def prefix_consistent(case: Case) -> Finding:
    """A prefix is treated as if nothing followed.

    Look at: what reads the number of keys, k.shape[-2], or the largest position.

    Compare outputs of a prefix, alone and continued, within the training length and past it.
    """
    pairs = [(9, 16), (TRAIN_LENGTH // 2, TRAIN_LENGTH)]
    if case.past_training != "undefined":
        pairs += [(TRAIN_LENGTH, 2 * TRAIN_LENGTH), (2 * TRAIN_LENGTH, 3 * TRAIN_LENGTH + 5)]
    errors = {}
    for short, long in pairs:
        text = tokens(2, long)
        errors[short, long] = worst(hidden(case.model, text)[:, :short], hidden(case.model, text[:, :short]))
    short, long = max(errors, key=lambda pair: errors[pair])
    where = f"the first {short} of {long} tokens differ from {short} alone by"
    return as_claimed("prefix_consistent", case.claims("prefix_consistent"), errors[short, long], where)


def shift_invariant(case: Case) -> Finding:
    """Moving all positions changes nothing, where claimed, and something, where not.

    Look at: transform, bias and scores: a position where a difference of two should be; or `claims`.

    Compare outputs with every position moved by 5 and by 403: multiples of no group of tokens.
    """
    length = TRAIN_LENGTH - 5 if case.past_training == "undefined" else 3 * TRAIN_LENGTH
    text, errors = tokens(2, length), {}
    for shift in (5, 403):
        try:
            errors[shift] = worst(hidden(case.model, text, shift), hidden(case.model, text))
        except LengthError:
            if case.claims("shift_invariant") or not errors:
                raise
    where = f"positions + {' or + '.join(map(str, errors))} change an output by"
    return as_claimed("shift_invariant", case.claims("shift_invariant"), largest(errors.values()), where)


def acts(case: Case) -> Finding:
    """The output differs from that of no encoding.

    Look at: a misspelt hook; a result not returned; parameters that cancel.

    Compare a decoder with and without the encoding: one that changes nothing is a mistake.
    """
    for part in _objects(case):
        unheard = _unheard(part)
        if unheard:
            return Finding("fails", f"{type(part).__name__}.{unheard}")
    nope = _without_encoding(case.model)
    # An encoding that acts only past the training length must show an effect there.
    text = tokens(2, TRAIN_LENGTH if case.past_training == "undefined" else 3 * TRAIN_LENGTH)
    error = worst(hidden(case.model, text), hidden(nope, text))
    if not case.overrides(*HOOKS):
        return Finding("not claimed", f"no hook is changed; differs from no encoding by {error:.1e}")
    state = "holds" if error > SHOWS else "fails"
    return Finding(state, f"differs from no encoding by {error:.1e}")


def past_the_training_length(case: Case) -> Finding:
    """Past the training length it does what it says.

    Look at: past_training, and what is done with positions that no parameter was trained for.

    Check the claim on longer texts: `undefined` raises, `clamps` levels off, `defined` is finite.
    """
    length = 4 * TRAIN_LENGTH
    if case.past_training == "undefined":
        return _raises(case, length)
    with torch.no_grad():
        output = hidden(case.model, tokens(2, length))
    if not output.isfinite().all():
        return Finding("fails", f"{case.past_training}, but not finite at {length} tokens")
    if case.past_training == "clamps":
        return _levels_off(case)
    limit = farthest_that_is_told_apart(case)
    return limit or Finding("holds", f"defined: finite at {length} tokens")


def parameters_matter(case: Case) -> Finding:
    """Every parameter gets a gradient, and a finite one.

    Look at: a detach, or a part that is not used.

    Check that each parameter, random or initial, gets a gradient from the ids of training.
    """
    names = [name for name, _ in case.model.encoding.named_parameters()]
    if not names:
        return Finding("not claimed", "no parameters")
    models = (case.model, case.model_of(case.as_built()))
    for name, *found in zip(names, *map(_gradients, models), strict=True):
        some = [gradient for gradient in found if gradient is not None]
        if not all(gradient.isfinite().all() for gradient in some):
            return Finding("fails", f"{name} gets a gradient that is not finite")
        if not any(gradient.any() for gradient in some):
            return Finding("fails", f"{name} gets no gradient")
    return Finding("holds", f"{len(names)} parameter tensors get gradients")


def _gradients(model: Decoder) -> tuple[Tensor | None, ...]:
    text = tokens(2, TRAIN_LENGTH)
    output = model.hidden(text, ids_of(model.encoding, text, train=True))
    loss = output[:, -1].square().sum() + output[..., 0].sum() + output[:, 3, 1].sum()
    return torch.autograd.grad(loss, list(model.encoding.parameters()), allow_unused=True)


def state_is_parameters(case: Case) -> Finding:
    """Only parameters are saved, they are all that is needed, and every tensor moves with the model.

    Look at: register_buffer(..., persistent=False); random numbers that no parameter holds.

    Check that no table is saved: it would keep weights from loading under another encoding without
    parameters.

    A tensor that is not a buffer would not move when the model moves to a GPU.
    """
    encoding = case.encoding
    names = {name for name, _ in encoding.named_parameters()}
    extra = sorted(set(encoding.state_dict()) ^ names)
    if extra:
        return Finding("fails", f"saved, and no parameter: {', '.join(extra)}")
    loose = [name for part in _objects(case) for name in _plain_tensors(part)]
    if loose:
        return Finding("fails", f"a tensor that is no buffer: {', '.join(loose)}")
    first, second, text = case.as_built(seed=0), case.as_built(seed=1), tokens(2, TRAIN_LENGTH)
    second.load_state_dict(first.state_dict())
    error = worst(hidden(case.model_of(first), text), hidden(case.model_of(second), text))
    if not error <= EXACT:
        return Finding(
            "fails", f"saved and loaded into one of another seed, its output differs by {error:.1e}"
        )
    return Finding("holds", f"{len(names)} tensors" if names else "empty, as that of nope")


def starts_at_the_usual_scale(case: Case) -> Finding:
    """The input keeps its scale at the start.

    Look at: embed and the initial values.

    Check the input's initial scale: it decides curves that would be credited to the encoding.
    """
    text = tokens(2, TRAIN_LENGTH)
    x = torch.randn(2, TRAIN_LENGTH, MODEL.d_model, generator=_generator(), dtype=torch.float64)
    encoding = case.as_built().double()
    rms = float(encoding.embed(x, ids_of(encoding, text), text).detach().square().mean().sqrt())
    return Finding("holds" if 0.5 < rms < 2 else "fails", f"inputs of rms 1 leave with rms {rms:.2f}")


def ids_follow_the_generator(case: Case) -> Finding:
    """Position ids follow the given generator.

    Look at: ids.

    Check that training ids are drawn from the given generator alone.
    """
    text, encoding = tokens(2, TRAIN_LENGTH), case.encoding
    before = torch.random.get_rng_state()
    first, again = (ids_of(encoding, text, train=True) for _ in range(2))
    if not torch.equal(first, again) or not torch.equal(before, torch.random.get_rng_state()):
        return Finding("fails", "two draws with one seed differ, or torch's global generator was used")
    return Finding("holds", f"from {float(first.min()):g} to {float(first.max()):g} in training")


def _without_encoding(model: Decoder) -> Decoder:
    bare = Decoder(MODEL, len(VOCABULARY), Composition(Layers([NoPE()]), {}, MODEL.n_layers)).double()
    weights = {name: value for name, value in model.state_dict().items() if not name.startswith("encoding.")}
    bare.load_state_dict(weights)
    return bare


def _raises(case: Case, length: int) -> Finding:
    try:
        hidden(case.model, tokens(2, length))
    except LengthError as error:
        for words in (f"{TRAIN_LENGTH}", f"{length}|{length - 1}"):  # a length, or its last position
            if not re.search(rf"\b({words})\b", str(error)):
                return Finding("fails", f"of {length} tokens after {TRAIN_LENGTH} the error says: {error}")
        return Finding("holds", f"undefined: {error}")
    return Finding("fails", f"undefined, but {length} tokens raise no LengthError")


def _levels_off(case: Case) -> Finding:
    """Check that, where all tokens are the same, all far enough have the same scores and inputs."""
    length, half = 1_024, 512
    x, q, k = one_token_repeated(length)
    ids, spreads = torch.arange(length), []
    with torch.no_grad():
        for layer in layers_of(case.encoding):
            queries, keys = project(layer, x, q, k, ids)
            row, _ = logits(layer, slice_tokens(queries, length - 1, length), keys, MODEL.d_head**-0.5)
            spreads.append(float((row[..., :half].amax(-1) - row[..., :half].amin(-1)).max()))
        embedded = case.encoding.embed(x, ids, torch.zeros(1, length, dtype=torch.long))
        spreads.append(worst(embedded[:, half:], embedded[:, -1:]))
    return at_most(largest(spreads), EXACT, f"clamps: beyond distance {half} equal tokens differ by")


def _objects(case: Case) -> list[nn.Module]:
    """Return the encoding, its modifiers, and the encodings that act in the layers."""
    layers = layers_of(case.encoding)
    stacked = [part for layer in layers for part in (layer.parts if isinstance(layer, Stack) else (layer,))]
    return list(dict.fromkeys([*case.parts, *stacked]))


def _unheard(part: nn.Module) -> str:
    """Find a method that would never be called: a hook of the other kind of class, or a misspelt one."""
    kind, other = (LayerEncoding, PositionalEncoding)[:: 1 if isinstance(part, LayerEncoding) else -1]
    of_other = [name for name in _methods(other) if not hasattr(kind, name)]
    for name in _methods(type(part)):
        if hasattr(kind, name):
            continue
        if name in of_other:
            return f"{name} is never called: it is a hook of {other.__name__}"
        close = get_close_matches(name, [*_methods(kind), *of_other], 1, 0.8)
        if close:
            return f"{name} is never called: is it {close[0]}?"
    return ""


def _methods(kind: type[nn.Module]) -> list[str]:
    own = [name for name, _ in inspect.getmembers(kind, inspect.isfunction) if not hasattr(nn.Module, name)]
    return [name for name in own if not name.startswith("_")]


def _plain_tensors(part: nn.Module) -> list[str]:
    """Return attributes that are tensors, or lists of them, and that no module knows of."""
    found = []
    own = [module for module in part.modules() if not type(module).__module__.startswith("torch.")]
    for module in own:
        for name, value in vars(module).items():
            held = value if isinstance(value, (list, tuple)) else [value]
            if any(isinstance(one, Tensor) for one in held):
                found.append(f"{type(module).__name__}.{name}")
    return found


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(5)
