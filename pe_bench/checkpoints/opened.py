"""A checkpoint ready to be scored: its sizes, its training length, how its texts begin, and its model.

Before scoring, random tokens pass through the model with transformers' attention and with ours. The logits of
a sample of tokens may differ by a small share of the largest logit.
"""

import inspect
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from pe_bench.checkpoints.attention import NAME, register
from pe_bench.checkpoints.encoding import Answer, ask, attach, describe, neutral, rotary_modules
from pe_bench.checkpoints.model import CheckpointModel, split_feedforward
from pe_bench.checkpoints.source import (
    CONFIG,
    PREFIX,
    TOKENIZER_CONFIG,
    Source,
    load_model,
    quiet,
    read_json,
)
from pe_bench.config.schema import ModelConfig
from pe_bench.data.tokenizer import library_errors
from pe_bench.encodings.spec import EncodingSpec
from pe_bench.errors import UserError, first_line, require
from pe_bench.model.checks import find_lookahead
from pe_bench.system.machine import give_back_free_memory, is_out_of_memory

PLAIN = "--plain scores it as it is, without the window control and --with"
LENGTHS = (
    *("original_max_position_embeddings", "max_position_embeddings", "n_positions", "max_seq_len"),
    "seq_length",
)
MIN_TOKENS = 64
MAX_WINDOW = 4_096
# Scores of one layer, which transformers makes all at once; more where the weights are larger than these.
MIN_SCORES, MAX_SCORES = 2**26, 2**28
MAX_DIFFERENCE, MAX_DIFFERENCE_BFLOAT16 = 1e-4, 2e-2  # of the largest logit


@torch.no_grad()
def require_equality(model: CheckpointModel, heads: int) -> float:
    """Return the largest difference of logits over the largest logit. Raise `UserError` if it is large."""
    count, causal = _tokens(model, heads), model.causal
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(model.vocab_size, (1, count), generator=generator).to(model.device)
    index = torch.linspace(0, count - 1, MIN_TOKENS).long().to(model.device)
    begin, model.begin = model.begin, None
    try:
        hidden = model.hidden(tokens, torch.arange(count, device=tokens.device))
        ours = model.logits(hidden[:, index]).float()
        causal.set_attn_implementation("eager")
        if "logits_to_keep" in inspect.signature(causal.forward).parameters:  # many make all, and slowly
            theirs = causal(tokens, use_cache=False, logits_to_keep=index).logits
        else:
            theirs = causal(tokens, use_cache=False).logits[:, index]
    finally:
        causal.set_attn_implementation(NAME)
        model.begin = begin
    difference, largest = float((ours - theirs.float()).abs().max()), float(theirs.abs().max())
    allowed = (MAX_DIFFERENCE if theirs.dtype == torch.float32 else MAX_DIFFERENCE_BFLOAT16) * largest
    message = (
        f"its logits differ from transformers' own by {difference:.2g} of {largest:.2g} with our attention, "
        f"and {allowed:.2g} is allowed"
    )
    require(difference <= allowed, message)  # a NaN is not
    return difference / largest


def _tokens(model: CheckpointModel, heads: int) -> int:
    """Return how many tokens to compare: two windows, where a window is not too large for that."""
    seen = [mask.count(MAX_WINDOW) for mask in model.masks if mask is not None]
    window = max((count for count in seen if count < MAX_WINDOW), default=0)
    scores = min(MAX_SCORES, max(MIN_SCORES, model.parameter_count // 4))
    count = max(MIN_TOKENS, min(2 * window, int((scores / heads) ** 0.5)))
    return min(count, model.max_positions or count)


@dataclass(frozen=True)
class Opened:
    """A model to score, with the encoding that it was found to have, and how equal its logits are.

    answer: what its layers do; None for a model that attends as it is.
    """

    model: CheckpointModel
    encoding: dict[str, Any]
    size: ModelConfig
    difference: float | None = None  # of logits, over the largest; None for a model that attends as it is
    answer: Answer | None = None


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
        tokens = tokenizer.encode(text, add_special_tokens=True).ids
        plain = tokenizer.encode(text, add_special_tokens=False).ids
    if len(tokens) > len(plain) and tokens[1 : 1 + len(plain)] == plain:
        return tokens[0]
    path = source.folder / TOKENIZER_CONFIG
    about = read_json(path) if path.is_file() else {}
    token = about.get("bos_token")
    token = token.get("content") if isinstance(token, dict) else token
    return tokenizer.token_to_id(token) if about.get("add_bos_token") and isinstance(token, str) else None


def open_checkpoint(
    source: Source, config: Any, train_length: int, begin: int | None, dtype: torch.dtype, *, plain: bool
) -> Opened:
    """Load a checkpoint and find what it does. Raise `UserError` where our attention does not fit it."""
    loaded = load_model(source, config, dtype)
    sizes, values = _sizes(source, config), neutral("as_is")
    encoding = EncodingSpec(values).build(sizes.n_layers)
    model = CheckpointModel(loaded, encoding, sizes.n_layers, begin)
    _require_sound(source, model)
    if plain or not loaded._can_set_attn_implementation():
        return Opened(model, values, sizes)
    register()
    state = attach(loaded)
    try:
        with quiet():
            loaded.set_attn_implementation(NAME)
            answer = ask(loaded, model.trunk, state)
            if answer is None:
                loaded.set_attn_implementation("eager")
                return Opened(model, values, sizes)
            has_table = model.max_positions is not None
            values, fixed, is_ours = describe(answer, rotations_of(config), train_length, has_table=has_table)
            d_head = answer.layers[0].queries.shape[-1]
            sizes = replace(sizes, d_head=d_head, n_layers=len(answer.layers))
            model.encoding = EncodingSpec(values).build(sizes.n_layers)
            model.n_layers, model.state, model.fixed = sizes.n_layers, state, fixed
            model.masks, model.is_neutral = [layer.mask for layer in answer.layers], is_ours
            split_feedforward(loaded)
            difference = require_equality(model, sizes.n_heads)
            # Some layers also mix neighbouring tokens by a short convolution.
            model.reads_beside_attention = any(isinstance(part, nn.Conv1d) for part in loaded.modules())
    except UserError as error:
        raise UserError(f"{source.name}: {error}; {PLAIN}") from error
    except (AttributeError, TypeError, RuntimeError, LookupError, NotImplementedError) as error:
        reason = f"{type(error).__name__}: {str(error)[:200]}"
        raise UserError(f"{source.name} does not run with our attention ({reason}); {PLAIN}") from error
    give_back_free_memory()  # the comparison took some, and scores are measured above what is held
    return Opened(model, values, sizes, difference, answer)


@torch.no_grad()
def _require_sound(source: Source, model: CheckpointModel) -> None:
    """Raise `UserError` for a model that cannot be scored even with its own attention."""
    stated = train_length_of(model.causal.config)
    with quiet():
        if stated is not None and not rotary_modules(model.causal):
            model.find_table(stated[0])
        count = min(MIN_TOKENS, model.max_positions or MIN_TOKENS)
        ids = torch.arange(count)
        try:
            problem = find_lookahead(model, count)
            largest = float(model.logits(model.hidden(ids[None] % model.vocab_size, ids)).abs().max())
        except Exception as error:  # whatever a model of transformers raises
            if is_out_of_memory(error):
                raise
            reason = f"cannot be run as its {CONFIG} describes it ({first_line(error)[:200]})"
            raise UserError(f"{source.name} {reason}: download it again") from error
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
