"""What encodings cost: rows, paths, failures, interruptions, mistakes. No test says how fast it is."""

import csv
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

import pe_bench.model.attention
from pe_bench.data.tokenizer import ByteTokenizer
from pe_bench.errors import RunError
from pe_bench.inspection.resolve import resolve
from pe_bench.inspection.speed import limits, measure, request
from pe_bench.inspection.speed.bench import Bench
from pe_bench.inspection.speed.measure import is_due, peak_of, time_pass
from pe_bench.inspection.speed.passes import Pass, ScoringPass, TrainingPass
from pe_bench.inspection.speed.picture import curves_of
from pe_bench.inspection.speed.request import Request, read_request
from pe_bench.inspection.speed.rows import COLUMNS, Row, read_rows, write_rows
from pe_bench.inspection.speed.table import Limits, ordered, render

TINY = (
    "threads=1",
    *("model.d_model=16", "model.n_layers=2", "model.n_heads=2", "model.d_ff=24"),
    *("train.length=16", "train.batch_tokens=64"),
)
LENGTHS = ("--lengths", "16,32", "--repeats", "1")
TRAINED = [argument for argument in TINY if not argument.startswith("train.length")]
CPU = torch.device("cpu")
OWN = """
import torch
from pe_bench.encodings import LayerEncoding


class RootBias(LayerEncoding):
    def distance_bias(self, distance):
        return -distance.sqrt().expand(2, -1)
"""

MISTAKEN = OWN.replace("sqrt()", "sqroot()")
FAILS_LATER = OWN.replace(
    "        return",
    """        if len(distance) > 20:
            raise IndexError("too many\\nby far")
        return""",
)


@pytest.fixture
def speed(command, folder, monkeypatch):
    """Time encodings in a model of two layers, once each."""
    monkeypatch.setitem(limits.MATRIX_SIDES, "cpu", (64,))
    monkeypatch.setitem(limits.COPIED_BYTES, "cpu", 2**16)
    return lambda *arguments: command(
        "speed", *LENGTHS, *(arguments if "--train" in arguments else (*TINY, *arguments))
    )


def read(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def written() -> list[dict[str, str]]:
    return read(Path("results") / "speed.csv")


def row(encoding: str, length: int, relative: float | None, **values) -> Row:
    numbers = {"milliseconds": 10.0, "tokens_per_second": 1e5, "relative": relative, "repeats": 5}
    known = {} if relative is None else numbers
    return Row(encoding, "", "tiny", length, "score", 1, "fused", **known, **values)


class Scripted(Pass):
    """Takes as many seconds of a clock of its own as it is told, one after the other."""

    device = CPU

    def __init__(self, clock: list[float], seconds: list[float]):
        self.clock, self.seconds = clock, iter(seconds)

    def run(self) -> None:
        self.clock[0] += next(self.seconds)


# Rows


def test_every_encoding_has_a_row_at_every_length_beside_the_reference(speed):
    outcome = speed("rope", "t5")
    assert outcome.code == 0, outcome.err
    rows = written()
    assert tuple(rows[0]) == COLUMNS
    names = ["nope", "rope", "t5"]
    assert [(one["encoding"], one["length"]) for one in rows] == [(n, m) for m in ("16", "32") for n in names]
    for one in rows:
        assert (one["status"], one["pass"], one["batch"], one["model"]) == ("ok", "score", "1", "tiny")
        assert (one["dtype"], one["device"], one["threads"], one["repeats"]) == ("float32", "cpu", "1", "1")
        assert float(one["milliseconds_min"]) <= float(one["milliseconds"]) <= float(one["milliseconds_max"])
        assert float(one["relative"]) > 0 and one["path"] and one["torch"] and one["date"]
        wanted = int(one["length"]) / float(one["milliseconds"]) * 1e3
        assert float(one["tokens_per_second"]) == pytest.approx(wanted, rel=1e-2)
    assert {one["relative"] for one in rows if one["encoding"] == "nope"} == {"1.0"}
    assert all(float(one["share_of_matmul_rate"]) > 0 for one in rows)
    assert "model.d_model=16" in rows[0]["setting"]


def test_the_table_goes_to_standard_output_and_progress_to_standard_error(speed):
    outcome = speed("rope")
    model = "tiny model with d_model=16 n_layers=2 n_heads=2 d_ff=24"
    assert f"scoring one window, {model}, random bytes, float32" in outcome.out
    assert "rope" in outcome.out and "x nope" in outcome.out
    assert "this machine: " in outcome.out and " GB/s in a copy" in outcome.out
    assert "speed: rope, 32 tokens: " in outcome.err and "speed: " not in outcome.out
    assert "wrote results/speed.csv and results/speed.png" in outcome.err


def test_the_picture_is_drawn_and_a_second_command_replaces_it(speed):
    speed("rope", "alibi")
    picture = Path("results") / "speed.png"
    assert picture.read_bytes().startswith(b"\x89PNG") and picture.stat().st_size > 5_000
    before = picture.read_bytes()
    outcome = speed("t5")
    assert "alibi" not in outcome.out, "the table and the picture are of one command"
    assert picture.read_bytes() != before


def test_rows_of_other_measurements_stay_and_those_measured_again_are_replaced(speed):
    speed("rope", "alibi")
    before = written()
    assert speed("rope", "--lengths", "32,48").code == 0
    kept = [one for one in before if (one["encoding"], one["length"]) not in {("nope", "32"), ("rope", "32")}]
    after = written()
    assert after[: len(kept)] == kept
    added = [(one["encoding"], one["length"]) for one in after[len(kept) :]]
    assert added == [("nope", "32"), ("rope", "32"), ("nope", "48"), ("rope", "48")]
    assert speed("rope", "seed=1").code == 0
    assert written()[: len(after)] == after, "another setting is another measurement"


def test_rows_of_another_machine_stay(tmp_path):
    file = tmp_path / "speed.csv"
    here, there = (row("rope", 16, 1.0, processor=name) for name in ("here", "there"))
    write_rows(file, [there])
    write_rows(file, [here])
    write_rows(file, [here, row("rope", 16, 1.0, processor="here", threads=2)])
    assert [(one["processor"], one["threads"]) for one in read(file)] == [
        ("there", "0"),
        ("here", "0"),
        ("here", "2"),
    ]


def test_of_two_commands_at_once_neither_loses_the_others_rows(tmp_path, monkeypatch):
    def slow(path):
        found = read_rows(path)
        time.sleep(0.1)
        return found

    monkeypatch.setattr("pe_bench.inspection.speed.rows.read_rows", slow)
    file = tmp_path / "speed.csv"
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda name: write_rows(file, [row(name, 16, 1.0)]), ["rope", "alibi", "fox"]))
    assert {one["encoding"] for one in read(file)} == {"rope", "alibi", "fox"}


