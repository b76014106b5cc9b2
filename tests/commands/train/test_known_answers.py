"""Models whose scores are known in advance, from the training command to the report.

A document alternates between two alphabets of eight letters, so that a letter says which alphabet comes
next. Each has a period: in a document that repeats, a letter is the one a period back. Head h of the model
reads alphabet h alone, exactly one period back, or nothing if it may not see that far. So the model has one
of three beliefs about the next letter of an alphabet, each with one NLL:

- it read the letter that comes: `HIT`;
- it read another one: `MISS`;
- it read none, and all eight are equally likely: `BLIND`.

If an alphabet does not repeat, a letter is never the one a period back. If letters were independent, reading
it would be right one time in eight with and without the control `swap`, and a difference that is zero only on
average would be unclear on so few documents.
"""

import contextlib
import csv
import io
import math
import random
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import numpy as np
import pytest
import torch

from pe_bench.cli import program
from pe_bench.commands.job import trusted
from pe_bench.data.tokenizer import ByteTokenizer
from pe_bench.model.decoder import Decoder, build_decoder
from pe_bench.model.layers import Block
from pe_bench.runs.folder import read_config
from pe_bench.runs.scores import load_scores
from pe_bench.training.checkpoint import latest_checkpoint, read_log, save_checkpoint
from pe_bench.training.optimizer import Optimizer

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
    assert all(period % len(ALPHABETS) == 0 for period in periods), "a head would read the other alphabet"
    folder.mkdir()
    drawn = random.Random(0)
    for number in range(documents):
        (folder / f"{number:02}.txt").write_text(document(drawn, periods, repeats, size))
    return folder


def set_weights(run: Path, code: Path) -> None:
    """Replace the weights of the run's last step by those set by hand, and delete its scores."""
    model = build_decoder(trusted(read_config(run), [code]), ByteTokenizer().vocabulary)
    set_by_hand(model)
    checkpoint = latest_checkpoint(run / "checkpoints")
    assert checkpoint is not None
    shutil.rmtree(checkpoint.path)
    shutil.rmtree(run / "scores")
    (run / "eval.csv").unlink()
    last = read_log(run / "train.csv", checkpoint.step)[-1]
    save_checkpoint(checkpoint.path.parent, model, Optimizer([]), last)


@torch.no_grad()
def set_by_hand(model: Decoder) -> None:
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
        model.head.weight[ids, was_read] = STRENGTH * math.sqrt(1 + 1 / D_MODEL) * one_each
        head = D_MODEL // block.attention.d_head - len(ALPHABETS) + which
        if head >= 0:
            first = head * block.attention.d_head
            block.attention.value.weight[first : first + LETTERS, is_letter] = one_each / root
            block.attention.output.weight[was_read, first : first + LETTERS] = one_each


NEAR, INSIDE, FAR = 16, 24, 80
TRAIN_LENGTH, TARGET_TOKENS = 32, 4
# None of the targets sees so far back as FAR in the last length below, all do in the next one.
BELOW, ABOVE = FAR, FAR + TARGET_TOKENS
LENGTHS = (8, 16, 32, 64, BELOW, ABOVE, 96, 128)
CONTROLLED = [length for length in LENGTHS if length > TRAIN_LENGTH + TARGET_TOKENS]
BEYOND = [length for length in CONTROLLED if length >= ABOVE]

TRAINING = (
    f"encoding=periods data=files data.validation_fraction=0.5 threads=1 model.d_model={D_MODEL} "
    f"model.d_ff=8 model.n_layers=1 model.tie_embeddings=false train.steps=1 train.warmup_steps=0 "
    f"train.length={TRAIN_LENGTH} train.batch_tokens={TRAIN_LENGTH} train.validation_tokens=64 "
    f"eval.target_tokens={TARGET_TOKENS} eval.controls=none eval.targets=1 "
    f"eval.lengths=[{TRAIN_LENGTH}] eval.max_length={TRAIN_LENGTH}"
)
SCORED = f"--lengths {','.join(map(str, LENGTHS))} --max-length {max(LENGTHS)}"
SCORING = f"{SCORED} --controls all --targets 192 --threads 1"

