"""Tiny random Hugging Face models of other people's architectures, in a folder."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from pe_bench.data.tokenizer import write_byte_tokenizer
from pe_bench.hf.library import quiet
from pe_bench.hf.opened import Opened, open_hf_model, train_length_of
from pe_bench.hf.source import Source, load_config, read_source

VOCABULARY, TRAIN_LENGTH, WINDOW = 257, 32, 16
# At transformers' own initialisation a rotation that is dropped hardly moves the logits.
SHARPENED = ("q_proj", "k_proj", "query_key_value", "c_attn")
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": TRAIN_LENGTH,
}
# Each query head has keys of its own, of a width that follows from other sizes.
OWN_HEADS = {name: size for name, size in SIZES.items() if name != "head_dim"} | {"num_key_value_heads": 4}
WINDOWED = SIZES | {"sliding_window": WINDOW}
GPT2 = {"vocab_size": VOCABULARY, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
YARN = {"rope_type": "yarn", "rope_theta": 150_000.0, "factor": 4.0, "original_max_position_embeddings": 32}
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "llama": SIZES,
    "mistral": WINDOWED,
    "qwen2": SIZES,
    "qwen3": SIZES,
    "smollm3": SIZES,
    "gemma2": WINDOWED,
    "gemma3_text": WINDOWED | {"num_hidden_layers": 6},
    "gpt_neox": SIZES,
    "olmo2": SIZES,
    "phi": SIZES,
    "gpt_oss": WINDOWED
    | {"num_local_experts": 4, "num_experts_per_tok": 2, "rope_parameters": YARN | {"truncate": False}},
    "gpt2": GPT2,
    "bloom": {"vocab_size": VOCABULARY, "hidden_size": 32, "n_layer": 2, "n_head": 4},
    "mamba": {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 4},
    "falcon": {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4},
    "deepseek_v3": SIZES
    | {"q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8}
    | {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1}
    | {"moe_intermediate_size": 16, "num_key_value_heads": 4},
    "falcon_h1": SIZES
    | {"mamba_d_ssm": 64, "mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 16, "mamba_chunk_size": 16},
    "gptj": GPT2 | {"rotary_dim": 8},
    "mpt": {"vocab_size": VOCABULARY, "d_model": 32, "n_layers": 2, "n_heads": 4, "max_seq_len": 64},
    "opt": SIZES | {"ffn_dim": 48, "word_embed_proj_dim": 32, "max_position_embeddings": 64},
    "cohere2": WINDOWED,
    "gemma4_text": WINDOWED
    | {"num_hidden_layers": 6, "global_head_dim": 16, "num_global_key_value_heads": 2}
    | {"vocab_size_per_layer_input": VOCABULARY, "hidden_size_per_layer_input": 8, "num_kv_shared_layers": 0},
    "llama4_text": SIZES | {"intermediate_size_mlp": 48, "num_local_experts": 2, "attention_chunk_size": 16},
    "xglm": {"vocab_size": VOCABULARY, "d_model": 32, "ffn_dim": 48, "num_layers": 2, "attention_heads": 4}
    | {"max_position_embeddings": 64},
    "lfm2": SIZES | {"layer_types": ["conv", "full_attention", "conv", "full_attention"]},
    "qwen3_next": SIZES
    | {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8}
    | {"linear_value_head_dim": 8, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
    | {"shared_expert_intermediate_size": 16},
    "kimi_linear": OWN_HEADS
    | {"kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8}
    | {"linear_head_dim": 8, "linear_num_heads": 4, "moe_intermediate_size": 16, "num_local_experts": 4}
    | {"num_experts_per_tok": 2, "mlp_layer_types": ["dense", *["sparse"] * 3]}
    | {"layer_types": [*["linear_attention"] * 3, "full_attention"]},
    "olmo_hybrid": OWN_HEADS | {"rope_parameters": {"rope_type": "default", "rope_theta": 500_000.0}},
    "minimax": SIZES | {"num_local_experts": 2, "block_size": 16},
    "granitemoehybrid": SIZES
    | {"mamba_n_heads": 8, "mamba_d_state": 8, "mamba_d_head": 8, "mamba_n_groups": 1, "mamba_chunk_size": 16}
    | {"num_local_experts": 2, "num_experts_per_tok": 1, "shared_intermediate_size": 16}
    | {"layer_types": ["mamba", "attention", "mamba", "attention"]},
    "bamba": SIZES
    | {"attn_layer_indices": [2], "mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 8}
    | {"mamba_chunk_size": 16},
    "bert": SIZES | {"max_position_embeddings": 512},
}


def write_hf_model(folder: Path, architecture: str, seed: int = 0, **changes: Any) -> Path:
    """Write a random model with a byte tokenizer, and return its folder."""
    with quiet() as transformers:
        config = transformers.AutoConfig.for_model(architecture, **ARCHITECTURES[architecture] | changes)
        for name in ("pad_token_id", "bos_token_id", "eos_token_id"):
            setattr(config, name, None)
        torch.manual_seed(seed)
        model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if any(part in name for part in SHARPENED) and parameter.dim() == 2:
                    parameter.mul_(8)
        model.save_pretrained(folder)
    write_byte_tokenizer(folder)
    return folder


def opened(
    folder: Path,
    *,
    plain: bool = False,
    begin: Sequence[int] = (),
    is_checked: bool = False,
    train_length: int | None = None,
    dtype: torch.dtype = torch.float32,
) -> Opened:
    """Open a Hugging Face model. train_length: by default, the length that its configuration says."""
    source = read_source(f"hf:{folder}") if is_checked else Source(f"hf:{folder}", folder)
    config = load_config(source)
    found = train_length_of(config)
    length = train_length or (found[0] if found else TRAIN_LENGTH)
    return open_hf_model(source, config, length, begin, dtype, plain=plain)


def edit_json(path: Path, **changes: Any) -> None:
    values = json.loads(path.read_text())
    path.write_text(json.dumps(values | changes))
