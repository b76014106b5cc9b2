"""`probe hf:...`: needles of a checkpoint are like those of a run, and `--task` asks it prompts."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.checkpoints import VOCABULARY, opened, write_checkpoint
from support.commands import Command, Outcome, write_corpus

import pe_bench
from pe_bench.checkpoints.source import quiet
from pe_bench.runs.rows import Row, read_rows
from pe_bench.scoring.needles import ANSWER, CHOICES, nll_of_choices

Probe = Callable[..., Outcome]


@pytest.fixture
def probe(tmp_path: Path, command: Command) -> Probe:
    """Return a function that probes a random Llama on a tiny corpus, or with prompts."""
    write_checkpoint(tmp_path / "llama", "llama")
    write_checkpoint(tmp_path / "long", "llama", max_position_embeddings=800)
    text = ("data=files", f"data.path={write_corpus(tmp_path / 'corpus')}")
    where = ("threads=1", f"cache_dir={tmp_path / 'cache'}", "--results-dir", str(tmp_path / "results"))

    def run(*arguments: str) -> Outcome:
        if "--task" in arguments:
            return command("probe", f"hf:{tmp_path / 'long'}", *where, "--windows", "3", *arguments)
        return command("probe", f"hf:{tmp_path / 'llama'}", *text, *where, *arguments)

    return run


def rows_in(folder: Path) -> dict[str, list[Row]]:
    runs = (folder / "results" / "runs").iterdir()
    return {rows[0].data: rows for rows in (read_rows(run / "eval.csv") for run in runs)}


def test_a_checkpoint_is_probed_and_the_call_from_python_is_the_same(tmp_path: Path, probe: Probe) -> None:
    done = probe("--lengths", "128", "--depths", "2", "--windows", "6", "--with", "yarn factor=4")
    assert done.code == 0, done.err
    [rows] = rows_in(tmp_path).values()
    shared = {(row.protocol, row.length, row.encoding, row.status) for row in rows}
    assert shared == {("probe", 128, "rope", "ok")}
    assert {row.scored_with for row in rows} == {"rope", "yarn factor=4.0"}
    assert all(row.accuracy is not None and row.accuracy < 0.7 for row in rows), "its weights are random"
    options: dict[str, Any] = {"depths": 2, "windows": 6, "threads": 1, "cache_dir": tmp_path / "cache"}
    options |= {"overrides": ["data=files", f"data.path={tmp_path / 'corpus'}"]}
    name, results = f"hf:{tmp_path / 'llama'}", tmp_path / "results"
    again = pe_bench.probe(name, 128, "yarn factor=4", results_dir=results, **options)
    assert [*rows_in(tmp_path).values()] == [rows], "nothing was scored again"
    assert done.out.startswith(str(again).rstrip("\n"))


def test_the_scores_of_endings_are_those_of_transformers(tmp_path: Path) -> None:
    model = opened(write_checkpoint(tmp_path / "llama", "llama")).model
    tokens_BCT = torch.randint(VOCABULARY, (2, CHOICES, 41), generator=torch.Generator().manual_seed(0))
    tokens_BCT[:, :, : 41 - ANSWER] = tokens_BCT[:, :1, : 41 - ANSWER]
    with torch.no_grad(), quiet() as transformers:
        nll = nll_of_choices(model, tokens_BCT, torch.Generator())
        theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "llama").eval()
        logits = theirs(input_ids=tokens_BCT.flatten(0, 1)[:, :-1]).logits[:, -ANSWER:].log_softmax(-1)
    answers = tokens_BCT.flatten(0, 1)[:, -ANSWER:, None]
    expected = -logits.gather(-1, answers)[..., 0].reshape(2, CHOICES, ANSWER)
    assert torch.allclose(torch.from_numpy(nll), expected, atol=1e-4)


def test_a_random_checkpoint_answers_no_prompt(tmp_path: Path, probe: Probe) -> None:
    done = probe("--task", "niah_multikey_3,vt,fwe", "--lengths", "800,900")
    assert done.code == 0, done.err
    for name, rows in rows_in(tmp_path).items():
        facts = [(row.length, row.exact, row.accuracy, row.documents) for row in rows]
        assert facts == [(800, 0.0, 0.0, 3), (900, 0.0, 0.0, 3)]
        assert f"task {name}" in done.out
    assert set(rows_in(tmp_path)) == {"niah_multikey_3", "vt", "fwe"}


def test_what_cannot_be_probed_is_one_line_and_leaves_nothing(tmp_path: Path, probe: Probe) -> None:
    for arguments, message in (
        ("--all", "--where and --all choose runs"),
        ("--lengths 5000", "no validation document has the 5001 tokens"),
        ("encoding=alibi", "encoding=alibi has no effect on a checkpoint"),
        ("--task vt --depths 3", "depths=3 has no effect on prompts"),
        ("--task vt data=files", "data=files has no effect on a checkpoint, which brings"),
        ("--task vt --lengths 500", "of vt has"),
        ("--task fwe,niah", "unknown --task 'niah'"),
    ):
        outcome = probe(*arguments.split())
        assert outcome.code == 2 and message in outcome.line, arguments
    assert not (tmp_path / "results").exists()
