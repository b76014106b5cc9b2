"""What `speed` measures, writes and shows, and mistakes. No test says how fast anything is."""

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from support.timed import LENGTHS, TINY, TRAINED, row, written

import pe_bench.model.attention
from pe_bench.data.tokenizer import ByteTokenizer
from pe_bench.errors import RunError
from pe_bench.inspection import passes
from pe_bench.inspection.passes import Bench, Pass, ScoringPass, TrainingPass, is_due, peak_of, time_pass
from pe_bench.inspection.resolve import resolve
from pe_bench.inspection.speed import (
    COLUMNS,
    Request,
    Row,
    grid_of,
    ordered,
    read_request,
    read_rows,
    write_rows,
)
from pe_bench.system import grid

CPU = torch.device("cpu")
OWN = """
import torch
from pe_bench.encodings import LayerEncoding


class RootBias(LayerEncoding):
    def distance_bias(self, distance):
        return -distance.sqrt().expand(2, -1)
"""
FAILS_LATER = OWN.replace(
    "        return",
    """        if distance.max() > 20:
            raise IndexError("too many\\nby far")
        return""",
)


@pytest.fixture
def speed(command, folder):
    """Time encodings in a model of two layers, once each."""
    return lambda *arguments: command(
        "speed", *LENGTHS, *(arguments if "--train" in arguments else (*TINY, *arguments))
    )


class Scripted(Pass):
    """Takes as many seconds of a clock of its own as it is told, one after the other."""

    device = CPU

    def __init__(self, clock: list[float], seconds: list[float]):
        self.clock, self.seconds = clock, iter(seconds)

    def run(self) -> None:
        self.clock[0] += next(self.seconds)


# What is asked


def test_without_names_every_encoding_is_meant_and_arguments_of_the_environment_come_first(
    folder, monkeypatch
):
    (folder / "my" / "encoding").mkdir(parents=True)
    (folder / "my" / "encoding" / "root.yaml").write_text("name: root\n", encoding="utf-8")
    request = read_request(["threads=1"], False, [folder / "my"])
    assert {"nope", "rope", "yarn", "root"} <= set(request.names) and len(request.names) > 50
    assert not request.is_choice, "and that is said"
    monkeypatch.setenv("PE_BENCH_OVERRIDES", "model.d_model=16 eval.targets=6")
    request = read_request(["rope", "model.d_ff=24"], False, [])
    assert request.names == ("rope",) and request.is_choice
    (reference, rope) = request.at(16)
    assert (reference.config.model.d_model, rope.config.model.d_ff) == (16, 24)


# Passes


def test_a_training_step_trains_and_has_as_many_windows_as_a_step_holds():
    request = Request(("nope",), tuple(TRAINED), (), train=True)
    for length, batch in ((16, 4), (32, 2), (40, 1), (128, 1)):
        (subject,) = request.at(length)
        assert subject.config.train.batch == batch
    (subject,) = request.at(32)
    timed = TrainingPass(subject.config, (), 32, CPU)
    before = [parameter.clone() for parameter in timed.trainer.model.parameters()]
    timed()
    after = timed.trainer.model.parameters()
    assert all(not torch.equal(old, new) for old, new in zip(before, after, strict=True))
    assert timed.batch == 2 and timed.trainer.config.train.micro_batches == 1


@pytest.mark.parametrize("name", ["nope", "alibi", "t5", "fox", "shaw", "swan", "randomized"])
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
    timed = kind(subject.config, subject.spec, 16, CPU)
    assert not took, "asking for the path takes none"
    timed()
    assert timed.path == "+".join(took) and ("+" in timed.path) == (name == "swan")


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
    monkeypatch.setattr(passes.time, "perf_counter", lambda: clock[0])
    timed = Scripted(clock, [9.0, 2.0, 6.0, 30.0])
    timed()
    milliseconds, ratios = time_pass(timed, Scripted(clock, [9.0, 1.0, 2.0, 20.0]), 3)
    assert milliseconds == pytest.approx([2e3, 6e3, 30e3])
    assert ratios == pytest.approx([2.0, 3.0, 1.5]), "the reference's first pass warms up"
    assert passes.quartiles(ratios) == pytest.approx((1.75, 2.0, 2.5))
    assert passes.quartiles([1.5]) == (None, 1.5, None) and passes.quartiles([]) == (None, None, None)


