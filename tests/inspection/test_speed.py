"""What `speed` measures, writes and shows, and mistakes. No test says how fast anything is."""

import csv
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from support.shown import ROOT_BIAS

import pe_bench.model.attention
from pe_bench.encodings.scalings.longrope import LongRoPE
from pe_bench.inspection import speed
from pe_bench.inspection.resolve import encodings_to_time, resolve
from pe_bench.inspection.speed import COLUMNS, ScoringPass, grid_of, numbers_of, time_pass
from pe_bench.render import grid

CPU = torch.device("cpu")
TINY = (
    "threads=1",
    *("model.d_model=16", "model.n_layers=2", "model.n_heads=2", "model.d_ff=24"),
    *("train.length=16", "train.batch_tokens=64"),
)


def written() -> list[dict[str, str]]:
    with Path("results/speed.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture
def timed(command, folder):
    """Time encodings in a model of two layers, once each."""
    return lambda *arguments: command("speed", "--lengths", "16,32", "--repeats", "1", *TINY, *arguments)


def test_without_names_every_encoding_is_meant_and_arguments_of_the_environment_come_first(
    folder, monkeypatch
):
    monkeypatch.setattr("pe_bench.inspection.resolve.names_in", lambda group, search: ["alibi", "nope"])
    assert [subject.name for subject in encodings_to_time(["threads=1"])[1]] == ["nope", "alibi"]
    monkeypatch.setenv("PE_BENCH_OVERRIDES", "model.d_model=16 eval.targets=6")
    setting, (reference, rope) = encodings_to_time(["rope", "model.d_ff=24", "base=500", "threads=1"])
    assert setting == "model.d_model=16 eval.targets=6 model.d_ff=24"
    assert (reference.config.model.d_model, rope.config.model.d_ff) == (16, 24)


def test_the_path_that_is_named_is_the_one_that_attention_took(monkeypatch):
    took: dict[str, None] = {}
    choose_path = pe_bench.model.attention.choose_path

    def recorded(*arguments):
        path = choose_path(*arguments)
        _, q, position, *_ = arguments
        if q.shape[-2] == len(position):  # not the last layer's few queries, which the reference serves
            took[path.name] = None
        return path

    (subject,) = resolve(["kimi_linear", *TINY, "model.n_layers=5"])
    one = ScoringPass(subject.config, subject.spec, 16, CPU)
    monkeypatch.setattr(pe_bench.model.attention, "choose_path", recorded)
    one()
    assert one.path == "+".join(took) and len(took) == 2


class Scripted(SimpleNamespace):
    """A pass that takes the given seconds, one number for each call."""

    batch, path = 1, "fused"

    def __call__(self) -> None:
        self.clock[0] += next(self.seconds)


def test_a_ratio_is_the_median_of_those_to_the_reference_just_before(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(speed.time, "perf_counter", lambda: clock[0])
    one = Scripted(clock=clock, seconds=iter([2.0, 6.0, 30.0]))
    reference = Scripted(clock=clock, seconds=iter([9.0, 1.0, 2.0, 20.0]))
    milliseconds, ratios = time_pass(one, reference, 3, CPU)
    assert milliseconds == pytest.approx([2e3, 6e3, 30e3])
    assert ratios == pytest.approx([2.0, 3.0, 1.5]), "the reference's first pass warms up"
    numbers = numbers_of(milliseconds, ratios, 4e3, 12)
    assert [numbers[f"relative{part}"] for part in ("_low", "", "_high")] == [1.75, 2.0, 2.5]
    assert (numbers["milliseconds"], numbers["tokens_per_second"], numbers["repeats"]) == (8e3, 1.5, 3)
    numbers = numbers_of(milliseconds, [], 0.0, 12)
    assert numbers["relative"] is None and numbers["milliseconds"] == 6e3
    for seconds, repeats, count in ((0.001, None, 25), (2.0, None, 5), (2.0, 7, 7)):
        one = Scripted(clock=clock, seconds=iter([seconds] * 99))
        assert len(time_pass(one, None, repeats, CPU)[0]) == count


def test_every_encoding_has_a_row_at_every_length_and_those_measured_again_are_replaced(timed):
    outcome = timed("rope", "nope")
    assert outcome.code == 0, outcome.err
    rows = written()
    assert list(rows[0]) == COLUMNS
    names = [(one["encoding"], one["length"]) for one in rows]
    assert names == [("nope", "16"), ("rope", "16"), ("nope", "32"), ("rope", "32")]
    for one in rows:
        assert (one["status"], one["pass"], one["batch"], one["model"]) == ("ok", "score", "1", "tiny")
        assert (one["dtype"], one["device"], one["threads"], one["repeats"]) == ("float32", "cpu", "1", "1")
        assert float(one["relative"]) > 0 and one["path"] and float(one["peak_memory_mb"] or 0) < 99
        rate = int(one["length"]) / float(one["milliseconds"]) * 1e3
        assert float(one["tokens_per_second"]) == pytest.approx(rate, rel=1e-2)
    assert {one["relative"] for one in rows if one["encoding"] == "nope"} == {"1.0"}
    assert "scoring one window, tiny model, random bytes, float32" in outcome.out
    assert "speed: rope at 32: " in outcome.err and "wrote results/speed.csv" in outcome.err
    assert timed("rope", "--lengths", "32").code == 0
    after = written()
    assert after[:2] == rows[:2] and len(after) == 4 and after[2:] != rows[2:]


def test_what_cannot_be_measured_is_a_row_and_options_files_and_modifiers_make_encodings(timed, monkeypatch):
    scaled = LongRoPE.scaled

    def too_large(self, window):
        if window > 16:
            raise torch.OutOfMemoryError("it is too much\nby far")
        return scaled(self, window)

    monkeypatch.setattr(LongRoPE, "scaled", too_large)
    Path("mine.py").write_text(ROOT_BIAS.replace("return -", "assert distance.max() < 20, 'far'; return -"))
    outcome = timed("learned", "mine.py:RootBias", "rope", "longrope", "base=500", "modifier=[logn]")
    assert outcome.code == 0, outcome.err
    rows = {(one["encoding"].partition("@")[0], one["length"]): one for one in written()}
    labels = ["nope", "learned+logn", "RootBias+logn", "rope+logn base=500.0"]
    assert [name for name, length in rows if length == "16"][:4] == labels
    assert "longrope has no default for long_factors: using the example long_factors=" in outcome.err
    for label, status, reason in (
        ("learned+logn", "undefined", "max_position=16"),
        ("RootBias+logn", "failed", "mine.py:14: AssertionError: far"),
        ("longrope", "out_of_memory", "it is too much by far"),
    ):
        one = rows[label, "32"]
        assert one["status"] == status and reason in one["reason"]
        assert one["milliseconds"] == one["relative"] == one["peak_memory_mb"] == ""
        assert status.replace("_", " ") in outcome.out and reason in " ".join(outcome.out.split())
    assert {rows[name, "16"]["status"] for name in labels} == {"ok"}


def test_an_encoding_is_timed_for_any_training_length(timed) -> None:
    outcome = timed("nope", "train.length=24")
    assert outcome.code == 0, outcome.err


@pytest.mark.parametrize("unread", ["precision=bfloat16", "tokenizer=bpe", "data.max_tokens=5", "task=copy"])
def test_a_key_that_speed_does_not_read_is_refused_before_anything_is_written(
    timed, folder: Path, unread: str
) -> None:
    outcome = timed("nope", unread)
    told = f"speed scores random bytes, in the type of eval.precision: leave out {unread}"
    assert (outcome.code, outcome.line) == (2, f"pe-bench: {told}")
    assert not Path("results").exists()


def test_ctrl_c_keeps_the_rows_before_it(timed, monkeypatch):
    monkeypatch.setattr(speed, "time_pass", Mock(side_effect=[([1.0], []), KeyboardInterrupt]))
    outcome = timed("rope")
    assert outcome.code == 130 and outcome.line == "pe-bench: interrupted" and "nope" in outcome.out
    assert [one["encoding"] for one in written()] == ["nope"]


def row(encoding: str, relative: float | None, **values: Any) -> dict[str, Any]:
    """Return a row of `speed.csv`, without numbers where there is no ratio."""
    facts = {"encoding": encoding, "setting": "", "model": "tiny", "length": 16, "pass": "score"}
    facts |= {"dtype": "float32", "threads": 2, "device": "cpu", "torch": "2.13.0+cpu", "pe_bench": "1"}
    facts |= {"processor": "AMD EPYC 9654 96-Core Processor", "path": "fused", "status": "ok"}
    numbers = {"relative": relative, "milliseconds": 125.0, "tokens_per_second": 8e3, "repeats": 5}
    return dict.fromkeys(COLUMNS) | facts | ({} if relative is None else numbers) | values


def test_the_table_fits_eighty_columns_and_begins_with_the_cheapest_at_the_longest_length(
    capsys, monkeypatch
):
    monkeypatch.setattr("pe_bench.system.terminal.PIPED_WIDTH", 80)
    spread = {"relative_low": 11.5, "relative_high": 13.75, "peak_memory_mb": 1234.5}
    rows = [
        row("nope", 1.0, milliseconds=10.0),
        row("rope+sliding_window", 12.5, **spread),
        row("cheap", 0.5, milliseconds=5.0),
        row("rope a=[red]", None, status="out_of_memory", reason="[bold] too much"),
    ]
    grid.show([grid_of(rows).draw])
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    order = [text.index(name) for name in ("\ncheap", "\nnope ", "\nrope+sliding", "\nrope a=[red]")]
    assert order == sorted(order) and "[bold] too much" in text and "out of memory" in text
    line = next(line for line in text.splitlines() if " 125 " in line)
    assert line.split()[-5:] == ["125", "8,000", "12.50", "10%", "1,234"]
