"""Tests of encodings run on one thread: tensors are tiny here, and tests run side by side."""

import torch

torch.set_num_threads(1)
