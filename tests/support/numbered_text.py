"""Documents whose tokens encode their place: token i of document d is 1000 d + i."""

import numpy as np

from pe_bench.data.packed import Data, Split
from pe_bench.scoring.protocols import Plan, batches, inputs, targets
from pe_bench.scoring.targets import ScoredText, TargetBlocks, target_blocks

LENGTHS = (61, 40, 83, 57, 3)  # of the documents


def bytes_of(document: int, place: int) -> int:
    return 1 + (place * 7 + document) % 4


def split_of(*lengths: int) -> Split:
    """Return a split in which token i of document d is 1000 d + i, so that a token encodes its place."""
    tokens = [np.arange(length, dtype=np.uint16) + 1_000 * d for d, length in enumerate(lengths)]
    ends = [np.cumsum([bytes_of(d, place) for place in range(n)]) for d, n in enumerate(lengths)]
    starts = np.cumsum([0, *lengths], dtype=np.int64)
    byte_ends = np.concatenate(ends).astype(np.uint32)
    return Split(np.concatenate(tokens), starts, byte_ends)


SPLIT = split_of(*LENGTHS)
DATA = Data("files", "da7a", "bytes", ("a", "b"), 1, SPLIT, SPLIT)
CUTS = {2: 83, 0: 50, 3: 57}  # document 0 is not scored to its end
TEXT = ScoredText([*CUTS.items()])


def blocks_of(max_length: int = 32, target_tokens: int = 4, count: int = 9) -> TargetBlocks:
    return target_blocks(SPLIT, max_length, target_tokens, count, seed=0, data_hash="da7a")


def contexts(plan: Plan, batch_tokens: int = 64) -> list[tuple[int, int]]:
    """Return (target, how many tokens it sees) for everything that is fed and scored, in order."""
    found = []
    for batch in batches(plan.windows, batch_tokens):
        fed, scored = inputs(SPLIT, batch), targets(SPLIT, batch)
        assert fed.shape == (len(batch), batch[0].size)
        for window, row, wanted in zip(batch, fed.tolist(), scored.tolist(), strict=True):
            for number, target in enumerate(wanted):
                seen = row[: window.first + number + 1]  # what a causal model knows at this output
                assert seen == list(range(target - len(seen), target)), "the tokens right before the target"
                assert seen[0] // 1_000 == target // 1_000, "a window stays in its document"
                found.append((target, len(seen)))
    return found
