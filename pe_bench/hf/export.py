"""Export of our decoder as a model of transformers.

The architecture is Llama; Mistral for a window; SmolLM3 for layers that differ and for no positions; Qwen3
for normed queries and keys. All four have our decoder's matrices under one set of names. Our decoder
multiplies embeddings by sqrt(D), so exported embeddings are multiplied, and not tied to the output matrix.
"""

import itertools
import math
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pe_bench.config.schema import Config
from pe_bench.encodings.base import LayerEncoding
from pe_bench.encodings.masks.sliding_window import SlidingWindow
from pe_bench.encodings.nope import NoPE
from pe_bench.encodings.rotary.p_rope import PRoPE
from pe_bench.encodings.rotary.rope import RoPE
from pe_bench.encodings.scalings.llama3 import Llama3
from pe_bench.encodings.scalings.longrope import LongRoPE, longrope_attention_factor
from pe_bench.encodings.scalings.rope_dynamic_ntk import RopeDynamicNTK
from pe_bench.encodings.scalings.rope_ntk import RopeNTK
from pe_bench.encodings.scalings.rope_pi import RopePI
from pe_bench.encodings.scalings.rope_scaling import have_equal_rotations
from pe_bench.encodings.scalings.yarn import YaRN
from pe_bench.encodings.spec import EncodingSpec
from pe_bench.errors import RunError, require
from pe_bench.hf.library import quiet
from pe_bench.hf.opened import COMPARED_TOKENS, LONGEST_WINDOW, Opened, open_hf_model
from pe_bench.hf.source import (
    CONFIG,
    GENERATION_CONFIG,
    TOKENIZER,
    TOKENIZER_CONFIG,
    Source,
    load_config,
    load_model,
)
from pe_bench.model.decoder import Decoder
from pe_bench.system.files import write_json

EXPORTED_ROTATIONS = (RoPE, PRoPE, RopePI, RopeNTK, RopeDynamicNTK, YaRN, Llama3, LongRoPE)
EXPORTED_NAMES = (
    "rope, p_rope, nope, rope_pi, rope_ntk, rope_dynamic_ntk, yarn, llama3 and longrope, each also with the "
    "modifier sliding_window; smollm3, cohere2, and local_global of one rotation and nope"
)
NO_MODEL_MESSAGE = f"no model of transformers has the encoding {{}}; these can be exported: {EXPORTED_NAMES}"
MAX_LOGIT_DIFFERENCE = 1e-4  # the largest difference of logits, relative to the largest logit
COMPARED_TIMES = 2  # the length of the texts whose logits are compared, over the training length
WINDOW_KEY = "sliding_window"  # a key of transformers' configurations
NORM_NAMES = {"attention.query_norm": "self_attn.q_norm", "attention.key_norm": "self_attn.k_norm"}
WEIGHT_NAMES = {
    "attention.query": "self_attn.q_proj",
    "attention.key": "self_attn.k_proj",
    "attention.value": "self_attn.v_proj",
    "attention.output": "self_attn.o_proj",
    "attention_norm": "input_layernorm",
    "feedforward_norm": "post_attention_layernorm",
    "feedforward.gate": "mlp.gate_proj",
    "feedforward.up": "mlp.up_proj",
    "feedforward.down": "mlp.down_proj",
}


