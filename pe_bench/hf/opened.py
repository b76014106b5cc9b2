"""A Hugging Face model ready to be scored: the model, its sizes, and its training length.

Before scoring, random tokens pass through the model with transformers' attention and with ours. The logits of
a sample of tokens may differ by a small share of the largest logit. All this is in float32. If the scores are
in bfloat16, the weights are converted then, and the mean loss of a window is compared again.
"""

import inspect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from pe_bench.config.schema import ModelConfig
from pe_bench.encodings.spec import EncodingSpec
from pe_bench.errors import UserError, first_line, require
from pe_bench.hf.attention import ATTENTION_NAME, register
from pe_bench.hf.encoding import (
    UNKNOWN_ROTATION,
    LayerFacts,
    attach_state,
    describe_encoding,
    encoding_with_rotation,
    find_layer_facts,
    neutral_encoding_values,
)
from pe_bench.hf.library import quiet
from pe_bench.hf.model import HuggingFaceModel, split_feedforward
from pe_bench.hf.rotary import forget_longer_texts, rotary_modules
from pe_bench.hf.source import CONFIG, Source, load_model
from pe_bench.model.checks import find_lookahead
from pe_bench.runs.find import HF_PREFIX
from pe_bench.system.machine import is_out_of_memory

PLAIN_HINT = "--plain scores it as it is, without the window control and --with"
LENGTH_KEYS = ("original_max_position_embeddings", "max_position_embeddings", "max_seq_len", "seq_length")
# Names of scalings in transformers, and here.
SCALINGS = {
    "linear": "rope_pi",
    "dynamic": "rope_dynamic_ntk",
    "proportional": "p_rope",
    **{name: name for name in ("yarn", "llama3", "longrope")},
}
COMPARED_TOKENS = 64  # tokens whose logits are compared, and the least length of the compared text
LONGEST_WINDOW = 4_096  # tokens of the longest window of a mask that is looked for
MAX_LAYER_SCORES = 2**27  # the most scores of one layer, which transformers makes all at once
MAX_LOGIT_DIFFERENCE = 1e-4  # the largest difference, relative to the largest logit
# How much further from float32 a window's mean loss in bfloat16 may be than with transformers' attention.
MAX_ERROR_NATS = 0.02


@torch.no_grad()
def require_equality(model: HuggingFaceModel, heads: int) -> float:
    """Return the largest difference of logits with our and with transformers' attention.

    It is relative to the largest logit. heads: the number of query heads. Raises `UserError` if it is more
    than `MAX_LOGIT_DIFFERENCE`.
    """
    causal = model.causal
    count = _tokens_to_compare(model, heads)
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(model.vocab_size, (1, count), generator=generator).to(model.device)
    tokens = model.with_begin_tokens(tokens)
    index = torch.linspace(0, count - 1, COMPARED_TOKENS).long().to(model.device)
    hidden = model.hidden(tokens, torch.arange(count, device=tokens.device))
    ours = model.logits(hidden[:, index]).float()
    takes_index = "logits_to_keep" in inspect.signature(causal.forward).parameters
    options = {"logits_to_keep": index} if takes_index else {}  # else it makes all of them, and slowly
    causal.set_attn_implementation("eager")
    theirs = causal(tokens, use_cache=False, **options).logits.float()
    causal.set_attn_implementation(ATTENTION_NAME)
    if not takes_index:
        theirs = theirs[:, index]
    difference = float((ours - theirs).abs().max())
    largest = float(theirs.abs().max())
    allowed = MAX_LOGIT_DIFFERENCE * largest
    differ = (
        f"its logits differ from transformers' own by {difference:.2g} of {largest:.2g} with our attention"
    )
    require(difference <= allowed, f"{differ}, and {allowed:.2g} is allowed")  # a NaN is not
    return difference / largest


def _tokens_to_compare(model: HuggingFaceModel, heads: int) -> int:
    """Return the length of the text of `require_equality`: two windows of the mask, if memory allows."""
    seen = [mask.count(LONGEST_WINDOW) for mask in model.masks if mask is not None]
    window = max((count for count in seen if count < LONGEST_WINDOW), default=0)
    most = int((MAX_LAYER_SCORES / heads) ** 0.5)
    count = max(COMPARED_TOKENS, min(2 * window, most))
    return min(count, model.max_positions or count)


@dataclass(frozen=True)
class Opened:
    """A Hugging Face model that can be scored, with its encoding and facts, as found by trials."""

    model: HuggingFaceModel
    encoding: dict[str, Any]  # values of a configuration
    size: ModelConfig
    # The difference of logits from transformers' own, relative to the largest logit.
    difference: float | None = None
    layer_facts: LayerFacts | None = None  # the facts of its layers; None for a model with its own attention
    nats: float | None = None  # the change of a window's mean loss by bfloat16, in nats per token
    unused_scaling: str = ""  # named in the configuration, and used by no layer

    @property
    def architecture(self) -> str:
        return type(self.model.causal.config).__name__.removesuffix("Config")


