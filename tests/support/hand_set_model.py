"""A model whose weights are set by hand, and documents whose scores are known in advance.

A document alternates between two alphabets of eight letters, so that a letter says which alphabet comes
next. Each has a period: in a document that repeats, a letter is the one a period back. Head h of the model
reads alphabet h alone, exactly one period back, and nothing where that lies outside what it may see. Within
its alphabet the model therefore has one of three beliefs of the next letter, each of one NLL:

- it read the letter that comes: `HIT`;
- it read another one: `MISS`;
- it read none, and all eight are equally likely: `BLIND`.

Where an alphabet does not repeat, a letter is never the one a period back: were it drawn afresh, reading it
would be right once in eight times with and without the control `swap`, and a difference that is zero on
average alone is unclear on so few documents.
"""

import math
import random
import shutil
from collections.abc import Sequence
from pathlib import Path

import torch

from pe_bench.data.tokenizer import ByteTokenizer
from pe_bench.experiment import trusted
from pe_bench.model.decoder import Block, Decoder, build_decoder
from pe_bench.runs.folder import read_config
from pe_bench.training.checkpoint import latest_checkpoint, save_checkpoint
from pe_bench.training.optimizer import Optimizers

ALPHABETS = ("ABCDEFGH", "abcdefgh")
LETTERS = len(ALPHABETS[0])
STRENGTH = 8.0  # logits between the letter that was read and the other seven
IMPOSSIBLE = -40.0  # the logit of what does not come next: of the other alphabet, or no letter at all
D_MODEL = 2 * LETTERS * len(ALPHABETS)  # what a token is, and beside it what the heads have read

HIT = math.log1p((LETTERS - 1) * math.exp(-STRENGTH))
MISS = STRENGTH + HIT
BLIND = math.log(LETTERS)

CODE = '''
"""Head h reads the token `periods[h]` before the next one, alone; nothing where it may not see that one."""

import torch
from pe_bench.encodings import LayerEncoding


class Periods(LayerEncoding):
    family = "bias"
    claims = frozenset({"shift_invariant", "prefix_consistent"})

    def __init__(self, periods: list[int]):
        super().__init__()
        # The next token is one further than the query.
        self.register_buffer("distance", torch.tensor(periods) - 1, persistent=False)

    def distance_bias(self, distance):
        return torch.where(distance == self.distance[:, None], 1e4, -1e4)

    def weights(self, scores, visible):
        return scores.masked_fill(~visible, float("-inf")).sigmoid()  # exactly one or zero
'''
YAML = "name: periods\nclass: periods.py:Periods\nperiods: [16, 80]\n"


def write_encoding(folder: Path) -> Path:
    """Write a configuration folder with the encoding, whose code is encoding/periods.py."""
    (folder / "encoding").mkdir(parents=True)
    (folder / "encoding" / "periods.yaml").write_text(YAML)
    (folder / "encoding" / "periods.py").write_text(CODE)
    return folder


def document(drawn: random.Random, periods: Sequence[int], repeats: Sequence[bool], size: int) -> str:
    """Return letters of the two alphabets in turn. Without repetition, none equals the one a period back.

    The first period of each is random.
    """
    text: list[str] = []
    for place in range(size):
        which = place % len(ALPHABETS)
        back = place - periods[which]
        if back < 0:
            text.append(drawn.choice(ALPHABETS[which]))
        elif repeats[which]:
            text.append(text[back])
        else:
            text.append(drawn.choice(ALPHABETS[which].replace(text[back], "")))
    return "".join(text)


def write_documents(
    folder: Path, periods: Sequence[int], repeats: Sequence[bool], documents: int = 48, size: int = 3_000
) -> Path:
    assert all(period % len(ALPHABETS) == 0 for period in periods), (
        "otherwise, a head would read the other alphabet"
    )
    folder.mkdir()
    drawn = random.Random(0)
    for number in range(documents):
        (folder / f"{number:02}.txt").write_text(document(drawn, periods, repeats, size))
    return folder


def set_weights(run: Path, code: Path, strength: float = STRENGTH) -> None:
    """Replace the weights of the run's last step by those set by hand, and delete its scores."""
    model = build_decoder(trusted(read_config(run), [code]), ByteTokenizer().vocabulary)
    set_by_hand(model, strength)
    checkpoint = latest_checkpoint(run / "checkpoints")
    assert checkpoint is not None
    shutil.rmtree(checkpoint.path)
    shutil.rmtree(run / "scores")
    (run / "eval.csv").unlink()
    optimizer = Optimizers([torch.optim.AdamW(model.parameters())])
    about = (checkpoint.step, checkpoint.train_seconds, checkpoint.loss)
    save_checkpoint(checkpoint.path.parent, model, optimizer, *about)


@torch.no_grad()
def set_by_hand(model: Decoder, strength: float) -> None:
    """Let the last head read the last alphabet and another head, if there is one, the first.

    The first half of the model's width encodes the letter of a token, the second half the letter that was
    read. The norms see vectors of root mean square 1 and change nothing except for the letter read, which is
    accounted for.
    """
    [block] = model.blocks
    assert isinstance(block, Block) and model.head is not None
    for parameter in model.parameters():
        parameter.zero_()
    for norm in (block.attention_norm, block.feedforward_norm, model.norm):
        norm.weight.fill_(1.0)
    one_each, root = torch.eye(LETTERS), math.sqrt(D_MODEL)
    # After any letter come those of the other alphabet, equally likely until one of them was read.
    model.head.weight[:, : D_MODEL // 2] = IMPOSSIBLE / root
    for which, letters in enumerate(ALPHABETS):
        ids = torch.tensor([ord(letter) for letter in letters])
        is_letter = slice(which * LETTERS, (which + 1) * LETTERS)
        is_other = slice((1 - which) * LETTERS, (2 - which) * LETTERS)
        was_read = slice(D_MODEL // 2 + is_letter.start, D_MODEL // 2 + is_letter.stop)
        model.embedding.weight[ids, is_letter] = one_each
        model.head.weight[ids, is_other] = 0.0
        model.head.weight[ids, was_read] = strength * math.sqrt(1 + 1 / D_MODEL) * one_each
        head = D_MODEL // block.attention.d_head - len(ALPHABETS) + which
        if head >= 0:
            first = head * block.attention.d_head
            block.attention.value.weight[first : first + LETTERS, is_letter] = one_each / root
            block.attention.output.weight[was_read, first : first + LETTERS] = one_each
