"""A model that reads later tokens is refused before training and before scoring."""

from pathlib import Path

import pytest
import torch
from support.commands import only_run

from pe_bench.runs.rows import read_rows

torch.set_num_threads(1)

HEAD = "import torch\nfrom pe_bench.encodings import LayerEncoding\n\n\n"


LEARNED = """
    def __init__(self):
        super().__init__()
        self.later = torch.nn.Parameter(torch.zeros(()))

    def mix(self, weights, v, queries, keys):
        return weights @ v + self.later * v.roll(-1, -2)[..., -weights.shape[-2] :, :]
"""


def write_leak(code: str) -> None:
    own = Path("own/encoding")
    own.mkdir(parents=True, exist_ok=True)
    (own / "leak.py").write_text(f"{HEAD}class Leak(LayerEncoding):\n{code}", encoding="utf-8")
    (own / "leak.yaml").write_text("name: leak\nclass: leak.py:Leak\n", encoding="utf-8")


def test_a_leak_that_training_opens_is_refused_before_it_is_scored(train, command, folder: Path) -> None:
    write_leak(LEARNED)
    arguments = ("--config-dir", "own", "encoding=leak", "train.lr=0.05")
    outcome = train(*arguments)
    assert outcome.code == 1
    assert "leak reads later tokens with its trained weights" in outcome.line
    run = only_run(folder)
    assert not (run / "eval.csv").exists() and not (run / "result.json").exists()
    assert train(*arguments).line == outcome.line, "nothing is trained again"
    assert "leak" not in command("report", "--results-dir", str(folder / "results")).out


VISIBLE = """
    def visible(self, queries, keys):
        query = queries.index.unsqueeze(-1)
        return keys.index <= query + {ahead}
"""
BEFORE_TRAINING = {
    "in the second half alone": VISIBLE.format(ahead="(query >= 12).long()"),
    "in scoring alone": VISIBLE.format(ahead="(0 if self.training else 1)"),
}
PAST_TRAINING = {
    "in longer windows": VISIBLE.format(ahead="(1 if keys.index.numel() > 16 else 0)"),
    "at later positions": VISIBLE.format(ahead="(query >= 16).long()"),
}


@pytest.mark.parametrize("where", BEFORE_TRAINING)
def test_a_leak_of_one_token_is_refused_before_training(train, folder: Path, where: str) -> None:
    write_leak(BEFORE_TRAINING[where])
    outcome = train("--config-dir", "own", "encoding=leak")
    assert outcome.code == 2 and "leak reads later tokens" in outcome.line
    assert not (folder / "results").exists()


@pytest.mark.parametrize("where", PAST_TRAINING)
def test_a_length_past_training_at_which_an_encoding_leaks_has_no_score(
    train, folder: Path, where: str
) -> None:
    write_leak(PAST_TRAINING[where])
    outcome = train("--config-dir", "own", "encoding=leak")
    assert outcome.code == 1 and "it reads later tokens" in outcome.line
    rows = read_rows(only_run(folder) / "eval.csv")
    assert {row.status for row in rows if row.length <= 16} == {"ok"}
    longer = [row for row in rows if row.length > 16]
    assert longer and {row.status for row in longer} == {"failed"}
    assert all(row.bits_per_byte is None for row in longer)
