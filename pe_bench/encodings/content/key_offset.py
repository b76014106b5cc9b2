r"""Partial key offset: the features of a key that know no position are those of the token before.

k'_j = k_j in the first floor(fraction K / 2) pairs of features, which are turned, and k_{j-1} in the others;
the first token keeps its own. A query that finds a token by its content so reads the one that follows, as an
induction head does, in one layer.

$k'_j = [\, k_{j,\, 0 \dots d-1} ;\; k_{j-1,\, d \dots K-1} \,], \quad d = 2 \lfloor \text{fraction} \cdot K /
2 \rfloor$

Past the training length: defined; one token is one token everywhere.

ClassicLarry 2025, modded-nanogpt#169 of https://github.com/KellerJordan, on top of RoPE that turns half of
the features; in marin-community/marin's issue 4802 too.

There only layers with a long window have the offset. Here all layers have it, and it acts before the
encoding turns the keys: an encoding that turns more features, as `rope` does, turns those of the token before
too, by the position of the key itself. `encoding=key_offset` is `partial_rope` with this modifier; both have
a fraction of a quarter by default, as there.
"""

import torch
from torch import Tensor

from pe_bench.encodings.base import LayerEncoding, Share, Side
from pe_bench.encodings.rotary.rope import pairs_within
from pe_bench.errors import require


class KeyOffset(LayerEncoding):
    """Options:

    fraction: share of the features, from the first on, that a key keeps: the features that the encoding turns
    """

    transforms_first = True

    def __init__(self, d_head: int, fraction: Share = 0.25):
        super().__init__()
        require(fraction < 1, f"fraction={fraction} leaves no feature to take from the token before")
        self.kept = 2 * pairs_within(d_head, fraction)

    def transform(self, queries: Side, keys: Side) -> tuple[Tensor, Tensor]:
        kept, rest = keys.x.tensor_split([self.kept], -1)
        before = torch.cat([rest[..., :1, :], rest[..., :-1, :]], -2)
        return queries.x, torch.cat([kept, before], -1)