def test_a_file_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match=r"speed\.csv could not be written"):
        write_rows(tmp_path / "file" / "speed.csv", [row("rope", 16, 1.0)])


def test_a_folder_that_cannot_be_written_is_told_before_anything_is_measured(command, folder, monkeypatch):
    monkeypatch.setattr("pe_bench.cli.speed.os.access", lambda *_: False)
    for arguments in ([], ["--output", "mine.csv"]):
        outcome = command("speed", "rope", *arguments)
        assert outcome.code == 2 and "cannot be written: name another with --output" in outcome.line
        assert not outcome.out


def test_rows_that_could_not_be_written_are_not_said_to_be(speed, monkeypatch):
    def full(*_):
        raise RunError("results/speed.csv could not be written: no space left on device")

    monkeypatch.setattr("pe_bench.inspection.speed.rows.write_rows", full)
    outcome = speed("rope")
    assert outcome.code == 1 and "wrote" not in outcome.err and not outcome.out


@pytest.mark.parametrize("content", [b"encoding,length\nrope,16\n", b"\xff\xfe\x00"])
def test_a_file_of_something_else_is_left_as_it_is(command, folder, content):
    Path("mine.csv").write_bytes(content)
    outcome = command("speed", "rope", "--output", "mine.csv")
    assert outcome.code == 2 and "mine.csv" in outcome.line and "move it away" in outcome.line
    assert Path("mine.csv").read_bytes() == content


def test_the_file_and_the_picture_lie_where_the_user_says(speed, folder):
    assert speed("rope", "--output", "mine.csv").code == 0
    assert {path.name for path in Path().iterdir()} == {"mine.csv", "mine.csv.lock", "mine.png"}
    assert speed("rope", f"results_dir={folder / 'there'}").code == 0
    assert (folder / "there" / "speed.csv").is_file()


def test_options_values_files_and_modifiers_make_encodings_as_in_show(speed, folder):
    (folder / "work" / "mine.py").write_text(OWN, encoding="utf-8")
    assert speed("rope", "mine.py:RootBias", "base=500,700", "modifier=[logn]").code == 0
    labels = ["nope", "rope+logn base=500.0", "rope+logn base=700.0", "RootBias+logn"]
    assert list(dict.fromkeys(one["encoding"] for one in written())) == labels
    assert "modifier" not in written()[0]["setting"]


