"""A checkpoint ready to be scored: its sizes, its training length, how its texts begin, and its model."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from pe_bench.checkpoints.attention import NAME, PassState, register
from pe_bench.checkpoints.encoding import NEUTRAL, Described, describe
from pe_bench.checkpoints.equality import MIN_TOKENS, reads_beside_attention, require_equality
from pe_bench.checkpoints.load import find_trunk, load_model, quiet, takes_positions
from pe_bench.checkpoints.model import CheckpointModel, split_feedforward
from pe_bench.checkpoints.rotation import Answer, ask, attach, rotary_modules
from pe_bench.checkpoints.source import PREFIX, TOKENIZER_CONFIG, Source, read_json
from pe_bench.config.schema import ModelConfig
from pe_bench.data.tokenizer import library_errors
from pe_bench.encodings.spec import EncodingSpec
from pe_bench.errors import UserError, require
from pe_bench.model.lookahead import find_lookahead
from pe_bench.system.memory import give_back_free_memory

AS_IT_IS = "as_is"
PLAIN = "--plain scores it as it is, without the window control and --with"
LENGTHS = (
    "original_max_position_embeddings",
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "seq_length",
)


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
        values = [getattr(text, name, None), *(found.get(name) for found in rotations_of(config))]
        found = [value for value in values if isinstance(value, int) and value > 1]
        if found:
            return found[0], name
    return None


def rotations_of(config: Any) -> list[Mapping[str, Any]]:
    """Return what a configuration says of rotations: once, or for each type of layer."""
    text = config.get_text_config(decoder=True)
    given = getattr(text, "rope_parameters", None) or {}
    groups = [given, *(value for value in given.values() if isinstance(value, Mapping))]
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
    sizes, trunk = _sizes(source, config), find_trunk(source, loaded)
    as_it_is = _as_it_is(source, loaded, trunk, sizes, begin)
    if plain or not loaded._can_set_attn_implementation():
        return as_it_is
    register()
    state = attach(loaded)
    try:
        with quiet():
            loaded.set_attn_implementation(NAME)
            answer = ask(loaded, trunk, state)
            if answer is None:
                loaded.set_attn_implementation("eager")
                return as_it_is
        limit = as_it_is.model.max_positions
        described = describe(answer, rotations_of(config), train_length, has_table=limit is not None)
        model = _model(loaded, trunk, described, answer, state, begin, limit)
        split_feedforward(loaded)
        with quiet():
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
    return Opened(model, described.values, _with_head(sizes, answer), difference)


def _model(
    loaded: Any,
    trunk: Any,
    described: Described,
    answer: Answer,
    state: PassState,
    begin: int | None,
    max_positions: int | None,
) -> CheckpointModel:
    n_layers = len(answer.rotations)
    return CheckpointModel(
        loaded,
        trunk,
        EncodingSpec(described.values).build(n_layers),
        n_layers,
        state,
        fixed=described.fixed,
        masks=answer.masks,
        begin=begin,
        is_neutral=described.is_ours,
        max_positions=max_positions,
        takes_positions=takes_positions(trunk),
    )


def _as_it_is(source: Source, loaded: Any, trunk: Any, sizes: ModelConfig, begin: int | None) -> Opened:
    """Return the model with its own attention. Raise `UserError` for one that cannot be scored at all."""
    values = {"name": AS_IT_IS, "class": NEUTRAL, "derived": [], "modifiers": {}}
    encoding = EncodingSpec(values).build(sizes.n_layers)
    model = CheckpointModel(
        loaded, trunk, encoding, sizes.n_layers, None, begin=begin, takes_positions=takes_positions(trunk)
    )
    stated = train_length_of(loaded.config)
    with quiet(), torch.no_grad():
        if stated is not None and not rotary_modules(loaded):
            model.find_table(stated[0])
        count = min(MIN_TOKENS, model.max_positions or MIN_TOKENS)
        problem = find_lookahead(model, count)
        ids = torch.arange(count)
        largest = float(model.logits(model.hidden(ids[None] % model.vocab_size, ids)).abs().max())
    require(not problem, f"{source.name} reads later tokens, so its scores would mean nothing: {problem}")
    message = f"the largest logit of {source.name} is {largest:g}: its weights are damaged, download it again"
    require(0 < largest < math.inf, message)
    return Opened(model, values, sizes, None)


def _sizes(source: Source, config: Any) -> ModelConfig:
    text = config.get_text_config(decoder=True)

    def size(otherwise: int, *names: str) -> int:
        found = (getattr(text, name, None) for name in names)
        return next((value for value in found if isinstance(value, int) and value > 0), otherwise)

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


def _with_head(sizes: ModelConfig, answer: Answer) -> ModelConfig:
    return replace(sizes, d_head=answer.d_head, n_layers=len(answer.rotations))
