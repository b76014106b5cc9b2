r"""No positional encoding: z_ij = q_i . k_j / sqrt(K), under the causal mask and nothing else.

$z_{ij} = \frac{q_i \cdot k_j}{\sqrt{K}}, \quad j \le i$

Past the training length: defined; the entropy of attention grows with the number of keys.

Haviv et al. 2022, "Transformer Language Models without Positional Encodings Still Learn
Positional Information", arXiv:2203.16634; Kazemnejad et al. 2023, arXiv:2305.19466.
"""

from pe_bench.encodings.base import ROTARY_ENCODINGS, LayerEncoding


class NoPE(LayerEncoding):
    """Every hook neutral: order is known only from the causal mask."""

    paper = "arXiv:2305.19466"
    compatible_with = ROTARY_ENCODINGS  # the removal of DroPE, arXiv:2512.12167, before it is recalibrated
