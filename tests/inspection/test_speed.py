"""What `speed` measures, writes and shows, and mistakes. No test says how fast anything is."""

import csv
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import pe_bench.model.attention
from pe_bench.data.tokenizer import ByteTokenizer
from pe_bench.inspection import speed
from pe_bench.inspection.resolve import resolve, resolve_timed
from pe_bench.inspection.speed import COLUMNS, Bench, ScoringPass, TrainingPass, grid_of, peak_of, time_pass
from pe_bench.system import grid

TINY = (
    "threads=1",
    *("model.d_model=16", "model.n_layers=2", "model.n_heads=2", "model.d_ff=24"),
    *("train.length=16", "train.batch_tokens=64"),
)
LENGTHS = ("--lengths", "16,32", "--repeats", "1")
TRAINED = [argument for argument in TINY if not argument.startswith("train.length")]


def written(path: Path = Path("results") / "speed.csv") -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def row(encoding: str, length: int, relative: float | None, **values: Any) -> dict[str, Any]:
    """Return a row of `speed.csv`, without numbers where there is no ratio."""
    numbers = {"milliseconds": 10.0, "tokens_per_second": 1e5, "gflops_per_second": 2.0, "repeats": 5}
    facts = {"encoding": encoding, "setting": "", "model": "tiny", "length": length, "pass": "score"}
    measured = {} if relative is None else {"relative": relative, **numbers}
    return dict.fromkeys(COLUMNS) | facts | {"path": "fused", "status": "ok"} | measured | values


CPU = torch.device("cpu")
OWN = """
import torch
from pe_bench.encodings import LayerEncoding


class RootBias(LayerEncoding):
    def distance_bias(self, distance):
        if distance.max() > 20:
            raise IndexError("too many\\nby far")
        return -distance.sqrt().expand(2, -1)
"""


@pytest.fixture
def timed(command, folder):
    """Time encodings in a model of two layers, once each."""
    return lambda *arguments: command("speed", *LENGTHS, *TINY, *arguments)


# Passes


def test_without_names_every_encoding_is_meant_and_arguments_of_the_environment_come_first(
    folder, monkeypatch
):
    _, subjects = resolve_timed(["threads=1"], [16], [], train=False)
    names = [subject.name for subject in subjects[16]]
    assert names[0] == "nope" and {"rope", "yarn"} <= set(names) and len(names) > 50
    monkeypatch.setenv("PE_BENCH_OVERRIDES", "model.d_model=16 eval.targets=6")
    setting, subjects = resolve_timed(["rope", "model.d_ff=24", "base=500"], [16], [], train=False)
    assert setting == "model.d_model=16 eval.targets=6 model.d_ff=24"
    (reference, rope) = subjects[16]
    assert (reference.config.model.d_model, rope.config.model.d_ff) == (16, 24)


def test_a_training_step_trains_and_has_as_many_windows_as_a_step_holds():
    batches = {16: 4, 32: 2, 40: 1, 128: 1}
    _, subjects = resolve_timed(["nope", *TRAINED], list(batches), [], train=True)
    assert {length: each[0].config.train.batch for length, each in subjects.items()} == batches
    step = TrainingPass(subjects[32][0].config, subjects[32][0].spec, 32, CPU)
    before = [parameter.clone() for parameter in step.trainer.model.parameters()]
    step()
    after = step.trainer.model.parameters()
    assert all(not torch.equal(old, new) for old, new in zip(before, after, strict=True))
    assert step.batch == 2 and step.trainer.config.train.micro_batches == 1


@pytest.mark.parametrize("name", ["alibi", "fox", "shaw", "swan"])
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
    (subject,) = resolve([name, *TINY, "model.n_layers=3"])
    one = kind(subject.config, subject.spec, 16, CPU)
    one()
    assert one.path == "+".join(took) and ("+" in one.path) == (name == "swan")


def test_operations_of_a_pass_are_those_of_its_tokens_and_targets():
    """By hand, for two layers of width 16 with 2 heads of 8 and feed-forward layers of 24."""
    (subject,) = resolve(["nope", *TINY])
    layer, keys = 4 * 16 * 16 + 3 * 16 * 24, (16 + 1) / 2
    token = 2 * 2 * layer + 2 * 2 * 2 * 16 * keys
    output = 2 * 16 * ByteTokenizer().vocab_size
    assert ScoringPass(subject.config, subject.spec, 16, CPU).flops == 16 * token + 2 * output, "2 targets"
    assert TrainingPass(subject.config, subject.spec, 16, CPU).flops == 4 * 16 * 3 * (token + output)