def test_slow_passes_are_repeated_less_and_quick_ones_more():
    assert all(is_due(done, 0.1, None) for done in range(passes.MAX_REPEATS))
    assert not is_due(passes.MAX_REPEATS, 0.1, None)
    assert is_due(4, 10.0, None) and not is_due(5, 10.0, None)
    assert is_due(0, 1e6, None) and not is_due(1, passes.LONG + 1, None)
    assert is_due(2, 1e6, 3) and not is_due(3, 0.0, 3), "what the user asks for is done"


def test_memory_is_counted_above_what_was_held_before():
    class Holding(Pass):
        device = CPU

        def run(self) -> None:
            np.ones(64 * 2**17).sum()  # 64 MB

    held = np.ones(64 * 2**17)
    peaks = [peak_of(Holding()) for _ in range(2)]
    assert all(peak is not None and 60 <= peak <= 90 for peak in peaks), peaks
    assert held.nbytes == 64 * 2**20


# Rows


def test_every_encoding_has_a_row_at_every_length_beside_the_reference(speed):
    outcome = speed("rope", "nope", "t5")
    assert outcome.code == 0, outcome.err
    rows = written()
    assert list(rows[0]) == COLUMNS
    names = ["nope", "rope", "t5"]
    assert [(one["encoding"], one["length"]) for one in rows] == [(n, m) for m in ("16", "32") for n in names]
    for one in rows:
        assert (one["status"], one["pass"], one["batch"], one["model"]) == ("ok", "score", "1", "tiny")
        assert (one["dtype"], one["device"], one["threads"], one["repeats"]) == ("float32", "cpu", "1", "1")
        assert float(one["relative"]) > 0 and one["path"] and one["torch"] and one["date"]
        rate = int(one["length"]) / float(one["milliseconds"]) * 1e3
        assert float(one["tokens_per_second"]) == pytest.approx(rate, rel=1e-2)
        assert float(one["gflops_per_second"]) > 0
    assert {one["relative"] for one in rows if one["encoding"] == "nope"} == {"1.0"}
    model = "tiny model with d_model=16 n_layers=2 n_heads=2 d_ff=24"
    assert f"scoring one window, {model}, random bytes, float32" in outcome.out
    assert "x nope" in outcome.out and "GFLOP/s at 32 tokens" in outcome.out
    assert "speed: rope, 32 tokens: " in outcome.err and "speed: " not in outcome.out
    assert "wrote results/speed.csv" in outcome.err


def test_rows_of_other_measurements_stay_and_those_measured_again_are_replaced(speed):
    speed("rope", "alibi")
    before = written()
    assert speed("rope", "--lengths", "32,48").code == 0
    kept = [one for one in before if (one["encoding"], one["length"]) not in {("nope", "32"), ("rope", "32")}]
    after = written()
    assert after[: len(kept)] == kept
    added = [(one["encoding"], one["length"]) for one in after[len(kept) :]]
    assert added == [("nope", "32"), ("rope", "32"), ("nope", "48"), ("rope", "48")]
    assert speed("rope", "seed=1", "eval.precision=bf16").code == 0
    assert written()[: len(after)] == after, "another setting is another measurement"
    assert {one["dtype"] for one in written()[len(after) :]} == {"bfloat16"}


def test_of_two_commands_at_once_neither_loses_the_others_rows(tmp_path, monkeypatch):
    def slow(path):
        rows = read_rows(path)
        time.sleep(0.1)
        return rows

    monkeypatch.setattr("pe_bench.inspection.speed.read_rows", slow)
    file = tmp_path / "speed.csv"
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda name: write_rows(file, [row(name, 16, 1.0)]), ["rope", "alibi", "fox"]))
    assert {one["encoding"] for one in written(file)} == {"rope", "alibi", "fox"}