def test_the_reference_is_not_measured_twice_and_stands_first(speed):
    assert speed("rope", "nope").code == 0
    assert [one["encoding"] for one in written()] == ["nope", "rope", "nope", "rope"]


def test_an_option_that_is_missing_is_an_example_and_that_is_said(speed):
    outcome = speed("longrope", "rope")
    assert outcome.code == 0, outcome.err
    assert outcome.err.count("longrope has no default for long_factors: timed with long_factors=") == 1
    assert "modifiers" not in outcome.err


def test_scores_in_half_precision_say_so(speed):
    assert speed("alibi", "eval.precision=bf16").code == 0
    assert {one["dtype"] for one in written()} == {"bfloat16"}


def test_without_names_every_encoding_is_meant(folder):
    (folder / "my" / "encoding").mkdir(parents=True)
    (folder / "my" / "encoding" / "root.yaml").write_text("name: root\n", encoding="utf-8")
    asked = read_request(["threads=1"], False, [folder / "my"])
    assert {"nope", "rope", "yarn", "root"} <= set(asked.names) and len(asked.names) > 50
    assert not asked.is_choice, "and that is said"
    chosen = read_request(["rope", "threads=1"], False, [])
    assert chosen.names == ("rope",) and chosen.is_choice


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

        def run(*rest):
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
    speed("swan")
    assert "+" in written()[1]["path"] and "+" not in written()[0]["path"]


# What cannot be measured


def test_a_length_without_meaning_is_a_row_and_the_others_go_on(speed):
    outcome = speed("learned", "rope")
    assert outcome.code == 0, outcome.err
    found = {(one["encoding"], one["length"]): one for one in written()}
    failed = found["learned", "32"]
    assert failed["status"] == "undefined" and "max_position=16" in failed["reason"]
    assert failed["milliseconds"] == failed["relative"] == failed["peak_memory_mb"] == ""
    assert found["learned", "16"]["status"] == found["rope", "32"]["status"] == "ok"
    assert "undefined" in outcome.out and failed["reason"] in " ".join(outcome.out.split())


def test_too_little_memory_is_a_row_even_of_the_reference(monkeypatch):
    def too_large(timed, *_):
        raise torch.OutOfMemoryError("it is too much\nby far") if timed.length == 32 else KeyError

    monkeypatch.setattr("pe_bench.inspection.speed.bench.time_pass", too_large)
    bench = Bench("", False, None, CPU, 1, 1e9)
    found = list(bench.rows([32], lambda _: resolve(["nope", "rope", *TINY]), lambda *_: None))
    assert [(one.status, one.reason, one.batch) for one in found] == [
        ("out_of_memory", "it is too much by far", 1)
    ] * 2


def test_without_a_reference_there_is_a_time_and_no_ratio():
    (subject,) = resolve(["rope", *TINY])
    found, _ = Bench("", False, 1, CPU, 1, 1e9).row(subject, 16, None)
    assert found.milliseconds is not None and found.relative is None and found.status == "ok"


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


def test_a_fault_leaves_the_picture_of_the_last_command(speed, monkeypatch):
    speed("rope")
    picture = Path("results") / "speed.png"
    before = picture.read_bytes()

    def faulty(self):
        raise RuntimeError("a fault")

    monkeypatch.setattr(TrainingPass, "run", faulty)
    told = []
    monkeypatch.setattr(
        "pe_bench.inspection.speed.bench.time_pass", lambda *rest: told.append(1) or time_pass(*rest)
    )
    with pytest.raises(RuntimeError, match="a fault"):
        speed("rope", "--train", *TRAINED)
    assert told and picture.read_bytes() == before


@pytest.mark.parametrize("kind", ["", "--train"])
def test_own_code_that_fails_is_one_line_before_anything_is_measured_or_written(speed, kind):
    Path("mine.py").write_text(OWN, encoding="utf-8")
    Path("mistaken.py").write_text(MISTAKEN, encoding="utf-8")
    outcome = speed("mine.py:RootBias", "mistaken.py:RootBias", *([kind, *TRAINED] if kind else []))
    assert outcome.code == 2 and not outcome.out
    assert outcome.err == outcome.line + "\n"
    assert "mistaken.py:8: AttributeError: 'Tensor' object has no attribute 'sqroot'" in outcome.line
    assert not Path("results").exists()