def exported_settings(config: Config, model: Decoder, end_of_text: int) -> tuple[dict[str, Any], bool]:
    """Return the configuration of transformers' model, and whether our rotation interleaves pairs.

    Raises `UserError` for an encoding that no exported architecture has.
    """
    spec = EncodingSpec(config.encoding)
    size = config.model
    layers = [model.encoding.layer(number) for number in range(model.n_layers)]
    parts_of_layers = [getattr(layer, "parts", (layer,)) for layer in layers]
    parts = list(itertools.chain.from_iterable(parts_of_layers))
    rotating = [part for part in parts if type(part) in EXPORTED_ROTATIONS]
    windows = [_window_of(layer_parts) for layer_parts in parts_of_layers]
    is_known = all(type(part) in (SlidingWindow, NoPE, *EXPORTED_ROTATIONS) for part in parts)
    is_known &= not any(part.overrides("ids", "embed") for part in _embedding_parts(model))
    is_known &= _share_one_rotation(rotating) and len({*windows} - {0}) < 2
    require(is_known, NO_MODEL_MESSAGE.format(spec.label))
    rotates = [any(part in rotating for part in layer_parts) for layer_parts in parts_of_layers]
    message = f"no model of transformers has model.qk_norm and {spec.label}: Qwen3 turns every layer alike"
    require(not size.qk_norm or (all(rotates) and len(set(windows)) == 1), message)
    settings: dict[str, Any] = {
        "vocab_size": model.vocab_size,
        "hidden_size": size.d_model,
        "intermediate_size": size.d_ff,
        "num_hidden_layers": size.n_layers,
        "num_attention_heads": size.n_heads,
        "num_key_value_heads": size.n_kv_heads,
        "head_dim": size.d_head,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": config.train.length,
        "tie_word_embeddings": False,
        "bos_token_id": None,
        "eos_token_id": end_of_text,
        "pad_token_id": None,
        **_model_type(rotates, windows, qk_norm=size.qk_norm),
    }
    if not rotating:
        return settings, False
    settings |= _rotation_settings(spec, rotating[0], config.train.length)
    return settings, getattr(rotating[0], "layout", "half") == "interleaved"


def _window_of(parts: Sequence[Any]) -> int:
    """Return the attention window of a layer with these parts; 0 for a layer that sees all tokens."""
    return next((part.window for part in parts if isinstance(part, SlidingWindow)), 0)


def _embedding_parts(model: Decoder) -> list[Any]:
    """Return the base and the modifiers of a model's encoding, which may change its input."""
    return [model.encoding.base, *model.encoding.modifiers.values()]


def _share_one_rotation(rotating: Sequence[Any]) -> bool:
    """Return whether layers share one rotation, or have RoPE of the same frequencies."""
    ropes = [part for part in rotating if type(part) is RoPE]
    alike = {(part.layout, *part.frequencies.tolist()) for part in ropes} | {*rotating} - {*ropes}
    return len(alike) < 2


def _model_type(rotates: Sequence[bool], windows: Sequence[int], *, qk_norm: bool) -> dict[str, Any]:
    """Return transformers' `model_type` for these layers, with the settings that only this type has.

    rotates: whether each layer rotates. windows: each layer's window, 0 for none.
    """
    window = max(windows) or None
    windowed = {"use_sliding_window": window is not None, WINDOW_KEY: window}
    if qk_norm:
        return {"model_type": "qwen3", **windowed, "max_window_layers": 0 if window else len(windows)}
    if all(rotates) and len(set(windows)) == 1:
        return {"model_type": "mistral", WINDOW_KEY: window} if window else {"model_type": "llama"}
    types = []
    for layer_window in windows:
        types.append("sliding_attention" if layer_window else "full_attention")
    no_rope = {"no_rope_layers": list(map(int, rotates)), "layer_types": types}
    return {"model_type": "smollm3", **no_rope, **windowed}


def _rotation_settings(spec: EncodingSpec, part: LayerEncoding, train_length: int) -> dict[str, Any]:
    """Return transformers' `rope_parameters` for a layer's rotation, and `max_position_embeddings`.

    The latter is the length at which dynamic scaling begins; the length that yarn, llama3 or longrope stretch
    to, if it is longer than the training length; or the training length. Raises `UserError` for a rotation
    that the settings cannot state: of a part of each head, or with a factor for each window.
    """
    # Encodings that differ from layer to layer hold another encoding, or have the options of RoPE themselves.
    holders = [each for each in spec.parts if each.encoding_class is type(part)]
    options = {"train_length": train_length, "factor": 1.0, **(holders or [spec.base])[0].options}
    message = f"{spec.label} rotates a part of each head, and no exported model can"
    require(options.get("fraction", 1.0) == 1 or isinstance(part, PRoPE), message)
    message = f"{spec.label} has another factor in each window, and a Hugging Face model has one: train with "
    require(options["factor"] is not None, message + "encoding.factor=N")
    rotation = {"rope_theta": options.get("base", 10_000.0), **_rope_type_and_options(part, options)}
    longest = train_length
    if isinstance(part, RopeDynamicNTK):
        longest = options["train_length"]
    elif "original_max_position_embeddings" in rotation:
        # A later stage may have been trained at another length than the rotation was stretched from.
        longest = max(train_length, round(options["train_length"] * options["factor"]))
    return {"rope_parameters": rotation, "max_position_embeddings": longest}


