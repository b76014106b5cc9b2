"""Each command that takes long says what it costs, in one sentence, once its first work is done."""

import re
import time
from pathlib import Path

import pytest
from support.commands import LEARNED, TRIED, Command, only_run

from pe_bench.commands import train as training
from pe_bench.commands.explain import explain
from pe_bench.runs.job import Job
from pe_bench.system import cost
from pe_bench.training import trainer


@pytest.fixture(autouse=True)
def _says_every_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the shortest work say what it costs."""
    monkeypatch.setattr(cost, "PACE_SECONDS", 0.0)
    monkeypatch.setattr(cost, "MIN_PRINTED_SECONDS", 0.0)


def costs_in(text: str) -> list[str]:
    """Return what is said to cost something, without the time."""
    return re.findall(r"^(.*), about \d+ s on 1 core$", text, re.MULTILINE)


def test_a_training_says_it_from_its_first_steps(train: Command) -> None:
    outcome = train("encoding=rope")
    assert outcome.code == 0 and costs_in(outcome.err) == ["1 run"], outcome.err


def test_a_validation_after_few_steps_is_not_counted_as_a_step(
    train: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    validation_loss = trainer.Trainer.validation_loss

    def slow_validation_loss(self: trainer.Trainer) -> float:
        time.sleep(3)
        return validation_loss(self)

    monkeypatch.setattr(trainer.Trainer, "validation_loss", slow_validation_loss)
    outcome = train("encoding=rope", "train.steps=2", "train.validate_every=2", "eval.targets=64")
    (seconds,) = re.findall(r"^1 run, about (\d+) s on 1 core$", outcome.err, re.MULTILINE)
    assert int(seconds) <= 20, outcome.err


def test_a_training_s_cost_has_its_validations_whose_passes_are_shorter_than_steps(
    train: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected: list[float] = []
    jobs: list[Job] = []
    monkeypatch.setattr(cost.Pace, "seconds_per_unit", lambda *given: 1.0)
    monkeypatch.setattr(training, "expect", lambda seconds, cores: expected.append(seconds))
    monkeypatch.setattr(training, "_steps_of_scoring", lambda job, plans: jobs.append(job) or 0.0)
    # After steps 4, 8 and 9, of 72 windows; a step is of 4.
    words = ("train.steps=9", "train.validate_every=4", "train.validation_tokens=1152")
    assert train("encoding=rope", *words).code == 0
    of_one = 72 / (4 * training.FORWARD_PASSES_PER_STEP)
    assert expected[0] == pytest.approx(9 + 3 * of_one)
    # A run that continues after step 8 has validated twice.
    assert training._steps_of_validation(jobs[0], begun_at=8) == pytest.approx(of_one)


def test_scoring_and_probing_say_it_once_for_all_runs_and_encodings(
    train: Command, command: Command, folder: Path
) -> None:
    for seed in ("seed=0", "seed=1"):
        assert train("encoding=rope", seed).code == 0
    where = ("--results-dir", str(folder / "results"), "--threads", "1")
    scored = command("eval", "--all", "--lengths", "24,40", "--with", "yarn", *where)
    assert scored.code == 0 and costs_in(scored.err) == ["scoring 2 runs"], scored.err
    again = command("eval", "--all", "--lengths", "24,40", "--with", "yarn", *where)
    assert costs_in(again.err) == [], "nothing is left to score"
    probed = command("probe", "--all", "--lengths", "128", "--depths", "2", "--windows", "6", *where)
    assert probed.code == 0 and costs_in(probed.err) == ["scoring 2 runs"], probed.err


def test_stretching_says_it_for_the_scores(begin: Command, command: Command, folder: Path) -> None:
    assert begin("encoding=rope").code == 0
    where = ("--results-dir", str(folder / "results"), "threads=1")
    outcome = command("extend", only_run(folder).name, "--to", "3x", "--with", "yarn", *where)
    assert outcome.code == 0 and costs_in(outcome.err) == ["scoring 1 run"], outcome.err


def test_a_try_says_it_for_a_seed(command: Command, folder: Path) -> None:
    keys = (*TRIED, *LEARNED, f"data.path={folder / 'corpus'}", "--lengths", "16,32", "--minutes", "0.01")
    outcome = command("try", "nope", *keys, "--results-dir", str(folder / "results"))
    assert costs_in(outcome.err) == ["2 runs of one seed"], outcome.err


def test_an_explanation_of_a_slow_model_says_it_before_longer_lengths_are_scored(
    train: Command, command: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert train("encoding=rope").code == 0
    results = str(folder / "results")
    monkeypatch.setattr(explain, "SLOW_SECONDS", 0.0)
    monkeypatch.setattr(explain.Explainer, "_effects_of_changes", lambda *given: [])
    slow = command("explain", "rope", "--lengths", "24", "--targets", "6", "--results-dir", results)
    assert slow.code == 0 and costs_in(slow.err) == ["explaining 1 run"], slow.err


def test_a_sweep_says_once_which_text_it_trains_on_and_how_that_is_split(
    train: Command, folder: Path
) -> None:
    outcome = train("-m", "encoding=rope,alibi", "train.steps=2")
    assert outcome.code == 0, outcome.err
    corpus = re.escape(str(folder / "corpus"))
    said = (
        rf"files \({corpus}\): 10 documents of [\d,]+ tokens for training, 2 documents of [\d,]+ tokens for"
    )
    assert len(re.findall(said, outcome.err)) == 1, outcome.err
