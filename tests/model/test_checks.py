"""A model that reads later tokens is refused before training and before scoring."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.cases import find_wrong
from support.commands import only_run

from pe_bench.data.tokenizer import ByteTokenizer
from pe_bench.model import checks
from pe_bench.model.checks import find_lookahead_in_text
from pe_bench.runs.rows import read_rows

HEAD = "import torch\nfrom pe_bench.encodings import LayerEncoding\n\n\nclass Leak(LayerEncoding):"
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
    (own / "leak.py").write_text(HEAD + code, encoding="utf-8")
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


@pytest.mark.parametrize(
    ("ahead", "code"),
    [
        ("(query >= 12).long()", 2),
        ("(0 if self.training else 1)", 2),
        # Past the training length alone: those lengths have no score.
        ("(1 if keys.index.numel() > 16 else 0)", 1),
        ("(query >= 16).long()", 1),
    ],
)
def test_a_leak_of_one_token_is_refused(train, folder: Path, ahead: str, code: int) -> None:
    write_leak(VISIBLE.format(ahead=ahead))
    outcome = train("--config-dir", "own", "encoding=leak")
    assert outcome.code == code and "reads later tokens" in outcome.line
    assert (folder / "results").exists() == (code == 1)
    rows = read_rows(only_run(folder) / "eval.csv") if code == 1 else []
    for row in rows:
        assert (row.status, row.bits_per_byte is None) == (
            ("failed", True) if row.length > 16 else ("ok", False)
        )
    assert {row.length > 16 for row in rows} == ({True, False} if code == 1 else set())


RARE = """
import torch
from pe_bench.encodings import PositionalEncoding


class Leak(PositionalEncoding):
    def embed(self, x, ids, tokens):
        is_later = (tokens == {token}).flip(-1).cumsum(-1).flip(-1) > 0
        return x + {strength} * is_later[..., None]
"""


@pytest.mark.parametrize("token", [ord("~"), 200, 256])
def test_reading_ahead_to_a_token_that_no_random_window_has_is_refused(
    train, folder: Path, token: int
) -> None:
    write_leak("\n    pass\n")
    Path("own/encoding/leak.py").write_text(RARE.format(token=token, strength="0.1"))
    outcome = train("--config-dir", "own", "encoding=leak", "train.length=64")
    assert outcome.code == 2 and "reads later tokens" in outcome.line
    assert not (folder / "results").exists()


def test_reading_ahead_to_a_rare_token_that_training_opens_is_refused_before_it_is_scored(
    train, folder: Path
) -> None:
    write_leak("\n    pass\n")
    made = "self.later = torch.nn.Parameter(torch.zeros(()))"
    code = RARE.format(token=ord("o"), strength="self.later")
    init = f"    def __init__(self):\n        super().__init__()\n        {made}\n\n    def embed"
    Path("own/encoding/leak.py").write_text(code.replace("    def embed", init))
    outcome = train("--config-dir", "own", "encoding=leak", "train.lr=0.05")
    assert outcome.code == 1 and "with its trained weights" in outcome.line
    assert not (only_run(folder) / "eval.csv").exists()


@pytest.mark.parametrize("together", [1, 3, 100])
@pytest.mark.parametrize("name", ["SeesTheNextToken", "ReadsTheDistanceToARareToken"])
def test_a_leak_is_found_in_windows_that_run_as_one_batch(
    monkeypatch: pytest.MonkeyPatch, name: str, together: int
) -> None:
    texts = torch.tensor(list(b"the cat sat on a mat, and then it ran away from them all, not us")).view(
        4, 16
    )
    monkeypatch.setattr(checks, "is_users_own", lambda encoding: False)
    monkeypatch.setattr(checks, "TOKENS_PER_BATCH", together * texts.shape[1])
    model = replace(find_wrong(name), vocabulary=ByteTokenizer().vocabulary).new_model()
    monkeypatch.setattr(checks, "MAX_SECOND_HALVES", 32)
    assert "outputs of tokens 0 to 7 of 16 of a text move by " in find_lookahead_in_text(model, texts)


@pytest.mark.parametrize(
    ("encoding", "option"), [("alibi", "n_heads=7"), ("rope", "d_head=14"), ("transformer_xl", "n_layers=1")]
)
def test_an_encoding_for_other_sizes_than_those_of_the_model_is_refused(
    train, folder: Path, encoding: str, option: str
) -> None:
    outcome = train(f"encoding={encoding}", f"encoding.{option}")
    told = f"the encoding does not fit the model (encoding.{option} for model."
    assert outcome.code == 2 and told in outcome.line
    assert not (folder / "results").exists()
