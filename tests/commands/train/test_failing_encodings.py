"""Errors of a user's own encoding: before training, in training, and at one length of scoring."""

from pathlib import Path

import pytest
from support.commands import Command, only_run

from pe_bench.runs.rows import read_rows

HEAD = """import torch
from pe_bench.encodings import LayerEncoding, PositionalEncoding


class Mine(LayerEncoding):
    def __init__(self, n_heads: int, size: int = 16):
        super().__init__()
        self.table = torch.nn.Parameter(torch.zeros(n_heads, size))

"""
# A table of its own size, the commonest slip.
TABLE = """    def distance_bias(self, distance):
        return self.table[:, distance.long()]
"""
MENDED = TABLE.replace("distance.long()", "distance.long().clamp(max=15)")
IN_STEP = """    def distance_bias(self, distance):
        if torch.is_grad_enabled():
            raise KeyError('only here')
        return self.table[:, distance.long()]
"""
IN_BACKWARD = """    def distance_bias(self, distance):
        found = self.table[:, distance.long()]
        if found.requires_grad:
            found.register_hook(self.fail)
        return found

    def fail(self, gradient):
        raise KeyError('only here')
"""


@pytest.fixture
def file(folder: Path) -> Path:
    """The file of an encoding `mine`, which a test writes."""
    directory = folder / "mine" / "encoding"
    directory.mkdir(parents=True)
    (directory / "mine.yaml").write_text("name: mine\nclass: mine.py:Mine\nn_heads: ${model.n_heads}\n")
    return directory / "mine.py"


@pytest.fixture
def train_mine(train: Command, folder: Path) -> Command:
    return lambda *arguments: train("--config-dir", str(folder / "mine"), "encoding=mine", *arguments)


def line_of(file: Path, text: str) -> str:
    number = next(n for n, line in enumerate(file.read_text().splitlines(), 1) if text in line)
    return f"{file}:{number}"


def test_a_length_at_which_the_code_fails_is_a_row_with_its_line_and_the_others_go_on(
    train_mine, file, folder
):
    file.write_text(HEAD + TABLE)
    outcome = train_mine("eval.lengths=[16,24,32]", "eval.controls=all")
    where = line_of(file, "distance.long()")
    assert outcome.code == 1 and "Traceback" not in outcome.err
    assert f"could not be scored at 24, 32: {where}: IndexError: index 16 is out of bounds" in outcome.line
    assert "raise LengthError" in outcome.line
    run = only_run(folder)
    rows = read_rows(run / "eval.csv")
    found = {(row.control, row.length): row.status for row in rows}
    assert found.pop(("none", 16)) == "ok" and set(found.values()) == {"failed"}
    assert ("window", 32) in found and ("swap", 32) in found
    assert all(row.reason.startswith(where) for row in rows if row.status == "failed")
    assert (run / "result.json").exists(), "it is trained and scored as far as it can be"
    assert "failed: mine@" in outcome.out and where in "".join(outcome.out.split())


def test_the_same_weights_are_scored_with_the_mended_file_when_that_is_asked_for(
    train_mine, file, folder, evaluate
):
    file.write_text(HEAD + TABLE)
    assert train_mine().code == 1
    run = only_run(folder)
    outcome = evaluate("--code", str(file))
    assert outcome.code == 1 and "could not be scored at 32" in outcome.line, "it is tried again"
    file.write_text(HEAD + MENDED)
    outcome = evaluate("--code", str(file))
    assert outcome.code == 2 and "--force scores the weights under a changed mine.py" in outcome.line
    outcome = evaluate("--code", str(file), "--force")
    assert outcome.code == 0 and " (forced) " in outcome.out, outcome.err
    rows = read_rows(run / "eval.csv")
    own = [row for row in rows if row.scored_with == row.encoding]
    forced = [row for row in rows if row.scored_with != row.encoding]
    assert [(row.forced, row.status) for row in own] == [(False, "ok"), (False, "failed")]
    assert [(row.forced, row.status) for row in forced] == [(True, "ok")] * 2
    assert {row.encoding for row in rows} == {own[0].encoding}, "the weights are of one version"
    assert forced[0].nll == own[0].nll, "the two versions agree within the table"
    file.write_text(HEAD.replace("torch.zeros(n_heads, size)", "torch.zeros(n_heads, 2 * size)") + TABLE)
    outcome = evaluate("--code", str(file), "--force")
    assert outcome.code == 2 and "encoding" in outcome.line and "table" in outcome.line


@pytest.mark.parametrize(("hooks", "processes"), [(IN_BACKWARD, 1), (IN_STEP, 2)])
def test_an_error_in_training_is_one_line_with_its_place(train_mine, file, folder, hooks, processes):
    file.write_text(HEAD + hooks)
    outcome = train_mine(f"train.processes={processes}")
    assert outcome.code == 1 and "Traceback" not in outcome.err
    assert f"{line_of(file, 'raise')}: KeyError: 'only here'" in outcome.line
    assert "Traceback" in (only_run(folder) / "error.txt").read_text(), "who wants all of it finds it there"


def test_an_error_at_import_is_one_line_with_its_place(train_mine, file, folder):
    for code, message in [
        ("import torch\nfoo = 1 / 0\n", ":2: ZeroDivisionError: division by zero"),
        ("import nothing\n", ":1: ModuleNotFoundError: No module named 'nothing'"),
        ("import torch\n\nclass Mine(\n", ": SyntaxError: '(' was never closed (mine.py, line 3)"),
    ]:
        file.write_text(code)
        outcome = train_mine()
        assert outcome.code == 2 and f"{file}{message}" in outcome.line
    assert not (folder / "results").exists()
