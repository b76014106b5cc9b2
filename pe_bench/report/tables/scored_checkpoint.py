"""What a table says of a checkpoint that was trained elsewhere."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple


class ScoredCheckpoint(NamedTuple):
    """A checkpoint of other people's: who says its training length, and which layers have the encoding."""

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
                f"; the encoding is that of {found.layers} of {found.n_layers} layers, the others keep theirs"
            )
        if found.begin is not None:
            about += f"; each window begins with token {found.begin}, as its tokenizer has it"
        yield about
