"""A sweep over a key of training: its tables name the key, and `--best` keeps each encoding's best value."""

from pathlib import Path

import pytest
from support.commands import Command

SWEEP = ("-m", "encoding=rope,nope", "train.lr=0.001,0.01", "seed=0,1")
HEAD = "step,tokens,loss,validation_loss,lr,gradient_norm,seconds\n"


@pytest.fixture
def report(begin: Command, command: Command, folder: Path) -> Command:
    """Run `pe-bench report` on a sweep in which rope is best at 0.01, and nope at 0.001."""
    outcome = begin(*SWEEP)
    assert outcome.code == 0, outcome.err
    assert "they differ in train.lr (here 0.001)" in " ".join(outcome.out.split())
    assert "pe-bench report --by train.lr;" in " ".join(outcome.out.split())
    for run in (folder / "results" / "runs").iterdir():
        is_high = "\n  lr: 0.01\n" in (run / "config.yaml").read_text()
        loss = 1.0 if is_high == run.name.startswith("rope") else 2.0
        (run / "train.csv").write_text(f"{HEAD}4,1,9,0.5,1,1,1\n6,1,9,,1,1,1\n8,1,9,{loss},1,1,1\n")
    return lambda *arguments: command("report", "--results-dir", str(folder / "results"), *arguments)


def test_each_encoding_keeps_the_value_with_the_lowest_validation_loss(report: Command, folder: Path) -> None:
    outcome = report("--best", "train.lr")
    assert outcome.code == 0, outcome.err
    assert outcome.out.count("encoding ") >= 1 and "table 1 of" not in outcome.out
    said = " ".join(outcome.out.split())
    assert "2 seeds" in said
    assert "nope 0.001 of 0.001, 0.01; rope 0.01 of 0.001, 0.01" in said
    assert "mean validation loss at the training length, on windows of the same documents" in said
    for option in ("--markdown", "--latex", "--csv", "--html"):
        target = folder / f"table{option}"
        assert report("--best", "train.lr", option, str(target)).code == 0
        if option != "--csv":
            assert "mean validation loss" in " ".join(target.read_text().split())


def test_the_proposed_command_makes_lines_of_one_table(report: Command) -> None:
    outcome = report("--by", "train.lr")
    assert outcome.code == 0 and "table 1 of" not in outcome.out
    assert "rope train.lr=0.01" in outcome.out and "nope train.lr=0.001" in outcome.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--best", "seed"], "seeds and encodings are not chosen by their results"),
        (["--best", "encoding.base"], "name a key of training"),
        (["--best", "train.lrr"], "did you mean 'train.lr'?"),
        (["--best", "train.lr", "--by", "train.lr"], "exclude each other"),
    ],
)
def test_a_key_that_cannot_be_chosen_by_results_is_refused(
    report: Command, arguments: list[str], message: str
) -> None:
    outcome = report(*arguments)
    assert outcome.code == 2 and message in outcome.line


def test_a_run_without_a_validation_loss_is_named(report: Command, folder: Path) -> None:
    run = next((folder / "results" / "runs").iterdir())
    (run / "train.csv").unlink()
    outcome = report("--best", "train.lr")
    assert outcome.code == 2 and f"{run.name} has no validation loss" in outcome.line
