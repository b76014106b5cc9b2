"""`probe hf:...`: needles of a checkpoint are like those of a run."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.checkpoints import VOCABULARY, opened, write_checkpoint
from support.commands import Command, Outcome, write_corpus

import pe_bench
from pe_bench.checkpoints.source import quiet
from pe_bench.errors import UserError
from pe_bench.runs.rows import Row, read_rows
from pe_bench.scoring.needles import ANSWER, CHOICES, nll_of_choices

SMALL = ("--lengths", "128", "--depths", "2", "--windows", "6")


@pytest.fixture
def probe(tmp_path: Path, command: Command) -> Callable[..., Outcome]:
    """Return a function that probes a random Llama on a tiny corpus."""
    write_checkpoint(tmp_path / "llama", "llama")
    write_corpus(tmp_path / "corpus")

    def run(*arguments: str) -> Outcome:
        return command(
            *("probe", f"hf:{tmp_path / 'llama'}", "data=files", f"data.path={tmp_path / 'corpus'}"),
            *(f"cache_dir={tmp_path / 'cache'}", "threads=1", "--results-dir", str(tmp_path / "results")),
            *arguments,
        )

    return run


def rows_in(folder: Path) -> list[Row]:
    [run] = (folder / "results" / "runs").iterdir()
    return read_rows(run / "eval.csv")


def test_a_checkpoint_is_probed_and_the_call_from_python_is_the_same(
    tmp_path: Path, probe: Callable[..., Outcome], command: Command
) -> None:
    done = probe(*SMALL, "--with", "yarn factor=4")
    assert done.code == 0, done.err
    rows = rows_in(tmp_path)
    assert {(row.protocol, row.length, row.encoding, row.status) for row in rows} == {
        ("probe", 128, "rope", "ok")
    }
    assert {row.scored_with for row in rows} == {"rope", "yarn factor=4.0"}
    assert all(row.accuracy is not None and row.accuracy < 0.7 for row in rows), "its weights are random"
    options: dict[str, Any] = {"cache_dir": tmp_path / "cache", "threads": 1}
    again = pe_bench.probe(
        f"hf:{tmp_path / 'llama'}",
        128,
        "yarn factor=4",
        depths=2,
        windows=6,
        results_dir=tmp_path / "results",
        overrides=["data=files", f"data.path={tmp_path / 'corpus'}"],
        **options,
    )
    assert rows_in(tmp_path) == rows, "nothing was scored again"
    assert done.out.startswith(str(again).rstrip("\n"))
    shown = command("report", "--probe", "--results-dir", str(tmp_path / "results"))
    assert shown.code == 0 and "rope -> yarn factor=4.0" in shown.out
    said = "these runs were only probed and have no levels: say pe-bench report --probe"
    assert said in command("report", "--results-dir", str(tmp_path / "results")).line
    with pytest.raises(UserError, match=said):
        pe_bench.results(tmp_path / "results")


def test_the_scores_of_endings_are_those_of_transformers(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "llama", "llama")
    model = opened(tmp_path / "llama").model
    tokens_BCT = torch.randint(VOCABULARY, (2, CHOICES, 41), generator=torch.Generator().manual_seed(0))
    tokens_BCT[:, :, : 41 - ANSWER] = tokens_BCT[:, :1, : 41 - ANSWER]
    with torch.no_grad(), quiet() as transformers:
        found = nll_of_choices(model, tokens_BCT, torch.Generator())
        own = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "llama").eval()
        logits = own(input_ids=tokens_BCT.flatten(0, 1)[:, :-1]).logits[:, -ANSWER:].log_softmax(-1)
    answers = tokens_BCT.flatten(0, 1)[:, -ANSWER:, None]
    expected = -logits.gather(-1, answers)[..., 0].reshape(2, CHOICES, ANSWER)
    assert torch.allclose(torch.from_numpy(found), expected, atol=1e-4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--all",), "--where and --all choose runs"),
        (("--lengths", "5000"), "no validation document has the 5001 tokens"),
        (("--lengths", "64"), "--lengths 64 is too short for a probe"),
        (("task=copy",), "say --task copy"),
        (("encoding=alibi",), "encoding=alibi has no effect on a checkpoint"),
    ],
)
def test_what_cannot_be_probed_is_one_line_and_leaves_nothing(
    tmp_path: Path, probe: Callable[..., Outcome], arguments: tuple[str, ...], message: str
) -> None:
    outcome = probe(*arguments)
    assert outcome.code == 2 and message in outcome.line
    assert not (tmp_path / "results").exists()


def test_a_mistake_in_python_names_the_argument(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "llama", "llama")
    with pytest.raises(UserError, match="code is for a run: leave it out"):
        pe_bench.probe(f"hf:{tmp_path / 'llama'}", 128, code="mine.py", results_dir=tmp_path / "results")
    assert not (tmp_path / "results").exists()
