"""The early-token curse (Press, Smith and Lewis, "Train Short, Test Long", 2022, appendix B).

Windows that do not overlap score their first tokens without context; a window that slides token by token
scores each with all the context that the length allows. The text here is words drawn independently, so that
a letter depends on those of its own word alone. To a model that has learnt it only the first targets of a
window are harder: what a window loses is the same at every length, and the gap between the two protocols,
that loss over the length, halves where the length doubles. All of the gain that windows without overlap
show with length is this gap.
"""

import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from pe_bench.cli import program
from pe_bench.runs.rows import Row, read_rows
from pe_bench.runs.scores import load_scores, score_file

LENGTHS = (8, 16, 32, 64)  # the last is that of training: an encoding's own limit plays no part
WORDS = ("at", "but", "cold", "drift", "either", "fathoms", "general", "horizons", "islands", "jumped")
WORDS += ("kettle", "later", "mast", "now", "over", "people", "quarter", "rest", "still", "told")
MEMORY = max(map(len, WORDS)) + 1  # so many tokens hold a space, and no token before it matters


@dataclass(frozen=True)
class Scored:
    """A row with the NLL of every target in nats, and each target's place in its document, from zero."""

    row: Row
    nll: np.ndarray
    place: np.ndarray


Protocol = Mapping[int, Scored]  # by length


def write_text(folder: Path) -> Path:
    folder.mkdir()
    drawn = random.Random(0)
    for number in range(30):
        (folder / f"{number:02}.txt").write_text(" ".join(drawn.choices(WORDS, k=700)))
    return folder


def run_command(*words: str) -> None:
    assert program.run(list(words)) == 0


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model trained on the text and scored under both protocols."""
    folder = tmp_path_factory.mktemp("words")
    run_command(
        *("train", "encoding=alibi", "data=files", f"data.path={write_text(folder / 'text')}", "threads=1"),
        *(f"results_dir={folder / 'results'}", f"cache_dir={folder / 'cache'}", "precision=float32"),
        *("model.d_model=32", "model.n_layers=2", "model.n_heads=4", "model.n_kv_heads=4", "model.d_ff=64"),
        *(f"train.length={max(LENGTHS)}", "train.batch_tokens=2048", "train.steps=200", "train.lr=0.01"),
        *("train.validation_tokens=64", f"eval.lengths={[*LENGTHS]}", f"eval.max_length={max(LENGTHS)}"),
        *("eval.protocol=nonoverlapping", "eval.tokens=1800"),
    )
    [made] = (folder / "results" / "runs").iterdir()
    words = ["--protocol", "sliding", "--stride", "1", "--threads", "1"]
    words += ["--results-dir", str(folder / "results"), "--cache-dir", str(folder / "cache")]
    run_command("eval", str(made), *words)
    return made


def read_scores(run: Path, protocol: str) -> Protocol:
    rows = [row for row in read_rows(run / "eval.csv") if row.protocol == protocol]
    return {row.length: _read(run, row) for row in rows}


def _read(run: Path, row: Row) -> Scored:
    path = score_file(run, row)
    scores = load_scores(path)
    counts = np.unique(scores.document, return_counts=True)[1]
    assert len(counts) > 1 and (np.diff(counts) == 0).all(), "documents of equal shares"
    return Scored(row, scores.nll.astype(np.float64), np.arange(len(scores.nll)) % counts[0])


@pytest.fixture(scope="module")
def cut(run: Path) -> Protocol:
    return read_scores(run, "nonoverlapping")


@pytest.fixture(scope="module")
def slid(run: Path) -> Protocol:
    return read_scores(run, "sliding")


def level(scored: Scored) -> float:
    """Return the nats per token from the row."""
    assert scored.row.nll is not None
    return scored.row.nll


def test_the_gap_between_the_protocols_halves_where_the_length_doubles(cut: Protocol, slid: Protocol) -> None:
    gap = {length: level(cut[length]) - level(slid[length]) for length in LENGTHS}
    assert gap[8] > 0.05
    for length in LENGTHS[:-1]:
        assert 1.5 < gap[length] / gap[2 * length] < 3, gap


def test_both_protocols_score_the_same_targets(cut: Protocol, slid: Protocol) -> None:
    assert tuple(cut) == tuple(slid) == LENGTHS
    rows = [scored.row for scored in (*cut.values(), *slid.values())]
    assert len({(row.target_hash, row.targets, row.documents) for row in rows}) == 1
    assert all((cut[8].place == scored.place).all() for scored in (*cut.values(), *slid.values()))


def test_scores_of_nonoverlapping_windows_improve_with_length_and_those_of_sliding_ones_do_not(
    cut: Protocol, slid: Protocol
) -> None:
    assert level(cut[8]) - level(cut[64]) > 0.05
    # Every target but a document's first ones sees a whole word at each of the lengths.
    levels = [level(slid[length]) for length in LENGTHS]
    assert max(levels) - min(levels) < 0.01


@pytest.mark.parametrize("length", [16, 32, 64])
def test_only_the_first_targets_of_a_window_lose(cut: Protocol, slid: Protocol, length: int) -> None:
    lost = cut[length].nll - slid[length].nll
    context = cut[length].place % length + 1  # tokens that the target of a window without overlap sees
    later = cut[length].place >= length  # else both protocols feed the same window
    assert lost[~later] == pytest.approx(0, abs=1e-4)
    assert lost[later & (context == 1)].mean() > 0.5
    assert abs(lost[later & (context > MEMORY)].mean()) < 0.01
