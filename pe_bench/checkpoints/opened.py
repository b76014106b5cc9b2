"""A checkpoint ready to be scored: its sizes, its training length, how its texts begin, and its model.

Before every score random tokens pass through the model with transformers' attention and with ours. The logits
may differ by a small share of the largest one, and by a small share of what leaving out the rotation would
change, so that a part which is silently dropped shows. Logits and layers are compared at some tokens, spread
over all.
"""

import inspect
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from pe_bench.checkpoints.attention import NAME, PassState, register
from pe_bench.checkpoints.encoding import ask, attach, describe, neutral, rotary_modules
from pe_bench.checkpoints.model import CheckpointModel, split_feedforward
from pe_bench.checkpoints.source import (
    PREFIX,
    TOKENIZER_CONFIG,
    Source,
    find_trunk,
    load_model,
    quiet,
    read_json,
)
from pe_bench.config.schema import ModelConfig
from pe_bench.data.tokenizer import library_errors
from pe_bench.encodings.spec import EncodingSpec
from pe_bench.errors import UserError, require
from pe_bench.model.checks import find_lookahead
from pe_bench.system.machine import give_back_free_memory

PLAIN = "--plain scores it as it is, without the window control and --with"
LENGTHS = (
    "original_max_position_embeddings",
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "seq_length",
)
MIN_TOKENS = 64
MAX_WINDOW = 4_096
# Scores of one layer, which transformers makes all at once; more where the weights are larger than these.
MIN_SCORES, MAX_SCORES = 2**26, 2**28
MAX_DIFFERENCE = {torch.float32: 1e-4, torch.bfloat16: 2e-2}  # of the largest logit
NARROW, FAR_TOKENS = 2, 16
MAX_SHARE = 1e-2  # of what leaving out the rotation changes


@torch.no_grad()
def require_equality(model: CheckpointModel, heads: int) -> float:
    """Return the largest difference of logits over the largest logit. Raise `UserError` if it is large."""
    count = _tokens(model, heads)
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(model.vocab_size, (1, count), generator=generator).to(model.device)
    places = torch.linspace(0, count - 1, MIN_TOKENS).long().to(model.device)
    states: list[Sequence[Tensor]] = []
    logits = []
    begin, model.begin = model.begin, None
    try:
        for way in ("eager", NAME):
            model.causal.set_attn_implementation(way)
            with _layers(model, places) as layers:
                if way == NAME:
                    hidden = model.hidden(tokens, torch.arange(count, device=tokens.device))
                    logits.append(model.logits(hidden[:, places]))
                else:
                    logits.append(_their_logits(model, tokens, places))
            states.append(layers)
    finally:
        model.begin = begin
    theirs, ours = (values.float() for values in logits)
    difference, largest = float((ours - theirs).abs().max()), float(theirs.abs().max())
    allowed = MAX_DIFFERENCE.get(logits[0].dtype, 2e-2) * largest
    if model.is_neutral and logits[0].dtype == torch.float32 and not torch.equal(ours, theirs):
        allowed = min(allowed, max(MAX_SHARE * _movement(model, tokens, places, theirs), 1e-6 * largest))
    if not difference <= allowed:  # a NaN is not
        raise UserError(
            f"its logits differ from transformers' own by {difference:.2g} of {largest:.2g} with our "
            f"attention, and {allowed:.2g} is allowed: {_first_different(states[0], states[1])}"
        )
    return difference / largest


@torch.enable_grad()
def reads_beside_attention(model: CheckpointModel) -> bool:
    """Return whether outputs follow from tokens that attention to `NARROW` tokens in each layer cannot reach.

    A gradient says it, for it is exactly 0 where nothing is read. Outputs themselves move by a rounding where
    layers have experts, whose matrices are as large as the number of tokens that chose them.
    """
    beyond = FAR_TOKENS
    count = beyond + model.n_layers * (NARROW - 1) + 1
    if model.max_positions is not None and count > model.max_positions:
        return False
    embedded: list[Tensor] = []

    def keep(module: Any, inputs: Any, output: Tensor) -> Tensor:
        embedded.append(output.detach().requires_grad_())
        return embedded[-1]

    generator = torch.Generator().manual_seed(2)
    tokens = torch.randint(model.vocab_size, (1, count), generator=generator).to(model.device)
    handle = model.causal.get_input_embeddings().register_forward_hook(keep)
    try:
        last_D = model.hidden(tokens, torch.arange(count, device=tokens.device), NARROW)[0, -1].float()
    finally:
        handle.remove()
    # A sum of normed features may be a constant, one with random factors is not.
    factors_D = torch.randn(last_D.shape, generator=generator).to(last_D.device)
    [gradient] = torch.autograd.grad((factors_D * last_D).sum(), embedded[:1])
    return bool(gradient[:, :beyond].any())