def train_length_of(config: Any) -> tuple[int, str] | None:
    """Return the training length in a configuration with its key; None if no key states a length."""
    text = config.get_text_config(decoder=True)
    for name in LENGTH_KEYS:
        values = [_value_of(text, name), *(group.get(name) for group in rotations_of(config))]
        lengths = [value for value in values if isinstance(value, int) and value > 1]
        if lengths:
            return lengths[0], name
    return None


def rotations_of(config: Any) -> list[Mapping[str, Any]]:
    """Return the parameters of rotations in a configuration: one group, or one for each type of layer."""
    text = config.get_text_config(decoder=True)
    parameters = getattr(text, "rope_parameters", None) or {}
    groups = [parameters, *(value for value in parameters.values() if isinstance(value, Mapping))]
    longest = {"max_position_embeddings": getattr(text, "max_position_embeddings", None)}
    return [{**group, **longest} for group in groups]


def open_hf_model(
    source: Source, config: Any, train_length: int, begin: Sequence[int], dtype: torch.dtype, *, plain: bool
) -> Opened:
    """Load a model and find its encoding. Raise `UserError` if our attention cannot replace its own.

    begin: the tokens before each text. dtype: of the weights. plain: keep transformers' own attention.
    """
    opened = _open_in_float32(source, config, train_length, begin, plain=plain)
    if dtype == torch.float32:
        return opened
    if opened.difference is None:
        convert_weights(opened.model.causal, dtype)
        return opened
    exact = window_loss(opened.model)
    convert_weights(opened.model.causal, dtype)
    try:
        return replace(opened, nats=require_precision(opened.model, exact))
    except UserError as error:
        raise UserError(f"{source.name}: {error}; {PLAIN_HINT}") from error


def convert_weights(causal: Any, dtype: torch.dtype) -> None:
    """Convert a model's weights to `dtype`; computed tensors, such as frequencies, stay float32."""
    kept = getattr(causal, "_keep_in_fp32_modules_strict", None) or ()
    for name, tensor in causal.state_dict(keep_vars=True).items():
        if tensor.is_floating_point() and not any(module in name for module in kept):
            tensor.data = tensor.data.to(dtype)
    causal.config.dtype = dtype


@torch.no_grad()
def require_precision(model: HuggingFaceModel, exact: float) -> float:
    """Return how far the mean loss of a window, in nats per token, is from its value in float32, `exact`.

    Raise `UserError` if it is much further than with transformers' attention.
    """
    causal = model.causal
    ours = window_loss(model)
    tokens = _window(model)
    with quiet():
        causal.set_attn_implementation("eager")
        logits = causal(tokens, use_cache=False).logits.float()
        causal.set_attn_implementation(ATTENTION_NAME)
    theirs = float(functional.cross_entropy(logits[0, :-1], tokens[0, 1:]))
    dtype = str(causal.dtype).removeprefix("torch.")
    message = (
        f"in {dtype} the mean loss of a window is {ours:.4f} nats, {theirs:.4f} with transformers' "
        f"attention, and {exact:.4f} in float32: its error may exceed transformers' by at most "
        f"{MAX_ERROR_NATS}"
    )
    moved = abs(ours - exact)
    is_precise = moved <= abs(theirs - exact) + MAX_ERROR_NATS
    require(is_precise, message)
    return moved


@torch.no_grad()
def window_loss(model: HuggingFaceModel) -> float:
    """Return the mean loss of a window of random tokens, in nats per token."""
    tokens = _window(model)
    hidden = model.hidden(tokens, torch.arange(tokens.shape[1], device=tokens.device))
    return float(model.nll(hidden[0, :-1], tokens[0, 1:]).mean())


def _window(model: HuggingFaceModel) -> Tensor:
    """Return a window of random tokens [1, T], the same for all models of one vocabulary size."""
    count = min(COMPARED_TOKENS, model.max_positions or COMPARED_TOKENS)
    generator = torch.Generator().manual_seed(2)
    tokens = torch.randint(model.vocab_size, (1, count), generator=generator)
    return model.with_begin_tokens(tokens.to(model.device))