def test_rows_that_could_not_be_written_are_not_said_to_be(speed, monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match=r"speed\.csv could not be written"):
        write_rows(tmp_path / "file" / "speed.csv", [row("rope", 16, 1.0)])

    def full(*_):
        raise RunError("results/speed.csv could not be written: no space left on device")

    monkeypatch.setattr("pe_bench.cli.inspect.write_rows", full)
    outcome = speed("rope")
    assert outcome.code == 1 and "wrote" not in outcome.err and not outcome.out


def test_the_file_lies_where_the_user_says(speed, folder):
    assert speed("rope", "--output", "mine.csv").code == 0
    assert {path.name for path in Path().iterdir()} == {"mine.csv", "mine.csv.lock"}
    assert speed("rope", f"results_dir={folder / 'there'}").code == 0
    assert (folder / "there" / "speed.csv").is_file()


def test_options_values_files_and_modifiers_make_encodings_as_in_show(speed, folder):
    (folder / "work" / "mine.py").write_text(OWN, encoding="utf-8")
    outcome = speed("rope", "mine.py:RootBias", "longrope", "base=500,700", "modifier=[logn]")
    assert outcome.code == 0
    labels = ["nope", "rope+logn base=500.0", "rope+logn base=700.0", "RootBias+logn"]
    assert list(dict.fromkeys(one["encoding"] for one in written()))[:4] == labels
    assert "modifier" not in written()[0]["setting"]
    assert "longrope has no default for long_factors: timed with long_factors=" in outcome.err


# What cannot be measured


def test_what_cannot_be_measured_at_a_length_is_a_row_and_the_others_go_on(speed):
    Path("mine.py").write_text(FAILS_LATER, encoding="utf-8")
    outcome = speed("learned", "mine.py:RootBias", "rope")
    assert outcome.code == 0, outcome.err
    rows = {(one["encoding"].partition("@")[0], one["length"]): one for one in written()}
    undefined, failed = rows["learned", "32"], rows["RootBias", "32"]
    assert undefined["status"] == "undefined" and "max_position=16" in undefined["reason"]
    assert failed["status"] == "failed" and failed["reason"].endswith("mine.py:9: IndexError: too many")
    for one in (undefined, failed):
        assert one["milliseconds"] == one["relative"] == one["peak_memory_mb"] == ""
        assert one["status"] in outcome.out and one["reason"] in " ".join(outcome.out.split())
    assert {rows[name, "16"]["status"] for name in ("learned", "RootBias")} == {"ok"}
    assert rows["rope", "32"]["status"] == "ok"


def test_too_little_memory_is_a_row_even_of_the_reference(monkeypatch):
    def too_large(*_):
        raise torch.OutOfMemoryError("it is too much\nby far")

    monkeypatch.setattr(passes, "time_pass", too_large)
    bench = Bench("", False, None, CPU, 1)
    rows = list(bench.rows({32: resolve(["nope", "rope", *TINY])}, lambda _: None))
    told = ("out_of_memory", "it is too much by far", 1)
    assert [(one.status, one.reason, one.batch) for one in rows] == [told] * 2


def test_a_fault_is_no_row_and_keeps_those_before_it(speed, monkeypatch):
    run = ScoringPass.run

    def faulty(self):
        if "alibi" in str(type(self.scorer.model.encoding.layer(0))):
            raise RuntimeError("a fault")
        run(self)

    monkeypatch.setattr(ScoringPass, "run", faulty)
    with pytest.raises(RuntimeError, match="a fault"):
        speed("rope", "alibi")
    assert [one["encoding"] for one in written()] == ["nope", "rope"]


def test_ctrl_c_keeps_what_was_measured(speed, monkeypatch):
    calls = []

    def interrupted(*arguments):
        calls.append(arguments)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return time_pass(*arguments)

    monkeypatch.setattr(passes, "time_pass", interrupted)
    outcome = speed("rope", "alibi")
    assert outcome.code == 130 and outcome.line == "pe-bench: interrupted"
    assert [one["encoding"] for one in written()] == ["nope", "rope", "alibi"]
    assert "alibi" in outcome.out


# The table


def table(rows: list[Row], width: int = 80) -> str:
    return "\n".join(line.plain for line in grid.draw(grid_of(rows), width))