def _tokens(model: CheckpointModel, heads: int) -> int:
    """Return how many tokens to compare: two windows, where a window is not too large for that."""
    seen = [mask.count(MAX_WINDOW) for mask in model.masks if mask is not None]
    windows = [count for count in seen if count < MAX_WINDOW]
    scores = min(MAX_SCORES, max(MIN_SCORES, model.parameter_count // 4))
    fitting = int((scores / heads) ** 0.5)
    count = max(MIN_TOKENS, min(2 * max(windows, default=0), fitting))
    return count if model.max_positions is None else min(count, model.max_positions)


def _their_logits(model: CheckpointModel, tokens: Tensor, places: Tensor) -> Tensor:
    """Return the logits of the whole model at some tokens; many make no others."""
    if "logits_to_keep" in inspect.signature(model.causal.forward).parameters:
        return model.causal(tokens, use_cache=False, logits_to_keep=places).logits
    return model.causal(tokens, use_cache=False).logits[:, places]


@contextmanager
def _layers(model: CheckpointModel, places: Tensor) -> Iterator[list[Tensor]]:
    """Yield a list that gets the output of each layer at some tokens, while the model runs."""
    outputs: list[Tensor] = []

    def keep(module: Any, given: Any, output: Any) -> None:
        outputs.append((output[0] if isinstance(output, tuple) else output)[:, places])

    handles = [layer.register_forward_hook(keep) for layer in _decoder_layers(model.causal, model.n_layers)]
    try:
        yield outputs
    finally:
        for handle in handles:
            handle.remove()


def _decoder_layers(model: Any, n_layers: int) -> list[torch.nn.Module]:
    """Return the modules of the layers: the first list that has as many as there are."""
    lists = [module for module in model.modules() if isinstance(module, torch.nn.ModuleList)]
    return next((list(layers) for layers in lists if len(layers) == n_layers), [])


def _movement(model: CheckpointModel, tokens: Tensor, places: Tensor, logits: Tensor) -> float:
    """Return how far logits move where the model's own attention goes without its rotation."""
    state = model.state
    assert isinstance(state, PassState)
    model.causal.set_attn_implementation("eager")
    try:
        state.is_neutral = True
        moved = _their_logits(model, tokens, places).float()
    finally:
        state.is_neutral = False
        model.causal.set_attn_implementation(NAME)
    movement = float((moved - logits).abs().max())
    return movement or float(logits.abs().max())  # a model without a rotation


def _first_different(theirs: Sequence[Tensor], ours: Sequence[Tensor]) -> str:
    for number, (one, other) in enumerate(zip(theirs, ours, strict=False)):
        difference, largest = float((one - other).abs().max()), float(one.abs().max())
        if not difference <= 1e-4 * largest:
            return f"layer {number} is the first that does ({difference:.2g} of {largest:.2g})"
    return "in no layer, so after the last"


@dataclass(frozen=True)
class Opened:
    """A model to score, with the encoding that it was found to have, and how equal its logits are."""

    model: CheckpointModel
    encoding: dict[str, Any]
    size: ModelConfig
    difference: float | None  # of logits, over the largest; None for a model that attends as it is


def train_length_of(config: Any) -> tuple[int, str] | None:
    """Return the training length that a configuration gives, and the name that it has there."""
    text = config.get_text_config(decoder=True)
    for name in LENGTHS:
        values = [getattr(text, name, None), *(group.get(name) for group in rotations_of(config))]
        lengths = [value for value in values if isinstance(value, int) and value > 1]
        if lengths:
            return lengths[0], name
    return None


def rotations_of(config: Any) -> list[Mapping[str, Any]]:
    """Return what a configuration says of rotations: once, or for each type of layer."""
    text = config.get_text_config(decoder=True)
    parameters = getattr(text, "rope_parameters", None) or {}
    groups = [parameters, *(value for value in parameters.values() if isinstance(value, Mapping))]
    longest = {"max_position_embeddings": getattr(text, "max_position_embeddings", None) or 1}
    return [{**longest, **group} for group in groups]


def begin_of_text(source: Source) -> int | None:
    """Return the token that the checkpoint's tokenizer puts before a text; None where it puts none."""
    import tokenizers

    with library_errors(f"{source.tokenizer} cannot be read: save it with a fast tokenizer"):
        tokenizer = tokenizers.Tokenizer.from_file(str(source.tokenizer))
        text = "a"
        whole = tokenizer.encode(text, add_special_tokens=True).ids
        plain = tokenizer.encode(text, add_special_tokens=False).ids
    if len(whole) > len(plain) and whole[1 : 1 + len(plain)] == plain:
        return whole[0]
    path = source.folder / TOKENIZER_CONFIG
    about = read_json(path) if path.is_file() else {}
    token = about.get("bos_token")
    token = token.get("content") if isinstance(token, dict) else token
    return tokenizer.token_to_id(token) if about.get("add_bos_token") and isinstance(token, str) else None


def open_checkpoint(
    source: Source,
    config: Any,
    train_length: int,
    begin: int | None,
    dtype: torch.dtype,
    *,
    plain: bool,
) -> Opened:
    """Load a checkpoint and find what it does. Raise `UserError` where our attention does not fit it."""
    loaded = load_model(source, config, dtype)
    sizes, values = _sizes(source, config), neutral("as_is")
    encoding = EncodingSpec(values).build(sizes.n_layers)
    model = CheckpointModel(loaded, find_trunk(source, loaded), encoding, sizes.n_layers, begin)
    _require_sound(source, model)
    if plain or not loaded._can_set_attn_implementation():
        return Opened(model, values, sizes, None)
    register()
    state = attach(loaded)
    try:
        with quiet():
            loaded.set_attn_implementation(NAME)
            answer = ask(loaded, model.trunk, state)
            if answer is None:
                loaded.set_attn_implementation("eager")
                return Opened(model, values, sizes, None)
            has_table = model.max_positions is not None
            values, fixed, is_ours = describe(answer, rotations_of(config), train_length, has_table=has_table)
            sizes = replace(sizes, d_head=answer.d_head, n_layers=len(answer.rotations))
            model.attend(EncodingSpec(values).build(sizes.n_layers), state, fixed, answer.masks, is_ours)
            split_feedforward(loaded)
            difference = require_equality(model, sizes.n_heads)
            model.reads_beside_attention = reads_beside_attention(model)
    except UserError as error:
        raise UserError(f"{source.name}: {error}; {PLAIN}") from error
    except (AttributeError, TypeError, RuntimeError, LookupError, NotImplementedError) as error:
        kind = type(error).__name__
        raise UserError(
            f"{source.name} does not run with our attention ({kind}: {str(error)[:200]}); {PLAIN}"
        ) from error
    give_back_free_memory()  # the comparison took some, and scores are measured above what is held
    return Opened(model, values, sizes, difference)


@torch.no_grad()
def _require_sound(source: Source, model: CheckpointModel) -> None:
    """Raise `UserError` for a model that cannot be scored even with its own attention."""
    stated = train_length_of(model.causal.config)
    with quiet():
        if stated is not None and not rotary_modules(model.causal):
            model.find_table(stated[0])
        count = min(MIN_TOKENS, model.max_positions or MIN_TOKENS)
        problem = find_lookahead(model, count)
        ids = torch.arange(count)
        largest = float(model.logits(model.hidden(ids[None] % model.vocab_size, ids)).abs().max())
    require(not problem, f"{source.name} reads later tokens, so its scores would mean nothing: {problem}")
    message = f"the largest logit of {source.name} is {largest:g}: its weights are damaged, download it again"
    require(0 < largest < math.inf, message)


def _sizes(source: Source, config: Any) -> ModelConfig:
    text = config.get_text_config(decoder=True)

    def size(otherwise: int, *names: str) -> int:
        values = (getattr(text, name, None) for name in names)
        return next((value for value in values if isinstance(value, int) and value > 0), otherwise)

    width = size(1, "hidden_size", "d_model", "n_embd")
    heads = size(1, "num_attention_heads", "n_head", "n_heads")
    keys = size(heads, "num_key_value_heads")
    return ModelConfig(
        name=f"{PREFIX}{source.name}",
        d_model=width,
        n_layers=size(1, "num_hidden_layers", "n_layer", "n_layers"),
        n_heads=heads,
        n_kv_heads=keys if heads % keys == 0 else heads,
        d_head=size(max(1, width // heads), "head_dim"),
        d_ff=size(4 * width, "intermediate_size", "ffn_dim", "n_inner"),
        tie_embeddings=bool(getattr(config, "tie_word_embeddings", False)),
    )
