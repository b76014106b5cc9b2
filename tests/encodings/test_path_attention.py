"""PaTH in chunks of keys is the product of reflections, one token after the other."""

import pytest
import torch

from pe_bench.encodings.content.path_attention import CHUNK, DIRECTION, STRENGTH, Path
from pe_bench.inspection.check.case import layer_inputs
from pe_bench.inspection.check.result import worst
from pe_bench.model.attention import project

torch.set_num_threads(1)  # tensors are small here, and tests run side by side

H, K, D = 4, 8, 32  # those of `layer_inputs`


def made() -> Path:
    torch.manual_seed(0)
    return Path(D, H, K, rank=5).double()


@torch.no_grad()
@pytest.mark.parametrize("tokens", [1, CHUNK, 2 * CHUNK + 3])
def test_chunks_of_keys_are_the_recursion_token_by_token(tokens: int) -> None:
    x, q, k, _ = layer_inputs(tokens)
    queries, keys = project(made(), x, q, k, torch.arange(tokens))
    w, beta = keys.values[DIRECTION].mT, keys.values[STRENGTH].unsqueeze(-1)
    reflected, rows = torch.empty(*k.shape[:2], 0, K, dtype=torch.float64), []
    for t in range(tokens):
        along = (reflected * w[:, :, t : t + 1]).sum(-1, keepdim=True)
        reflected = reflected - beta[:, :, t : t + 1] * along * w[:, :, t : t + 1]
        reflected = torch.cat([reflected, k[:, :, t : t + 1]], -2)
        rows.append((q[:, :, t : t + 1] @ reflected.mT * K**-0.5).squeeze(-2))
    scores = made().scores(queries, keys, K**-0.5)
    assert max(worst(scores[:, :, t, : t + 1], row) for t, row in enumerate(rows)) < 1e-11