def _open_in_float32(
    source: Source, config: Any, train_length: int, begin: Sequence[int], *, plain: bool
) -> Opened:
    """Load a model in float32 and find its encoding. Raises `UserError`.

    The arguments are as in `open_hf_model`.
    """
    loaded = load_model(source, config)
    forget_longer_texts(loaded)
    sizes = _model_sizes(source, config)
    values = neutral_encoding_values("as_is")
    encoding = EncodingSpec(values).build(sizes.n_layers)
    model = HuggingFaceModel(loaded, encoding, sizes.n_layers, train_length, begin)
    _require_sound(source, model)
    if plain or not loaded._can_set_attn_implementation():
        return Opened(model, values, sizes)
    register()
    state = attach_state(loaded)
    try:
        with quiet():
            loaded.set_attn_implementation(ATTENTION_NAME)
            stated = train_length_of(config)
            layer_facts = find_layer_facts(loaded, state, train_length if stated is None else stated[0])
            if layer_facts is None:
                loaded.set_attn_implementation("eager")
                return Opened(model, values, sizes)
            values, model.fixed, model.is_neutral = describe_encoding(
                layer_facts, rotations_of(config), train_length, has_table=model.has_learned_table
            )
            n_layers = max(sizes.n_layers, layer_facts.numbers[-1] + 1)
            width = values.get("d_head", layer_facts.layers[0].queries.shape[-1])
            sizes = replace(sizes, d_head=width, n_layers=n_layers)
            model.without_attention = n_layers - len(layer_facts.numbers)
            model.encoding = EncodingSpec(values).build(n_layers)
            model.n_layers = n_layers
            model.state = state
            model.masks = [layer.mask for layer in layer_facts.layers]
            split_feedforward(loaded)
            difference = require_equality(model, sizes.n_heads)
    except UserError as error:
        raise UserError(f"{source.name}: {error}; {PLAIN_HINT}") from error
    except (AttributeError, TypeError, RuntimeError, LookupError) as error:
        reason = f"{type(error).__name__}: {str(error)[:200]}"
        raise UserError(f"{source.name} does not run with our attention ({reason}); {PLAIN_HINT}") from error
    unused = _unused_scaling(source, layer_facts, rotations_of(config), train_length)
    return Opened(model, values, sizes, difference, layer_facts, unused_scaling=unused)


def _unused_scaling(
    source: Source, layer_facts: LayerFacts, parameters: Sequence[Mapping[str, Any]], train_length: int
) -> str:
    """Return a scaling that config.json names and no layer uses; empty without such a scaling.

    transformers ignores a scaling that the configuration has in the form of another architecture.
    """
    if UNKNOWN_ROTATION in layer_facts.rotations:
        return ""
    for rotation in set(layer_facts.rotations) - {None}:
        assert rotation is not None
        values = encoding_with_rotation(rotation, parameters, train_length, layer_facts.calls)
        if values is None or values["name"] in SCALINGS.values():
            return ""
    return next((scaling for scaling in SCALINGS if scaling in scalings_in(source.config)), "")


def scalings_in(config: Any) -> set[str]:
    """Return the values of `rope_type` and `type` in a configuration and its parts."""
    if not isinstance(config, Mapping):
        return set()
    types = [config.get(key) for key in ("rope_type", "type")]
    found = {value for value in types if isinstance(value, str)}
    return found.union(*map(scalings_in, config.values()))


@torch.no_grad()
def _require_sound(source: Source, model: HuggingFaceModel) -> None:
    """Raise `UserError` for a model that cannot be scored even with its own attention."""
    stated = train_length_of(model.causal.config)
    with quiet():
        try:
            # Only a table of positions that ends at this length can be found without longer texts.
            if stated is not None and model.takes_positions and not rotary_modules(model.causal):
                model.find_table(stated[0])
            count = min(COMPARED_TOKENS, model.max_positions or COMPARED_TOKENS)
            ids = torch.arange(count)
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


def _value_of(config: Any, name: str) -> Any:
    """Return a value of a configuration for all layers; None if it is absent or layers differ in it."""
    try:
        return getattr(config, name, None)
    except RuntimeError:  # transformers' AmbiguousGlobalPerLayerAttributeError
        return None


def _model_sizes(source: Source, config: Any) -> ModelConfig:
    """Return the sizes in transformers' configuration; a missing size follows from others, or is 1."""
    text = config.get_text_config(decoder=True)

    def size_in_config(name: str, otherwise: int) -> int:
        number = _value_of(text, name)
        return number if isinstance(number, int) and number > 0 else otherwise

    width = size_in_config("hidden_size", 1)
    heads = size_in_config("num_attention_heads", 1)
    return ModelConfig(
        name=f"{HF_PREFIX}{source.name}",
        d_model=width,
        n_layers=size_in_config("num_hidden_layers", 1),
        n_heads=heads,
        n_kv_heads=size_in_config("num_key_value_heads", heads),
        d_head=size_in_config("head_dim", max(1, width // heads)),
        d_ff=size_in_config("intermediate_size", 4 * width),
        tie_embeddings=bool(getattr(config, "tie_word_embeddings", False)),
    )
