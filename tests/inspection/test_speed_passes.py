"""How `speed` measures: passes, paths, repeats, operations and memory."""

import numpy as np
import pytest
import torch
from support.timed import CPU, TINY, TRAINED, written

import pe_bench.model.attention
from pe_bench.data.tokenizer import ByteTokenizer
from pe_bench.inspection.passes import Pass, ScoringPass, TrainingPass
from pe_bench.inspection.resolve import resolve
from pe_bench.inspection.speed import Request, is_due, measure, peak_of, time_pass


class Scripted(Pass):
    """Takes as many seconds of a clock of its own as it is told, one after the other."""

    device = CPU

    def __init__(self, clock: list[float], seconds: list[float]):
        self.clock, self.seconds = clock, iter(seconds)

    def run(self) -> None:
        self.clock[0] += next(self.seconds)


# Training


def test_a_training_step_has_as_many_windows_as_a_step_holds(speed):
    arguments = ("model.d_model=16", "model.n_layers=1", "model.n_heads=2", "model.d_ff=24", "threads=1")
    outcome = speed("learned", "--train", "--lengths", "16,40,128", "train.batch_tokens=64", *arguments)
    assert outcome.code == 0, outcome.err
    assert "a training step" in outcome.out
    batches = [(one["length"], one["batch"]) for one in written() if one["encoding"] == "learned"]
    assert batches == [("16", "4"), ("40", "1"), ("128", "1")], "learned trains at every length"
    assert {one["pass"] for one in written()} == {"train"}


def test_a_training_pass_trains():
    (subject,) = Request(("nope",), tuple(TRAINED), (), train=True).at(32)
    timed = TrainingPass(subject.config, (), 32, CPU)
    before = [parameter.clone() for parameter in timed.trainer.model.parameters()]
    timed()
    assert all(
        not torch.equal(old, new) for old, new in zip(before, timed.trainer.model.parameters(), strict=True)
    )
    assert timed.batch == 2 and timed.trainer.config.train.micro_batches == 1


# Paths


@pytest.mark.parametrize(
    "name", ["nope", "alibi", "t5", "fox", "shaw", "swan", "sliding_window", "randomized"]
)
@pytest.mark.parametrize("kind", [ScoringPass, TrainingPass])
def test_the_path_that_is_named_is_the_one_that_attention_took(name, kind, monkeypatch):
    took: dict[str, None] = {}
    choose = pe_bench.model.attention.choose

    def recorded(*arguments):
        path = choose(*arguments)
        _, q, position, *_ = arguments

        def run(*rest):
            if q.shape[-2] == len(position):  # not the last layer's few queries, which the reference serves
                took[path.name] = None
            return path.run(*rest)

        return path._replace(run=run)

    monkeypatch.setattr(pe_bench.model.attention, "choose", recorded)
    (subject,) = resolve([name, *TINY])
    timed = kind(subject.config, subject.spec, 16, CPU)
    assert not took, "asking for the path takes none"
    timed()
    assert timed.path == "+".join(took)


def test_several_paths_of_one_model_are_joined(speed):
    speed("swan", "model.n_layers=3")  # of which the last has few queries in scoring
    assert "+" in written()[1]["path"] and "+" not in written()[0]["path"]


# How it is measured


def test_operations_of_a_pass_are_those_of_its_tokens_and_targets():
    """By hand, for two layers of width 16 with 2 heads of 8 and feed-forward layers of 24."""
    (subject,) = resolve(["nope", *TINY])
    layer, keys = 4 * 16 * 16 + 3 * 16 * 24, (16 + 1) / 2
    token = 2 * 2 * layer + 2 * 2 * 2 * 16 * keys
    output = 2 * 16 * ByteTokenizer().vocab_size
    assert ScoringPass(subject.config, (), 16, CPU).flops == 16 * token + 2 * output, "2 targets"
    assert TrainingPass(subject.config, (), 16, CPU).flops == 4 * 16 * 3 * (token + output)


def test_a_ratio_is_the_median_of_those_to_the_reference_just_before(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(measure.time, "perf_counter", lambda: clock[0])
    timed = Scripted(clock, [9.0, 2.0, 6.0, 30.0])
    reference = Scripted(clock, [9.0, 1.0, 2.0, 20.0])
    timing = time_pass(timed, reference, 3)
    assert timing.milliseconds == pytest.approx([2e3, 6e3, 30e3]), "the first pass warms up"
    assert timing.ratios == pytest.approx([2.0, 3.0, 1.5])
    assert timing.relative == pytest.approx(2.0) and timing.median == pytest.approx(6e3)


def test_slow_passes_are_repeated_less_and_quick_ones_more():
    assert all(is_due(done, 0.1, None) for done in range(measure.MAX_REPEATS))
    assert not is_due(measure.MAX_REPEATS, 0.1, None)
    assert is_due(4, 10.0, None) and not is_due(5, 10.0, None)
    assert is_due(0, 1e6, None) and not is_due(1, measure.LONG + 1, None)
    assert is_due(2, 1e6, 3) and not is_due(3, 0.0, 3), "what the user asks for is done"


def test_memory_is_counted_above_what_was_held_before():
    class Holding(Pass):
        device = CPU

        def run(self) -> None:
            np.ones(64 * 2**17).sum()  # 64 MB

    held = np.ones(64 * 2**17)
    found = [peak_of(Holding()) for _ in range(2)]
    assert all(one is not None and 60 <= one <= 90 for one in found), found
    assert held.nbytes == 64 * 2**20