def test_the_table_begins_with_the_cheapest_at_the_longest_length():
    rows = [
        *(row("nope", 16, 1.0), row("dear", 16, 1.0), row("cheap", 16, 3.0), row("none", 16, 0.5)),
        *(row("nope", 32, 1.0), row("dear", 32, 9.0), row("cheap", 32, 0.9), row("none", 32, None)),
    ]
    assert list(dict.fromkeys(one.encoding for one in ordered(rows))) == ["cheap", "nope", "dear", "none"]
    assert [one.length for one in ordered(rows)] == [16, 32] * 4


def test_the_table_fits_eighty_columns_and_shows_brackets_as_they_are():
    long = {
        "gflops_per_second": 1234.5,
        "dtype": "float32",
        "threads": 2,
        "device": "cpu",
        "processor": "AMD EPYC 9654 96-Core Processor",
        "torch": "2.13.0+cpu",
        "pe_bench": "0.1.0",
    }
    spread = {"relative_low": 11.5, "relative_high": 13.75}
    rows = [row("nope", 16, 1.0, **long), row("rope+sliding_window", 65_536, 12.5, **spread, **long)]
    rows.append(row("rope a=[red]", 65_536, None, status="out_of_memory", reason="[bold] too much"))
    text = table(rows)
    assert max(map(len, text.splitlines())) <= 80
    assert "rope a=[red]" in text and "[bold] too much" in text and "out of memory" in text
    assert "65,536" in text and "12.50" in text and "median of 5 passes" in text
    assert "nope: 1,234 GFLOP/s at 16 tokens" in text
    assert " 10%" in text and "spread: half of these ratios" in text


def test_a_time_is_that_of_the_reference_times_the_ratio():
    text = table([row("nope", 16, 1.0), row("rope", 16, 1.5)])
    assert [line.split()[3:5] for line in text.splitlines() if " fused " in line] == [
        ["10", "100,000"],
        ["15", "66,667"],
    ]


# Mistakes


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["mine"], "unknown encoding 'mine'"),
        (["rope", "--lengths", "5x"], "positive whole numbers, and '5x' is not one"),
        (["rope", "--lengths", "1,16"], "--lengths takes lengths of at least 2 tokens, and 1 is shorter"),
        (["rope", "--repeats", "0"], "--repeats"),
        (["rope", "data=stdlib"], "data=stdlib has no effect: speed reads random bytes"),
        (["rope", "eval.targets=3"], "eval.targets=3 has no effect"),
        (["rope", "--train", "train.length=32"], "each of --lengths is the training length in turn"),
        (["rope", "--train", "eval.precision=bf16"], "eval.precision=bf16 has no effect"),
        (["rope", "--output", "speed.txt"], "--output speed.txt: the name must end with .csv"),
        (["rope", "--output", "nowhere/speed.csv"], "there is no folder nowhere"),
        (["rope", "--output", "my/odd.csv"], "my/odd.csv has other columns than this pe-bench writes"),
        (["rope", "--output", "my/bytes.csv"], "my/bytes.csv cannot be read"),
        (["rope", "results_dir=/dev/null"], "results_dir=/dev/null: /dev/null is not a folder"),
        (["rope", "device=cuda:99"], "device=cuda:99 was not found"),
        (["learned", "encoding.max_position=0"], "max_position"),
    ],
)
def test_a_mistake_is_one_line_and_exit_2_and_nothing_is_written(command, folder, arguments, message):
    files = {"my/encoding/mine.yaml": "name: mine\n", "my/odd.csv": "encoding,length\nrope,16\n"}
    Path("my/encoding").mkdir(parents=True)
    for name, text in files.items():
        Path(name).write_text(text, encoding="utf-8")
    Path("my/bytes.csv").write_bytes(b"\xff\xfe\x00")
    before = sorted(path.name for path in Path().rglob("*"))
    outcome = command("speed", *arguments)
    assert outcome.code == 2 and not outcome.out, outcome.err
    assert message in outcome.line and outcome.err == f"{outcome.line}\n"
    assert sorted(path.name for path in Path().rglob("*")) == before