Cells = dict[int, dict[str, str]]  # a row of the report's CSV for each length


class Bench:
    """Runs of hand-set models, scored by the commands at every length with all controls."""

    def __init__(self, folder: Path):
        self.folder, self.results = folder, folder / "results"
        self.code = folder / "own" / "encoding" / "periods.py"
        self.code.parent.mkdir(parents=True)
        self.code.with_suffix(".yaml").write_text(YAML)
        self.code.write_text(CODE)

    def score(self, periods: Sequence[int], *in_text: int, repeats: bool = True) -> Self:
        """Add a run on documents with periods of their own; repeats: whether the far alphabet does."""
        documents = write_documents(self.folder / "documents", in_text, (True, repeats))
        heads, where = len(periods), (f"results_dir={self.results}", f"cache_dir={self.folder / 'cache'}")
        model = (f"encoding.periods={[*periods]}", f"model.n_heads={heads}", f"model.n_kv_heads={heads}")
        folder = ("--config-dir", str(self.code.parents[1]))
        self.run("train", *folder, *TRAINING.split(), *model, f"data.path={documents}", *where)
        [run] = (self.results / "runs").glob("*")
        set_weights(run, self.code)
        where = ("--results-dir", str(self.results), "--cache-dir", str(self.folder / "cache"))
        self.run("eval", str(run), *SCORING.split(), "--code", str(self.code), *where)
        return self

    def cells(self) -> Cells:
        text = self.run("report", "--csv", "-", "--results-dir", str(self.results))
        records = [record for record in csv.DictReader(io.StringIO(text)) if record["anchor"] == "False"]
        return {int(record["length"]): record for record in records}

    def nll(self, length: int, control: str = "none") -> np.ndarray:
        """Return the NLLs of the only run's targets, in nats [blocks, TARGET_TOKENS]."""
        [path] = self.results.glob(f"runs/*/scores/paired-{length}-{control}-*")
        return load_scores(path).nll.reshape(-1, TARGET_TOKENS)

    @staticmethod
    def run(*arguments: str) -> str:
        """Return what a command prints."""
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            assert program.run(list(arguments)) == 0
        return printed.getvalue()