def test_own_code_that_fails_at_a_length_is_a_row_with_its_line_and_the_others_go_on(speed):
    Path("mine.py").write_text(FAILS_LATER, encoding="utf-8")
    outcome = speed("mine.py:RootBias", "rope")
    assert outcome.code == 0, outcome.err
    found = {(one["encoding"].partition("@")[0], one["length"]): one for one in written()}
    failed = found["RootBias", "32"]
    assert failed["status"] == "failed" and failed["milliseconds"] == ""
    assert failed["reason"].endswith("mine.py:9: IndexError: too many")
    assert found["RootBias", "16"]["status"] == found["rope", "32"]["status"] == "ok"
    assert "failed" in outcome.out and failed["reason"] in " ".join(outcome.out.split())


def test_values_that_are_not_finite_are_told_before_anything_is_measured(speed):
    Path("mine.py").write_text(OWN.replace("sqrt()", "log()"), encoding="utf-8")
    outcome = speed("mine.py:RootBias")
    assert outcome.code == 2
    assert outcome.line.endswith("not finite in a window of 16 tokens: try `pe-bench check mine.py:RootBias`")
    assert not Path("results").exists()


def test_ctrl_c_keeps_what_was_measured(speed, monkeypatch):
    told = []

    def interrupted(*arguments):
        told.append(arguments)
        if len(told) == 4:
            raise KeyboardInterrupt
        return time_pass(*arguments)

    monkeypatch.setattr("pe_bench.inspection.speed.bench.time_pass", interrupted)
    outcome = speed("rope", "alibi")
    assert outcome.code == 130 and outcome.line == "pe-bench: interrupted"
    assert [one["encoding"] for one in written()] == ["nope", "rope", "alibi"]
    assert "alibi" in outcome.out and (Path("results") / "speed.png").is_file()


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


# Table and picture


def test_the_table_begins_with_the_cheapest_at_the_longest_length():
    rows = [
        *(row("nope", 16, 1.0), row("dear", 16, 1.0), row("cheap", 16, 3.0), row("none", 16, 0.5)),
        *(row("nope", 32, 1.0), row("dear", 32, 9.0), row("cheap", 32, 0.9), row("none", 32, None)),
    ]
    assert list(dict.fromkeys(one.encoding for one in ordered(rows))) == ["cheap", "nope", "dear", "none"]
    assert [one.length for one in ordered(rows)] == [16, 32] * 4


def test_the_table_fits_eighty_columns_and_shows_brackets_as_they_are():
    long = {
        "share_of_matmul_rate": 0.6,
        "dtype": "float32",
        "threads": 2,
        "device": "cpu",
        "processor": "AMD EPYC 9654 96-Core Processor",
        "torch": "2.13.0+cpu",
        "pe_bench": "0.1.0",
    }
    spread = {"relative_low": 11.25, "relative_high": 13.75}
    rows = [row("nope", 16, 1.0, **long), row("rope+sliding_window", 65_536, 12.5, **spread, **long)]
    rows.append(row("rope a=[red]", 65_536, None, status="out_of_memory", reason="[bold] too much"))
    text = render(rows, Limits(1.234e12, 12e9))
    assert max(map(len, text.splitlines())) <= 80
    assert "rope a=[red]" in text and "[bold] too much" in text and "out of memory" in text
    assert "65,536" in text and "12.50" in text and "median of 5 passes" in text
    assert "this machine: 1.23 TFLOP/s in float32 matrix products, 12 GB/s in a copy" in text
    assert "nope reaches 60% of that matrix speed at 16 tokens" in text


@pytest.mark.parametrize(("threads", "advice"), [(1, "machine"), (2, "try threads=1")])
def test_noisy_passes_are_named_and_one_thread_is_proposed_to_those_who_have_more(threads, advice):
    noisy = {"milliseconds_min": 1.0, "milliseconds_max": 9.0, "threads": threads}
    text = render([row("nope", 16, 1.0, **noisy)], Limits(1e12, 1e9))
    (note,) = [line for line in text.splitlines() if line.startswith("noisy: ")]
    assert note.startswith("noisy: passes of nope at 16 took 1 to 9 ms") and note.endswith(advice)


def test_curves_have_a_point_where_there_is_a_number():
    rows = [row("nope", 16, 1.0), row("rope", 32, 1.2), row("rope", 16, 1.1), row("none", 16, None)]
    assert [(one.label, one.lengths, one.relative) for one in curves_of(rows)] == [
        ("nope", [16], [1.0]),
        ("rope", [16, 32], [1.1, 1.2]),
    ]


