r"""Retention: no softmax; each head has a state that decays by a fixed factor, and reads it.

S <- (1 - 2^(-5-h)) S + k_t v_t^T, and the token reads S^T q_t / sqrt(K), divided by its root mean square.
It has no parameters, and says what a fixed decay alone does.

$S_t = \gamma_h S_{t-1} + k_t v_t^\top, \quad o_t = S_t^\top q_t, \quad \gamma_h = 1 - 2^{-5-h}$

Past the training length: defined; a head's state forgets half within 22 2^h tokens, whatever the text is.

Sun et al. 2023, "Retentive Network: A Successor to Transformer for Large Language Models",
arXiv:2307.08621.

The paper also rotates queries and keys, and gates the output: neither is here, so that the decay is alone.
"""

import torch
from torch import Tensor

from pe_bench.encodings.recurrent.recurrence import RecurrenceInputs, Recurrent, rms_normed

FASTEST = 5.0  # the first head's decay is 1 - 2^-5


class Retention(Recurrent):
    per_layer = False

    def recurrence_inputs(self, x: Tensor, q: Tensor, k: Tensor, v: Tensor) -> RecurrenceInputs:
        heads = torch.arange(q.shape[1], dtype=q.dtype, device=q.device)
        log_decay = torch.log1p(-torch.exp2(-FASTEST - heads))
        log_decays = log_decay[:, None, None].expand(*q.shape[:3], 1)
        return RecurrenceInputs(q * q.shape[-1] ** -0.5, k, v, log_decays)

    def output(self, x: Tensor, read: Tensor) -> Tensor:
        return rms_normed(read)
