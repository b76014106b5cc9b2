"""`probe hf:... --task`: a checkpoint's answers to prompts."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from support.checkpoints import write_checkpoint
from support.commands import Command, Outcome

import pe_bench
from pe_bench.checkpoints.model import CheckpointModel
from pe_bench.errors import UserError
from pe_bench.runs.rows import Row, read_rows
from pe_bench.runs.scores import load_scores, score_file

LENGTH = 800


@pytest.fixture
def probe(tmp_path: Path, command: Command) -> Callable[..., Outcome]:
    """Return a function that probes a random Llama with prompts."""
    write_checkpoint(tmp_path / "llama", "llama", max_position_embeddings=LENGTH)

    def run(*arguments: str) -> Outcome:
        return command(
            *("probe", f"hf:{tmp_path / 'llama'}", "threads=1", f"cache_dir={tmp_path / 'cache'}"),
            *("--windows", "3", "--results-dir", str(tmp_path / "results"), *arguments),
        )

    return run


def rows_in(folder: Path) -> dict[str, list[Row]]:
    runs = (folder / "results" / "runs").iterdir()
    return {rows[0].data: rows for rows in (read_rows(run / "eval.csv") for run in runs)}


def test_a_random_checkpoint_answers_nothing(tmp_path: Path, probe: Callable[..., Outcome]) -> None:
    done = probe("--task", "niah_multikey_3,vt,fwe", "--lengths", "800,900")
    assert done.code == 0, done.err
    found = rows_in(tmp_path)
    assert set(found) == {"niah_multikey_3", "vt", "fwe"}
    for rows in found.values():
        assert [(row.length, row.exact, row.accuracy, row.documents) for row in rows] == [
            (800, 0.0, 0.0, 3),
            (900, 0.0, 0.0, 3),
        ]
    assert all(f"task {name}" in done.out for name in found)


def test_an_answer_is_right_if_all_of_its_tokens_are(
    tmp_path: Path, probe: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    nll = CheckpointModel.nll
    given: list[torch.Tensor] = []

    def remember(self: CheckpointModel, hidden_ND: torch.Tensor, targets_N: torch.Tensor) -> torch.Tensor:
        given.append(targets_N.clone())
        return nll(self, hidden_ND, targets_N)

    def answer(self: CheckpointModel, hidden_ND: torch.Tensor) -> torch.Tensor:
        found = given[-1].clone()
        if len(given) == 1:
            found[8] += 1  # of the second of five words, each a space and five letters
        return found

    monkeypatch.setattr(CheckpointModel, "nll", remember)
    monkeypatch.setattr(CheckpointModel, "likeliest", answer)
    done = probe("--task", "vt", "--lengths", str(LENGTH))
    assert done.code == 0, done.err
    [row] = rows_in(tmp_path)["vt"]
    assert row.exact == pytest.approx(2 / 3)
    assert row.accuracy == pytest.approx((4 / 5 + 1 + 1) / 3)
    scores = load_scores(score_file(tmp_path / "results" / "runs" / row.run, row))
    assert scores.correct is not None
    assert np.flatnonzero(scores.correct == 0).tolist() == [*range(6, 12)]


def test_prompts_are_scored_under_other_encodings_and_at_more_lengths_later(
    tmp_path: Path, probe: Callable[..., Outcome], command: Command
) -> None:
    done = probe("--task", "vt", "--lengths", "900", "--with", "yarn factor=4")
    assert done.code == 0, done.err
    [first] = [row for row in rows_in(tmp_path)["vt"] if row.scored_with == "rope"]
    assert first.length == 900  # the training length was not asked for
    later = ("eval", first.run, "--lengths", "850", "--results-dir", str(tmp_path / "results"))
    assert command(*later).code == 0
    found = {(row.scored_with, row.length) for row in rows_in(tmp_path)["vt"]}
    assert found == {("rope", 850), ("rope", 900), ("rope", LENGTH), ("yarn factor=4.0", 900)}


def test_python_gets_the_rows_of_the_command(tmp_path: Path, probe: Callable[..., Outcome]) -> None:
    done = probe("--task", "fwe", "--lengths", "800")
    name = f"hf:{tmp_path / 'llama'}"
    run = pe_bench.probe(name, 800, task="fwe", windows=3, threads=1, results_dir=tmp_path / "results")
    assert [(row.exact, row.length, row.data) for row in run.scored] == [(0.0, 800, "fwe")]
    assert str(run).splitlines()[:4] == done.out.splitlines()[:4]
    with pytest.raises(UserError, match="task is for a checkpoint"):
        pe_bench.probe("rope", 800, task="fwe", results_dir=tmp_path / "results")
    with pytest.raises(UserError, match="depths=3 has no effect on prompts"):
        pe_bench.probe(name, 800, task="fwe", depths=3, results_dir=tmp_path / "results")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--task", "niah"), "unknown --task 'niah'"),
        (("--task", "vt", "--depths", "3"), "depths=3 has no effect on prompts"),
        (("--task", "vt", "--plot", "a.png"), "--plot draws scores by depth"),
        (("--task", "vt", "data=files"), "data=files has no effect with --task"),
        (("--task", "niah_multikey_3,vt", "--lengths", "500"), "of vt has"),
    ],
)
def test_what_cannot_be_is_refused_and_nothing_is_written(
    tmp_path: Path, probe: Callable[..., Outcome], arguments: tuple[str, ...], message: str
) -> None:
    done = probe(*arguments)
    assert done.code == 2
    assert message in done.line
    assert not (tmp_path / "results").exists()


def test_prompts_are_for_checkpoints_alone(tmp_path: Path, command: Command) -> None:
    done = command("probe", "rope", "--task", "vt", "--results-dir", str(tmp_path))
    assert done.code == 2
    assert "--task is for a checkpoint (hf:FOLDER)" in done.line
