r"""StreamingLLM: a query sees the first `sinks` tokens and the latest, `cache` in all, as if no more existed.

Scores are rotary, and positions are places in the cache. While it is not full, distances are true. Afterwards
those of the latest cache - sinks tokens are, the query's own among them, and sink j is at the distance
cache - 1 - j, because the query has the last place.

$z_{ij} = \frac{R_\delta\, q_i \cdot k_j}{\sqrt{K}}, \quad \delta = i - j \text{ where that is } <
\text{cache} - \text{sinks}, \text{ else } \min(i,\, \text{cache} - 1) - j \text{ for } j < \text{sinks}$

Past the training length: defined; neither the number of keys nor any distance grows beyond the cache's.

Xiao et al. 2024, "Efficient Streaming Language Models with Attention Sinks", ICLR, arXiv:2309.17453; as in
the authors' code, https://github.com/mit-han-lab/streaming-llm.

The code keeps keys from one token to the next; here a layer is given a whole text, which is the same
computation. Where ids jump, the kept tokens follow from indices, the latest tokens have the distances of
their ids, and a sink's place is its id less the first id.
"""

from dataclasses import dataclass

from torch import Tensor

from pe_bench.encodings.base import Natural, Side
from pe_bench.encodings.distance.effective_distance import EffectiveDistance
from pe_bench.encodings.masks.ranges import first_and_window_ranges
from pe_bench.errors import require


@dataclass(eq=False)
class Streaming(EffectiveDistance):
    """Options:

    cache: tokens that a query sees, the sinks and itself among them
    sinks: first tokens, which every query sees
    """

    cache: int
    sinks: Natural = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        sinks, cache = self.sinks, self.cache
        require(sinks < cache, f"encoding.sinks={sinks} must leave room in encoding.cache={cache}")
        self.keep_near(self.cache - self.sinks)

    def far_positions(self, q_position: Tensor, k_position: Tensor) -> tuple[Tensor, Tensor]:
        last_place = q_position.new_full(q_position.shape, self.cache - 1)
        return last_place, k_position - k_position[..., :1]

    def is_near(self, queries: Side, keys: Side) -> Tensor:
        is_early = queries.index < self.cache
        return self._is_latest(queries, keys) | is_early.unsqueeze(-1)

    def visible(self, queries: Side, keys: Side) -> Tensor:
        kept = self._is_latest(queries, keys) | (keys.index < self.sinks)
        return kept & (keys.index <= queries.index.unsqueeze(-1))

    def ranges(self, start: int, stop: int) -> list[range]:
        return first_and_window_ranges(self.sinks, self.near, start, stop)

    def _is_latest(self, queries: Side, keys: Side) -> Tensor:
        """Return the mask [Q, N] of the latest `near` keys of each query, and of keys after it."""
        return queries.index.unsqueeze(-1) - keys.index < self.near
