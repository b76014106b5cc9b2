"""Training with the path that attention chooses has the same losses as with the reference, up to rounding.

Rounding errors grow from step to step. A third training measures how far: the reference again, from weights
that were changed by one part in ten million. `benchmarks/equal_losses.py` compares longer trainings.
"""

from unittest.mock import Mock, patch

import pytest
import torch

from pe_bench.config.compose import compose
from pe_bench.config.parse import parse_config
from pe_bench.inspection.speed import TrainingPass
from pe_bench.model import decoder
from pe_bench.model.attention import reference_attention

torch.set_num_threads(1)  # tensors are small here, and tests run side by side

STEPS = 12
ROUNDING = 1e-7
FACTOR = 10  # even when trainings differ by rounding alone, some drift apart ten times as far as others
FLOOR = 1e-6  # nats per token
SMALL = (
    *("model.d_model=32", "model.n_layers=2", "model.n_heads=2", "model.d_ff=48"),
    *("train.length=32", "train.batch_tokens=256", "train.warmup_steps=2"),
)


def losses(name: str, rounding: float = 0.0) -> torch.Tensor:
    config, generator = parse_config(compose((f"encoding={name}", *SMALL))), torch.Generator().manual_seed(0)
    trainer = TrainingPass(config, [], config.train.length, torch.device("cpu")).trainer
    with torch.no_grad():
        for weight in trainer.model.parameters() if rounding else ():
            weight.mul_(1 + rounding * torch.randn(weight.shape, generator=generator))
    return torch.tensor([trainer.step(number, 0.0).loss for number in range(STEPS)], dtype=torch.float64)


# One of each kind of path; `tests/model` holds all against the reference, gradients too.
@pytest.mark.parametrize("name", ["nope", "rope", "t5", "shaw", "fox", "irope", "sliding_window"])
def test_losses_equal_those_of_the_reference_up_to_rounding(name: str) -> None:
    chosen = losses(name)
    with patch.object(decoder, "attention", Mock(wraps=reference_attention)) as reference:
        exact, changed = losses(name), losses(name, ROUNDING)
    assert reference.called
    assert exact[-1] < exact[0] - 0.01
    assert (chosen - exact).abs().max() <= max(FLOOR, FACTOR * float((changed - exact).abs().max()))
