"""Notes of a table on checkpoints that were trained elsewhere."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple


class ScoredCheckpoint(NamedTuple):
    """A checkpoint that others trained: who says its training length, how many layers have the encoding."""

    model: str
    train_length: int
    train_length_from: str
    layers: int
    n_layers: int
    begin: int | None


def notes_on_checkpoints(checkpoints: Sequence[ScoredCheckpoint]) -> Iterator[str]:
    for found in dict.fromkeys(checkpoints):
        about = (
            f"{found.model}: trained at {found.train_length} tokens according to {found.train_length_from}"
        )
        if found.layers < found.n_layers:
            about += (
                f"; {found.layers} of {found.n_layers} layers have this encoding, the others keep their own"
            )
        if found.begin is not None:
            about += f"; each window begins with token {found.begin}, as its tokenizer has it"
        yield about
