"""Models of other libraries, with pe-bench's widths, heads and layers, configured in each library's terms.

Letters: B batch, T tokens.
"""

import math
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from io import StringIO
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

TEXT = 2**18  # random tokens from which windows are drawn
LIBRARIES = tuple(name for name in ("x-transformers", "transformers") if find_spec(name.replace("-", "_")))
# The settings of x-transformers for the encodings that it shares with pe-bench.
X_TRANSFORMERS: dict[str, dict[str, Any]] = {
    "nope": {"attn_flash": True},
    "rope": {"attn_flash": True, "rotary_pos_emb": True},
    "alibi": {"attn_flash": True, "alibi_pos_bias": True},
    "t5": {"rel_pos_bias": True},  # x-transformers refuses flash attention for a learned bias
    "fox": {"attn_flash": True, "attn_data_dependent_alibi": True},
}


@dataclass(frozen=True)
class Size:
    d_model: int
    layers: int
    heads: int
    length: int
    batch_tokens: int
    vocabulary: int
    seed: int

    @property
    def d_ff(self) -> int:
        """8/3 of the width, rounded up to a multiple of 8, as in the models that pe-bench ships."""
        return 8 * math.ceil(self.d_model / 3)

    @property
    def batch(self) -> int:
        return self.batch_tokens // self.length

    @property
    def overrides(self) -> list[str]:
        """These sizes as overrides for pe-bench."""
        model = {"d_model": self.d_model, "n_layers": self.layers, "n_heads": self.heads, "d_ff": self.d_ff}
        train = {"length": self.length, "batch_tokens": self.batch_tokens}
        return [
            *(f"model.{key}={value}" for key, value in model.items()),
            *(f"train.{key}={value}" for key, value in train.items()),
            f"seed={self.seed}",
        ]

    @cached_property
    def text(self) -> np.ndarray:
        dtype = np.min_scalar_type(self.vocabulary)
        return np.random.default_rng(self.seed).integers(self.vocabulary, size=TEXT).astype(dtype)

    def windows(self) -> Tensor:
        """Return a batch of random crops [B, T], each one token longer than `length`."""
        starts = torch.randint(len(self.text) - self.length, (self.batch,)).tolist()
        crops = [self.text[start : start + self.length + 1].astype(np.int64) for start in starts]
        return torch.from_numpy(np.stack(crops))


def x_transformers(encoding: str, size: Size) -> nn.Module:
    """Return a decoder with RMSNorm, SwiGLU, no biases and tied embeddings: windows [B, T] to a loss."""
    from x_transformers import (  # pyright: ignore[reportMissingImports]
        AutoregressiveWrapper,
        Decoder,
        TransformerWrapper,
    )

    torch.manual_seed(size.seed)
    layers = Decoder(
        dim=size.d_model,
        depth=size.layers,
        heads=size.heads,
        attn_dim_head=size.d_model // size.heads,
        use_rmsnorm=True,
        ff_glu=True,
        ff_swish=True,
        ff_no_bias=True,
        ff_mult=size.d_ff / size.d_model,
        rotary_emb_dim=size.d_model // size.heads,
        verbose=False,
        **X_TRANSFORMERS[encoding],
    )
    model = TransformerWrapper(
        num_tokens=size.vocabulary,
        max_seq_len=size.length,
        attn_layers=layers,
        tie_embedding=True,
        use_abs_pos_emb=False,
    )
    return AutoregressiveWrapper(model)


def nanogpt(checkout: Path, size: Size) -> nn.Module:
    """Return the GPT of nanoGPT's model.py, with dropout and biases as in its train.py."""
    source = _module(checkout / "model.py")
    torch.manual_seed(size.seed)
    with redirect_stdout(StringIO()):
        return source.GPT(
            source.GPTConfig(
                block_size=size.length,
                vocab_size=size.vocabulary,
                n_layer=size.layers,
                n_head=size.heads,
                n_embd=size.d_model,
                dropout=0.0,
                bias=False,
            )
        )


def bloom(size: Size) -> nn.Module:
    """Return a model of transformers with ALiBi."""
    from transformers import BloomConfig, BloomForCausalLM

    torch.manual_seed(size.seed)
    config = BloomConfig(
        vocab_size=size.vocabulary,
        hidden_size=size.d_model,
        n_layer=size.layers,
        n_head=size.heads,
        use_cache=False,
    )
    return BloomForCausalLM(config)


def llama(size: Size) -> nn.Module:
    """Return a model of transformers with RoPE, on PyTorch's fused attention, which is the default."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(size.seed)
    config = LlamaConfig(
        vocab_size=size.vocabulary,
        hidden_size=size.d_model,
        intermediate_size=size.d_ff,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        max_position_embeddings=size.length,
        tie_word_embeddings=True,
        use_cache=False,
    )
    return LlamaForCausalLM(config)


def how_to_get(*libraries: str) -> list[str]:
    """Return a line for each library that is not installed."""
    return [
        f"{name} was left out: pip install {name}, in a separate environment with pe-bench and the same torch"
        for name in libraries
        if name not in LIBRARIES
    ]


def parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def _module(path: Path) -> ModuleType:
    specification = spec_from_file_location("nanogpt_model", path)
    assert specification is not None and specification.loader is not None
    module = module_from_spec(specification)
    specification.loader.exec_module(module)
    return module
