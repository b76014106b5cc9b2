"""Tests of the model run on one thread: tensors are small here, and tests run side by side."""

import torch

torch.set_num_threads(1)