def test_a_ratio_is_the_median_of_those_to_the_reference_just_before(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(speed.time, "perf_counter", lambda: clock[0])

    class Scripted(SimpleNamespace):
        """A pass that takes the given seconds, one number for each call."""

        def __call__(self) -> None:
            clock[0] += next(self.seconds)

    one = Scripted(device=CPU, batch=1, flops=1e9, seconds=iter([2.0, 6.0, 30.0]))
    reference = Scripted(device=CPU, seconds=iter([9.0, 1.0, 2.0, 20.0]))
    milliseconds, ratios = time_pass(one, reference, 3)
    assert milliseconds == pytest.approx([2e3, 6e3, 30e3])
    assert ratios == pytest.approx([2.0, 3.0, 1.5]), "the reference's first pass warms up"
    numbers = speed.numbers_of(one, 12, milliseconds, ratios)
    assert [numbers[f"relative{part}"] for part in ("_low", "", "_high")] == [1.75, 2.0, 2.5]
    assert (numbers["milliseconds"], numbers["tokens_per_second"], numbers["repeats"]) == (6e3, 2.0, 3)
    assert speed.numbers_of(one, 12, milliseconds, [])["relative"] is None


def test_quick_passes_are_repeated_more_often_and_what_the_user_asks_for_is_done():
    counts = [
        [done for done in range(99) if speed.is_due(done, *rest)]
        for rest in ((0.1, None), (9.0, None), (9.0, 7))
    ]
    assert list(map(len, counts)) == [25, 5, 7]


def test_memory_is_counted_above_what_was_held_before():
    class Holding(SimpleNamespace):
        def __call__(self) -> None:
            np.ones(64 * 2**17).sum()  # 64 MB

    held = np.ones(64 * 2**17)
    peaks = [peak_of(Holding(device=CPU)) for _ in range(2)]
    assert all(peak is not None and 60 <= peak <= 90 for peak in peaks), peaks
    assert held.nbytes == 64 * 2**20


# Rows


def test_every_encoding_has_a_row_at_every_length_and_those_measured_again_are_replaced(timed):
    outcome = timed("rope", "nope", "t5")
    assert outcome.code == 0, outcome.err
    rows = written()
    assert list(rows[0]) == COLUMNS
    names = ["nope", "rope", "t5"]
    assert [(one["encoding"], one["length"]) for one in rows] == [(n, m) for m in ("16", "32") for n in names]
    for one in rows:
        assert (one["status"], one["pass"], one["batch"], one["model"]) == ("ok", "score", "1", "tiny")
        assert (one["dtype"], one["device"], one["threads"], one["repeats"]) == ("float32", "cpu", "1", "1")
        assert float(one["relative"]) > 0 and one["path"] and float(one["gflops_per_second"]) > 0
        rate = int(one["length"]) / float(one["milliseconds"]) * 1e3
        assert float(one["tokens_per_second"]) == pytest.approx(rate, rel=1e-2)
    assert {one["relative"] for one in rows if one["encoding"] == "nope"} == {"1.0"}
    assert "scoring one window, tiny model, random bytes, float32" in outcome.out
    assert "x nope" in outcome.out and "GFLOP/s at 32 tokens" in outcome.out
    assert "speed: rope, 32 tokens: " in outcome.err and "wrote results/speed.csv" in outcome.err
    assert timed("rope", "--lengths", "32,48").code == 0
    kept = [one for one in rows if (one["encoding"], one["length"]) not in {("nope", "32"), ("rope", "32")}]
    after = written()
    assert after[: len(kept)] == kept
    added = [(one["encoding"], one["length"]) for one in after[len(kept) :]]
    assert added == [("nope", "32"), ("rope", "32"), ("nope", "48"), ("rope", "48")]


def test_what_cannot_be_measured_is_a_row_and_options_files_and_modifiers_make_encodings(timed):
    Path("mine.py").write_text(OWN, encoding="utf-8")
    names = ("learned", "mine.py:RootBias", "rope", "longrope")
    outcome = timed(*names, "base=500,700", "modifier=[logn]")
    assert outcome.code == 0, outcome.err
    rows = {(one["encoding"].partition("@")[0], one["length"]): one for one in written()}
    labels = ["nope", "learned+logn", "RootBias+logn", "rope+logn base=500.0", "rope+logn base=700.0"]
    assert [name for name, length in rows if length == "16"][:5] == labels
    assert "longrope has no default for long_factors: timed with long_factors=" in outcome.err
    undefined, failed = rows["learned+logn", "32"], rows["RootBias+logn", "32"]
    assert undefined["status"] == "undefined" and "max_position=16" in undefined["reason"]
    assert failed["status"] == "failed" and failed["reason"].endswith("mine.py:9: IndexError: too many")
    for one in (undefined, failed):
        assert one["milliseconds"] == one["relative"] == one["peak_memory_mb"] == ""
        assert one["status"] in outcome.out and one["reason"] in " ".join(outcome.out.split())
    assert {rows[name, "16"]["status"] for name in labels} == {"ok"}


def test_too_little_memory_is_a_row_even_of_the_reference(monkeypatch):
    def too_large(*_):
        raise torch.OutOfMemoryError("it is too much\nby far")

    monkeypatch.setattr(speed, "time_pass", too_large)
    rows = list(Bench({}, False, None, CPU).rows({32: resolve(["nope", "rope", *TINY])}, lambda _: None))
    told = ("out_of_memory", "it is too much by far", 1)
    assert [(one["status"], one["reason"], one["batch"]) for one in rows] == [told] * 2


def test_ctrl_c_is_no_row_and_keeps_those_before_it(timed, monkeypatch):
    run = ScoringPass.__call__

    def interrupted(self):
        if "alibi" in str(type(self.scorer.model.encoding.layer(0))):
            raise KeyboardInterrupt
        run(self)

    monkeypatch.setattr(ScoringPass, "__call__", interrupted)
    outcome = timed("rope", "alibi")
    assert outcome.code == 130 and outcome.line == "pe-bench: interrupted" and "rope" in outcome.out
    assert [one["encoding"] for one in written()] == ["nope", "rope"]


def test_the_table_fits_eighty_columns_and_begins_with_the_cheapest_at_the_longest_length():
    facts = {"dtype": "float32", "threads": 2, "device": "cpu", "torch": "2.13.0+cpu", "pe_bench": "0.1.0"}
    facts["processor"] = "AMD EPYC 9654 96-Core Processor"
    spread = {"relative_low": 11.5, "relative_high": 13.75, "peak_memory_mb": 1234.5}
    rows = [
        row("nope", 16, 1.0, **facts | {"gflops_per_second": 1234.5}),
        row("rope+sliding_window", 16, 12.5, **spread, **facts),
        row("cheap", 16, 0.5, **facts),
        row("rope a=[red]", 16, None, **facts | {"status": "out_of_memory", "reason": "[bold] too much"}),
    ]
    lines = [line.plain for line in grid.draw(grid_of(rows), 80)]
    assert max(map(len, lines)) <= 80
    text = "\n".join(lines)
    order = [text.index(name) for name in ("\ncheap", "\nnope ", "\nrope+sliding", "\nrope a=[red]")]
    assert order == sorted(order) and "[bold] too much" in text and "out of memory" in text
    line = next(line for line in lines if " 125 " in line)
    assert line.split()[-5:] == ["125", "8,000", "12.50", "10%", "1,234"]
    assert "nope: 1,234 GFLOP/s at 16 tokens" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["mine"], "unknown encoding 'mine'"),
        (["rope", "--lengths", "5x"], "positive whole numbers, and '5x' is not one"),
        (["rope", "--lengths", "1,16"], "--lengths takes lengths of at least 2 tokens, and 1 is shorter"),
        (["rope", "--train", "train.length=32"], "each of --lengths is the training length in turn"),
        (["rope", "--output", "speed.txt"], "--output speed.txt: the name must end with .csv"),
        (["rope", "--output", "odd.csv"], "odd.csv has other columns than this pe-bench writes"),
        (["rope", "device=cuda:99"], "device=cuda:99 was not found"),
        (["learned", "encoding.max_position=0"], "max_position"),
    ],
)
def test_a_mistake_is_one_line_and_exit_2_and_nothing_is_written(command, folder, arguments, message):
    Path("odd.csv").write_text("encoding,length\nrope,16\n", encoding="utf-8")
    before = sorted(path.name for path in Path().rglob("*"))
    outcome = command("speed", *arguments)
    assert outcome.code == 2 and not outcome.out, outcome.err
    assert message in outcome.line and outcome.err == f"{outcome.line}\n"
    assert sorted(path.name for path in Path().rglob("*")) == before


def test_two_commands_at_once_keep_each_others_rows(tmp_path, monkeypatch):
    read, path = speed.read_rows, tmp_path / "speed.csv"
    monkeypatch.setattr(speed, "read_rows", lambda path: (read(path), time.sleep(0.1))[0])
    with ThreadPoolExecutor(2) as pool:
        for writing in [
            pool.submit(speed.write_rows, path, [row(name, 16, 1.0)]) for name in ("rope", "nope")
        ]:
            writing.result()
    assert {each["encoding"] for each in written(path)} == {"rope", "nope"}