# Mistakes


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["ropee"], "unknown encoding 'ropee': did you mean 'rope'?"),
        (["rope", "model.d_modell=32"], "did you mean 'model.d_model'?"),
        (["rope", "bas=3"], "unknown key 'encoding.bas'"),
        (["rope", "treads=1"], "unknown key 'treads': did you mean 'threads'?"),
        (["rope", "zzz=1"], "unknown key 'zzz': there are: base, "),
        (["mine"], "encoding/mine.yaml of your own is found with --config-dir FOLDER"),
        ([f"{Path(__file__)}"], f"{Path(__file__)}:Scripted"),
        (["rope", "--lengths", "5x"], "positive whole numbers, and '5x' is not one"),
        (["rope", "--lengths", "1,16"], "--lengths takes lengths of at least 2 tokens, and 1 is shorter"),
        (["rope", "--repeats", "0"], "'0' is not a positive whole number"),
        (["rope", "data=stdlib"], "data=stdlib has no effect: speed reads random bytes"),
        (["rope", "eval.targets=3"], "eval.targets=3 has no effect"),
        (["rope", "--train", "train.length=32"], "each of --lengths is the training length in turn"),
        (["rope", "--train", "eval.precision=bf16"], "eval.precision=bf16 has no effect"),
        (["rope", "--output", "speed.txt"], "--output speed.txt: the name must end with .csv"),
        (["rope", "--output", "nowhere/speed.csv"], "there is no folder nowhere"),
        (["rope", "results_dir=/dev/null"], "results_dir=/dev/null: /dev/null is not a folder"),
        (["rope", "--config-dir", "nowhere"], "--config-dir nowhere is not a folder"),
        (["rope,alibi"], "name them with spaces between"),
        (["rope", "device=cuda:99"], "device=cuda:99 was not found"),
        (["learned", "encoding.max_position=0"], "max_position"),
    ],
)
def test_a_mistake_is_one_line_and_exit_2_and_nothing_is_written(command, folder, arguments, message):
    outcome = command("speed", *arguments)
    assert outcome.code == 2, outcome.err
    assert message in outcome.line
    assert list(Path().iterdir()) == []


def test_an_encoding_in_a_folder_beside_is_found_with_config_dir_and_that_is_said(command, folder):
    (folder / "work" / "my" / "encoding").mkdir(parents=True)
    (folder / "work" / "my" / "encoding" / "rope_x.yaml").write_text("name: rope_x\n", encoding="utf-8")
    outcome = command("speed", "rope_x")
    assert outcome.code == 2
    assert outcome.line.endswith("; my/encoding/rope_x.yaml is found with --config-dir my")


def test_a_mistake_is_told_before_torch_is_imported():
    program = (
        "import sys; from pe_bench.cli.program import run; "
        "mistakes = ['ropee'], ['rope', 'model.d_modell=32'], ['rope', '--lengths', 'x']; "
        "print([run(['speed', *arguments]) for arguments in mistakes], 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[2, 2, 2] False", done.stderr


def test_arguments_of_the_environment_come_first(monkeypatch):
    monkeypatch.setenv("PE_BENCH_OVERRIDES", "model.d_model=16 eval.targets=6")
    (reference, rope) = request.read_request(["rope", "model.d_ff=24"], False, []).at(16)
    assert (reference.config.model.d_model, rope.config.model.d_ff) == (16, 24)


def test_the_table_says_within_which_ratios_half_of_the_passes_lie():
    timing = measure.Timing([1.0] * 5, [1.0, 1.2, 1.3, 1.4, 9.0], None)
    assert timing.relative == 1.3 and timing.middle_half == pytest.approx((1.2, 1.4))
    spread = {"relative_low": 1.2, "relative_high": 1.4}
    text = render([row("nope", 16, 1.0), row("rope", 16, 1.3, **spread)], Limits(1e12, 1e9))
    assert "1.20-1.40" in text and "half in: the range" in text


def test_a_file_of_an_older_version_is_read_without_the_columns_that_it_lacks(tmp_path):
    path = tmp_path / "speed.csv"
    write_rows(path, [row("nope", 16, 1.0)])
    lines = [line.split(",") for line in path.read_text().splitlines()]
    place = lines[0].index("relative_low")
    path.write_text("".join(",".join([*line[:place], *line[place + 2 :]]) + "\n" for line in lines))
    write_rows(path, [row("rope", 16, 1.3)])
    assert [found["encoding"] for found in read_rows(path)] == ["nope", "rope"]
