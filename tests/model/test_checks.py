"""What is refused before a model is trained or scored: no finite numbers, and later tokens."""

from pathlib import Path

import pytest
import torch
from support.commands import only_run

from pe_bench.encodings import LayerEncoding
from pe_bench.encodings.base import Layers
from pe_bench.encodings.compose import Composition
from pe_bench.errors import UserError
from pe_bench.inspection.resolve import resolve
from pe_bench.model.checks import dry_run_training
from pe_bench.model.decoder import Decoder
from pe_bench.runs.rows import read_rows

SIZES = ("model.d_model=16", "model.n_layers=2", "model.n_heads=2", "model.d_ff=24", "train.length=32")


class Overflowing(LayerEncoding):
    """An encoding that returns finite queries and keys, whose products are not."""

    def transform(self, queries, keys):
        return 1e30 * queries.x, 1e30 * keys.x


def test_values_that_are_not_finite_are_the_encodings():
    config = resolve(["nope", *SIZES])[0].config
    encoding = Composition(Layers([Overflowing()]), {}, 2)
    model = Decoder(config.model, 7, encoding, torch.Generator().manual_seed(0))
    with pytest.raises(UserError, match="not finite in a window of 32 tokens: try `pe-bench check mine`"):
        dry_run_training(model, 32, "mine")


# A model that reads later tokens is refused before training and before scoring


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


@pytest.mark.parametrize("ahead", ["(query >= 12).long()", "(0 if self.training else 1)"])
def test_a_leak_of_one_token_is_refused_before_training(train, folder: Path, ahead: str) -> None:
    write_leak(VISIBLE.format(ahead=ahead))
    outcome = train("--config-dir", "own", "encoding=leak")
    assert outcome.code == 2 and "leak reads later tokens" in outcome.line
    assert not (folder / "results").exists()


@pytest.mark.parametrize("ahead", ["(1 if keys.index.numel() > 16 else 0)", "(query >= 16).long()"])
def test_a_length_past_training_at_which_an_encoding_leaks_has_no_score(
    train, folder: Path, ahead: str
) -> None:
    write_leak(VISIBLE.format(ahead=ahead))
    outcome = train("--config-dir", "own", "encoding=leak")
    assert outcome.code == 1 and "it reads later tokens" in outcome.line
    rows = read_rows(only_run(folder) / "eval.csv")
    assert {(row.length > 16, row.status) for row in rows} == {(False, "ok"), (True, "failed")}
    assert all(row.bits_per_byte is None for row in rows if row.length > 16)