def _rope_type_and_options(part: LayerEncoding, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the type of a rotation in transformers, with its options there. Raises `UserError`."""
    factor = options["factor"]
    width = options.get("d_head", 0)
    stretched = {"factor": factor, "original_max_position_embeddings": options["train_length"]}
    match part:
        case PRoPE():
            return {"rope_type": "proportional", "partial_rotary_factor": options["fraction"]}
        case RopePI():
            return {"rope_type": "linear", "factor": factor}
        case RopeDynamicNTK():
            return {"rope_type": "dynamic", "factor": factor}
        case RopeNTK():
            exponent = width / (width - 2)
            base = options["base"] * factor**exponent
            return {"rope_type": "default", "rope_theta": base}
        case YaRN():
            message = "transformers has no yarn with ramp=turns: train with ramp=index or ramp=exact"
            require(options["ramp"] != "turns", message)
            names = ("beta_fast", "beta_slow", "attention_factor")
            same = {name: options[name] for name in names if options[name]}
            return {"rope_type": "yarn", **stretched, **same, "truncate": options["ramp"] == "index"}
        case Llama3():
            ends = {f"{end}_freq_factor": options[f"{end}_frequency_factor"] for end in ("low", "high")}
            return {"rope_type": "llama3", **stretched, **ends}
        case LongRoPE():
            short = options["short_factors"] or [1.0] * (width // 2)
            factors = {"long_factor": options["long_factors"], "short_factor": short}
            attention = longrope_attention_factor(factor, options["train_length"])
            return {"rope_type": "longrope", **stretched, **factors, "attention_factor": attention}
    return {"rope_type": "default"}


def write_model(
    folder: Path, config: Config, model: Decoder, settings: Mapping[str, Any], *, is_interleaved: bool
) -> float:
    """Write config.json and the weights; return the largest difference of logits over the largest logit.

    Raises `RunError` if the logits are not equal.
    """
    names = {**WEIGHT_NAMES, **NORM_NAMES} if config.model.qk_norm else WEIGHT_NAMES
    weights = _renamed_weights(model, names, config.model.d_head if is_interleaved else None)
    with quiet() as transformers:
        with torch.device("meta"):
            exported = transformers.AutoModelForCausalLM.from_config(
                transformers.AutoConfig.for_model(**settings)
            )
        exported.to_empty(device="cpu")
        exported.load_state_dict(weights)
        exported.save_pretrained(folder)
        loaded = transformers.AutoModelForCausalLM.from_pretrained(folder, local_files_only=True).eval()
        difference = _largest_difference(model, loaded, COMPARED_TIMES * config.train.length)
    if not difference <= MAX_LOGIT_DIFFERENCE:
        differ = f"the exported model's logits differ from ours by {difference:.2g} of the largest"
        raise RunError(f"{differ}: {NO_MODEL_MESSAGE.format(EncodingSpec(config.encoding).label)}")
    return difference


def _renamed_weights(
    model: Decoder, names: Mapping[str, str], interleaved_width: int | None
) -> dict[str, Tensor]:
    """Return the weights by transformers' names.

    interleaved_width: the width of a head if our pairs of features are interleaved: transformers has the
    first features of all pairs before the second ones. None for the layout `half`.
    """
    weights = {
        "model.embed_tokens.weight": model.embedding.weight * math.sqrt(model.embedding.embedding_dim),
        "model.norm.weight": model.norm.weight,
        "lm_head.weight": model.output_weight,
    }
    for number, block in enumerate(model.blocks):
        for ours, theirs in names.items():
            weight = block.get_parameter(f"{ours}.weight")
            if interleaved_width is not None and ours.startswith(("attention.query", "attention.key")):
                weight = weight.unflatten(0, (-1, interleaved_width // 2, 2)).transpose(1, 2).flatten(0, 2)
            weights[f"model.layers.{number}.{theirs}.weight"] = weight
    return {name: weight.detach().clone() for name, weight in weights.items()}


@torch.no_grad()
def _largest_difference(model: Decoder, loaded: Any, length: int) -> float:
    """Return the largest difference of logits from the loaded model's, over the largest logit."""
    tokens = torch.randint(model.vocab_size, (1, length), generator=torch.Generator().manual_seed(0))
    ids = model.encoding.ids(tokens, train=False, generator=None)
    ours = model.hidden(tokens, ids) @ model.output_weight.mT
    theirs = loaded(tokens, use_cache=False).logits
    return float((ours - theirs).abs().max() / ours.abs().max())


def rescaled_config(source: Source, opened: Opened, spec: EncodingSpec, train_length: int) -> dict[str, Any]:
    """Return the values of a model's config.json, with the rotation of `spec` in place of the model's.

    Raises `UserError` for a rotation that config.json cannot state, and for layers that rotate differently.
    """
    layers = [spec.build(opened.size.n_layers).layer(number) for number in range(opened.size.n_layers)]
    part = layers[0]
    is_known = type(part) in EXPORTED_ROTATIONS and not spec.modifiers
    require(is_known, NO_MODEL_MESSAGE.format(spec.label))
    values = dict(source.config)
    rotations = values.get("rope_parameters") or {}
    is_nested = "text_config" in values or any(isinstance(value, Mapping) for value in rotations.values())
    turned = [layer for layer in opened.model.fixed.values() if type(layer) is not LayerEncoding]
    message = f"the layers of {source.name} rotate in several ways, and this writes one for all of them"
    require(not is_nested and not turned, message)
    rotation = _rotation_settings(spec, part, train_length)
    for key in ("rope_scaling", "rope_theta"):
        values.pop(key, None)
    return values | rotation


def write_weights(folder: Path, source: Source, causal: Any, values: Mapping[str, Any]) -> None:
    """Write a model's float32 weights with a configuration, and copy its tokenizer.

    values: the values of config.json; the type of the weights is replaced.
    """
    with quiet():
        causal.save_pretrained(folder)
    # The generation settings that transformers writes are those of loading it here.
    (folder / GENERATION_CONFIG).unlink(missing_ok=True)
    for path in (source.folder / name for name in (TOKENIZER, TOKENIZER_CONFIG, GENERATION_CONFIG)):
        if path.is_file():
            shutil.copyfile(path, folder / path.name)
    kept = {name: value for name, value in values.items() if name not in ("dtype", "torch_dtype")}
    write_json(folder / CONFIG, kept | {"dtype": "float32"})
    for path in folder.iterdir():  # safetensors hides its files from others
        path.chmod((folder / CONFIG).stat().st_mode)


@torch.no_grad()
def require_rescaled(written: Source, opened: Opened, spec: EncodingSpec, train_length: int) -> float:
    """Return the largest difference of a written model's logits from ours, over the largest logit.

    Raises `RunError` if the logits are not equal, or if the rotations differ in longer texts.
    """
    model = opened.model.with_encoding(spec.build(opened.size.n_layers)).eval()
    count = min(COMPARED_TIMES * train_length, LONGEST_WINDOW)
    generator = torch.Generator().manual_seed(0)
    tokens = model.with_begin_tokens(torch.randint(model.vocab_size, (1, count), generator=generator))
    ours = model.logits(model.hidden(tokens, torch.arange(count))[:, -COMPARED_TOKENS:])
    again = open_hf_model(
        written, load_config(written), train_length, model.begin, torch.float32, plain=False
    )
    for times in (1, COMPARED_TIMES, 2 * COMPARED_TIMES):
        window = times * train_length
        is_same = have_equal_rotations(again.model.encoding.layer(0), model.encoding.layer(0), window, 1e-5)
        if not is_same:
            raise RunError(f"transformers' {spec.label} turns otherwise than ours in {window:,} tokens")
    theirs = load_model(written, load_config(written))(tokens, use_cache=False).logits[:, -COMPARED_TOKENS:]
    difference = float((ours - theirs).abs().max() / theirs.abs().max())
    if not difference <= MAX_LOGIT_DIFFERENCE:
        differ = f"the written model's logits differ from ours by {difference:.2g} of the largest"
        raise RunError(f"{differ}: {spec.label} is another encoding in transformers")
    return difference
