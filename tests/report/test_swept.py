"""A sweep over a key of training: its tables name the key, and `--best` keeps each encoding's best value."""

from pathlib import Path

import pytest
from support.commands import Command

HEAD = "step,tokens,loss,validation_loss,lr,gradient_norm,seconds\n"


@pytest.fixture
def report(command: Command, rates: Path) -> Command:
    """Run `pe-bench report` on a sweep in which rope is best at 0.003, and alibi at 0.001."""
    for run in (rates / "runs").iterdir():
        is_high = "\n  lr: 0.003\n" in (run / "config.yaml").read_text()
        loss = 1.0 if is_high == run.name.startswith("rope") else 2.0
        (run / "train.csv").write_text(f"{HEAD}4,1,9,0.5,1,1,1\n6,1,9,,1,1,1\n8,1,9,{loss},1,1,1\n")
    return lambda *arguments: command("report", "--results-dir", str(rates), *arguments)


def test_each_encoding_keeps_the_value_with_the_lowest_validation_loss(report: Command) -> None:
    apart = " ".join(report("--all").out.split())
    assert (
        "they differ in train.lr (here 0.001)" in apart
        and "lines of one table: pe-bench report --by train.lr" in apart
    )
    for options in ((), ("--markdown", "-"), ("--latex", "-")):
        outcome = report("--best", "train.lr", *options)
        assert outcome.code == 0 and "table 1 of" not in outcome.out
        said = " ".join(outcome.out.replace("%", "").split())
        assert "2 seeds" in said and "mean validation loss at the training length" in said
        assert "alibi 0.001 of 0.001, 0.003; rope 0.003 of 0.001, 0.003" in said


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


def test_a_run_without_a_validation_loss_is_named(report: Command, rates: Path) -> None:
    run = next((rates / "runs").iterdir())
    (run / "train.csv").unlink()
    outcome = report("--best", "train.lr")
    assert outcome.code == 2 and f"{run.name} has no validation loss" in outcome.line