@pytest.fixture(scope="module")
def repeating(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench(tmp_path_factory.mktemp("repeating")).score((NEAR, FAR), NEAR, FAR)


@pytest.fixture(scope="module")
def unrepeating(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """The same model on documents whose bytes never equal those FAR before them."""
    return Bench(tmp_path_factory.mktemp("unrepeating")).score((NEAR, FAR), NEAR, FAR, repeats=False)


def answers(cells: Cells, question: str) -> dict[int, str]:
    return {length: cell[question] for length, cell in cells.items() if length in CONTROLLED}


def levels_of(nll: np.ndarray) -> list[float]:
    """Return the distinct NLLs, to three places, the smallest first."""
    return np.unique(nll.round(3)).tolist()


def bits(nats: float) -> float:
    return nats / math.log(2)


def test_a_model_that_reads_beyond_training_uses_context_where_the_text_repeats(repeating):
    cells = repeating.cells()
    uses = {length: "yes" if length in BEYOND else "no" for length in CONTROLLED}
    assert answers(cells, "uses_context") == answers(cells, "beats_window") == uses
    verdicts = {length: cells[length]["verdict"] for length in CONTROLLED}
    assert verdicts == {length: "improves" if length in BEYOND else "holds" for length in CONTROLLED}
    assert {int(cell["documents"]) for cell in cells.values()} == {24}


def test_the_same_model_uses_no_context_where_the_text_does_not_repeat(unrepeating):
    cells = unrepeating.cells()
    nothing = dict.fromkeys(CONTROLLED, "no")
    assert answers(cells, "uses_context") == answers(cells, "beats_window") == nothing
    verdicts = {length: cells[length]["verdict"] for length in CONTROLLED}
    assert verdicts == {length: "fails" if length in BEYOND else "holds" for length in CONTROLLED}
    # What it reads there is always wrong, and another document's byte is right by chance.
    assert all(float(cells[length]["swap_gain_high"]) < 0 for length in BEYOND)


def test_every_target_has_the_score_that_follows_from_the_bytes_it_reads(repeating, unrepeating):
    assert HIT < 0.005 and BLIND > 2
    blind, near, all_read = [BLIND], [HIT, BLIND], [HIT]
    wanted = {8: blind, 16: blind, 32: near, 64: near, BELOW: near, ABOVE: all_read, 128: all_read}
    for length, levels in wanted.items():
        assert levels_of(repeating.nll(length)) == pytest.approx(levels, abs=1e-3), length
    for length, levels in {BELOW: near, ABOVE: [HIT, MISS], 128: [HIT, MISS]}.items():
        assert levels_of(unrepeating.nll(length)) == pytest.approx(levels, abs=1e-3), "read and missed"
    # Of the four targets of a block two are of each alphabet: what is read is all that decides.
    assert all((np.abs(repeating.nll(BELOW) - HIT) < 1e-3).sum(1) == 2)
    cells = repeating.cells()
    change = float(cells[ABOVE]["bits_per_byte"]) - float(cells[TRAIN_LENGTH]["bits_per_byte"])
    assert change == pytest.approx(bits(HIT - BLIND) / 2, abs=1e-4)
    assert float(cells[ABOVE]["change"]) == pytest.approx(change, abs=1e-6)
    assert float(cells[BELOW]["change"]) == pytest.approx(0, abs=1e-6)
    assert float(cells[ABOVE]["window_gain"]) == pytest.approx(-change, abs=1e-4)


def test_swap_costs_exactly_what_the_model_reads(repeating):
    for length in CONTROLLED:
        own, swapped = repeating.nll(length), repeating.nll(length, "swap")
        if length not in BEYOND:
            assert swapped == pytest.approx(own, abs=1e-6)
            continue
        # Of each block's four targets the two of one alphabet read the near byte, which is not swapped.
        lost = swapped - own
        missed = np.abs(lost - (MISS - HIT)) < 1e-3
        assert (missed | (np.abs(lost) < 1e-3)).all()
        assert (missed.sum(1) <= 2).all()
        # Another document's byte is the same by chance once in eight times.
        assert missed.sum() / (lost.size / 2) == pytest.approx(1 - 1 / LETTERS, abs=0.06)
        gain = float(repeating.cells()[length]["swap_gain"])
        assert gain == pytest.approx(bits((MISS - HIT) * missed.mean()), abs=1e-3)


def test_the_window_takes_the_far_byte_away_and_leaves_the_near_one(repeating):
    for length in CONTROLLED:
        assert repeating.nll(length, "window") == pytest.approx(repeating.nll(TRAIN_LENGTH), abs=1e-6)


def test_a_model_that_gains_nothing_within_training_cannot_be_judged(tmp_path):
    bench = Bench(tmp_path).score((FAR,), NEAR, FAR)
    cells = bench.cells()
    assert bench.nll(TRAIN_LENGTH) == pytest.approx(BLIND, abs=1e-5)
    assert float(cells[ABOVE]["change"]) == pytest.approx(bits(HIT - BLIND) / 2, abs=1e-4), "it does use it"
    assert answers(cells, "uses_context") == dict.fromkeys(CONTROLLED, "")
    table = bench.run("report", "--details", "--results-dir", str(bench.results))
    reason = "cannot judge context use: the model does not improve from 8 to 32 tokens"
    assert reason in " ".join(table.split())


def test_a_model_that_reads_within_training_holds_and_uses_no_more(tmp_path):
    bench = Bench(tmp_path).score((NEAR, INSIDE), NEAR, INSIDE)
    cells = bench.cells()
    assert bench.nll(TRAIN_LENGTH) == pytest.approx(HIT, abs=1e-3)
    nothing = dict.fromkeys(CONTROLLED, "no")
    assert answers(cells, "verdict") == dict.fromkeys(CONTROLLED, "holds")
    assert answers(cells, "uses_context") == answers(cells, "beats_window") == nothing
    assert {cell["break_point"] for cell in cells.values()} == {f"none up to {max(LENGTHS)}"}
