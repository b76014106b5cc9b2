"""Initial values of parameters that several encodings share."""

import math

import torch
from torch import nn


def random_matrix(*shape: int) -> nn.Parameter:
    """Return weights [.., n] from N(0, 1/n), as those of all linear layers here."""
    return nn.Parameter(torch.randn(shape) / math.sqrt(shape[-1]))


def random_taps(*shape: int) -> nn.Parameter:
    """Return weights [.., taps] of a convolution, uniform within 1/sqrt(taps)."""
    within_one = 2 * torch.rand(shape) - 1
    return nn.Parameter(within_one / math.sqrt(shape[-1]))


def log_uniform_steps(*shape: int) -> nn.Parameter:
    """Return numbers whose softplus is log-uniform from 0.001 to 0.1, as in Mamba 2 (arXiv:2405.21060)."""
    smallest, largest = math.log(0.001), math.log(0.1)
    steps = torch.empty(shape).uniform_(smallest, largest).exp()
    return nn.Parameter(steps + torch.log(-torch.expm1(-steps)))
