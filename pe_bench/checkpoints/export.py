"""A model of ours as one of transformers': Llama, Mistral with a window, SmolLM3 where layers differ.

SmolLM3 is also the one without positions, and Qwen3 the one with normed queries and keys.

The four have our decoder's matrices under one set of names. Our decoder multiplies embeddings by sqrt(D), so
they go out multiplied, and apart from the head.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pe_bench.checkpoints.source import quiet
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
from pe_bench.encodings.scalings.yarn import YaRN
from pe_bench.encodings.spec import EncodingSpec
from pe_bench.errors import RunError, UserError
from pe_bench.model.decoder import Decoder

EXPORTED = (
    "rope, p_rope, nope, rope_pi, rope_ntk, rope_dynamic_ntk, yarn, llama3 and longrope, each also with the "
    "modifier sliding_window; smollm3, cohere2, and local_global of rope and nope"
)
MAX_DIFFERENCE = 1e-4  # of logits, over the largest
COMPARED_TIMES = 2  # the training length
NORMS = {"attention.query_norm": "self_attn.q_norm", "attention.key_norm": "self_attn.k_norm"}
NAMES = {
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

Options = Mapping[str, Any]


class Form(NamedTuple):
    """What becomes of an encoding: one rotation and one window, and the layers that have them."""

    rotation: dict[str, Any] | None
    is_interleaved: bool
    window: int | None
    rotates: list[bool]  # by layer
    has_window: list[bool]  # by layer


def exported_form(config: Config, model: Decoder) -> Form:
    """Return what an encoding is in transformers. Raise `UserError` where it is nothing there."""
    spec = EncodingSpec(config.encoding)
    layers = [_parts(model.encoding.layer(number)) for number in range(model.n_layers)]
    rotations = [[part for part in parts if type(part) in ROTATIONS] for parts in layers]
    windows = [[part.window for part in parts if isinstance(part, SlidingWindow)] for parts in layers]
    kinds = {type(part) for parts in layers for part in parts} - ROTATIONS.keys()
    owns = any(part.overrides(hook) for part in _whole(model) for hook in ("ids", "embed"))
    rotating = [part for parts in rotations for part in parts]
    if (
        owns
        or not kinds <= {SlidingWindow, NoPE}
        or any(len(parts) > 1 for parts in (*rotations, *windows))
        or len({window for parts in windows for window in parts}) > 1
        or not (len(set(map(id, rotating))) == 1 == len(set(map(len, rotations))) or _are_one_rope(rotating))
    ):
        raise UserError(
            f"no model of transformers has the encoding {spec.label}: these can be exported: {EXPORTED}"
        )
    if config.model.qk_norm and not (all(rotations) and len(set(map(len, windows))) == 1):
        raise UserError(
            f"no model of transformers has model.qk_norm and {spec.label}: Qwen3 turns every layer, and so "
            "train with encoding=rope or one of its scalings"
        )
    return Form(
        _rotation(spec, rotating[0], config.train.length) if rotating else None,
        bool(rotating) and getattr(rotating[0], "layout", "half") == "interleaved",
        next((window for parts in windows for window in parts), None),
        list(map(bool, rotations)),
        list(map(bool, windows)),
    )


def _are_one_rope(parts: Sequence[LayerEncoding]) -> bool:
    """Return whether layers that are not all alike rotate alike where they do: by RoPE of one base."""
    ropes = [part for part in parts if type(part) is RoPE]
    return len(ropes) == len(parts) and all(
        part.layout == ropes[0].layout and torch.equal(part.frequencies, ropes[0].frequencies)
        for part in ropes
    )


def _parts(layer: LayerEncoding) -> Sequence[LayerEncoding]:
    return getattr(layer, "parts", (layer,))


def _whole(model: Decoder) -> list[Any]:
    return [model.encoding.base, *model.encoding.modifiers.values()]


def _rotation(spec: EncodingSpec, part: LayerEncoding, train_length: int) -> dict[str, Any]:
    # Encodings that differ from layer to layer hold another encoding, or have the options of RoPE themselves.
    holders = [each for each in spec.parts if each.encoding_class is type(part)]
    options = {"train_length": train_length, "factor": 1.0, **(holders or [spec.base])[0].options}
    if options.get("fraction", 1.0) != 1 and not isinstance(part, PRoPE):
        raise UserError(f"{spec.label} rotates a part of each head, and no exported model can")
    if options["factor"] is None:
        raise UserError(
            f"{spec.label} has another factor in each window, and a checkpoint has one: train with "
            "encoding.factor=N"
        )
    base = options.get("base", 10_000.0)
    return {"rope_theta": base, **ROTATIONS[type(part)](options)}


def _yarn(options: Options) -> dict[str, Any]:
    if options["ramp"] == "turns":
        raise UserError("transformers has no yarn with ramp=turns: train with ramp=index or ramp=exact")
    given = {"attention_factor": options["attention_factor"]} if options["attention_factor"] else {}
    ends = {name: options[name] for name in ("beta_fast", "beta_slow")}
    return {**_stretched("yarn", options), **ends, **given, "truncate": options["ramp"] == "index"}


def _stretched(kind: str, options: Options) -> dict[str, Any]:
    return {
        "rope_type": kind,
        "factor": options["factor"],
        "original_max_position_embeddings": options["train_length"],
    }


def _llama3(options: Options) -> dict[str, Any]:
    ends = {
        "low_freq_factor": options["low_frequency_factor"],
        "high_freq_factor": options["high_frequency_factor"],
    }
    return {**_stretched("llama3", options), **ends}


def _longrope(options: Options) -> dict[str, Any]:
    pairs = options["d_head"] // 2
    return {
        **_stretched("longrope", options),
        "long_factor": options["long_factors"],
        "short_factor": options["short_factors"] or [1.0] * pairs,
        "attention_factor": longrope_attention_factor(options["factor"], options["train_length"]),
    }


def _ntk(options: Options) -> dict[str, Any]:
    width = options["d_head"]
    return {
        "rope_type": "default",
        "rope_theta": options["base"] * options["factor"] ** (width / (width - 2)),
    }


ROTATIONS: dict[type, Callable[[Options], dict[str, Any]]] = {
    RoPE: lambda options: {"rope_type": "default"},
    PRoPE: lambda options: {"rope_type": "proportional", "partial_rotary_factor": options["fraction"]},
    RopePI: lambda options: {"rope_type": "linear", "factor": options["factor"]},
    RopeNTK: _ntk,
    RopeDynamicNTK: lambda options: {"rope_type": "dynamic", "factor": options["factor"]},
    YaRN: _yarn,
    Llama3: _llama3,
    LongRoPE: _longrope,
}


def write_model(folder: Path, config: Config, model: Decoder, form: Form, end_of_text: int) -> float:
    """Write config.json and the weights, and return how far logits then are from ours, over the largest.

    Raise `RunError` where they are not equal.
    """
    with quiet() as transformers:
        settings = transformers.AutoConfig.for_model(**_settings(config, model, form, end_of_text))
        with torch.device("meta"):
            exported = transformers.AutoModelForCausalLM.from_config(settings)
        exported.to_empty(device="cpu")
        names = NAMES | (NORMS if config.model.qk_norm else {})
        width = config.model.d_head if form.is_interleaved else None
        exported.load_state_dict(_weights(model, names, width))
        exported.save_pretrained(folder)
        loaded = transformers.AutoModelForCausalLM.from_pretrained(folder, local_files_only=True).eval()
        difference = _difference(model, loaded, COMPARED_TIMES * config.train.length)
    if not difference <= MAX_DIFFERENCE:
        raise RunError(
            f"the exported model's logits differ from ours by {difference:.2g} of the largest, and "
            f"{MAX_DIFFERENCE:g} is allowed: this is a fault of pe-bench, and nothing was written"
        )
    return difference


def _settings(config: Config, model: Decoder, form: Form, end_of_text: int) -> dict[str, Any]:
    size, length = config.model, config.train.length
    rotation = form.rotation
    # Of a scaling the length that it reaches; a dynamic one begins at the training length.
    is_stretched = rotation is not None and "original_max_position_embeddings" in rotation
    longest = round(length * rotation["factor"]) if rotation is not None and is_stretched else length
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
        "max_position_embeddings": longest,
        "tie_word_embeddings": False,
        "bos_token_id": None,
        "eos_token_id": end_of_text,
        "pad_token_id": None,
    }
    if rotation is not None:
        settings["rope_parameters"] = rotation
    if size.qk_norm:
        settings.update(model_type="qwen3")
        if form.window is not None:
            settings.update(use_sliding_window=True, sliding_window=form.window, max_window_layers=0)
    elif all(form.rotates) and all(form.has_window):
        settings.update(model_type="mistral", sliding_window=form.window)
    elif all(form.rotates) and form.window is None:
        settings.update(model_type="llama")
    else:
        settings.update(
            model_type="smollm3",
            no_rope_layers=list(map(int, form.rotates)),
            layer_types=["sliding_attention" if has else "full_attention" for has in form.has_window],
            use_sliding_window=form.window is not None,
            sliding_window=form.window,
        )
    return settings


def _weights(model: Decoder, names: Mapping[str, str], interleaved_width: int | None) -> dict[str, Tensor]:
    """Return the weights by transformers' names; of interleaved pairs the second features come last."""
    found = {
        "model.embed_tokens.weight": model.embedding.weight * math.sqrt(model.embedding.embedding_dim),
        "model.norm.weight": model.norm.weight,
        "lm_head.weight": model.output_weight,
    }
    for number, block in enumerate(model.blocks):
        for ours, theirs in names.items():
            weight = block.get_parameter(f"{ours}.weight")
            if interleaved_width is not None and ours.startswith(("attention.query", "attention.key")):
                weight = weight.unflatten(0, (-1, interleaved_width // 2, 2)).transpose(1, 2).flatten(0, 2)
            found[f"model.layers.{number}.{theirs}.weight"] = weight
    return {name: weight.detach().clone() for name, weight in found.items()}


@torch.no_grad()
def _difference(model: Decoder, loaded: Any, length: int) -> float:
    tokens = torch.randint(model.vocab_size, (1, length), generator=torch.Generator().manual_seed(0))
    ids = model.encoding.ids(tokens, train=False, generator=None)
    ours = model.hidden(tokens, ids) @ model.output_weight.mT
    theirs = loaded(tokens, use_cache=False).logits
    return float((ours - theirs).abs().max() / ours.abs().max())
