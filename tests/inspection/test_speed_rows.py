"""The rows of `speed`: what is measured and written, and what cannot be."""

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from support.timed import CPU, TINY, TRAINED, read, row, written

from pe_bench.errors import RunError
from pe_bench.inspection.passes import ScoringPass, TrainingPass
from pe_bench.inspection.resolve import resolve
from pe_bench.inspection.speed import COLUMNS, Bench, read_rows, time_pass, write_rows

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
    """        if distance.max() > 20:
            raise IndexError("too many\\nby far")
        return""",
)


# Rows


def test_every_encoding_has_a_row_at_every_length_beside_the_reference(speed):
    outcome = speed("rope", "t5")
    assert outcome.code == 0, outcome.err
    rows = written()
    assert list(rows[0]) == COLUMNS
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
    assert all(float(one["gflops_per_second"]) > 0 for one in rows)
    assert "model.d_model=16" in rows[0]["setting"]


def test_the_table_goes_to_standard_output_and_progress_to_standard_error(speed):
    outcome = speed("rope")
    model = "tiny model with d_model=16 n_layers=2 n_heads=2 d_ff=24"
    assert f"scoring one window, {model}, random bytes, float32" in outcome.out
    assert "rope" in outcome.out and "x nope" in outcome.out
    assert "GFLOP/s at 32 tokens" in outcome.out
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

    monkeypatch.setattr("pe_bench.inspection.speed.read_rows", slow)
    file = tmp_path / "speed.csv"
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda name: write_rows(file, [row(name, 16, 1.0)]), ["rope", "alibi", "fox"]))
    assert {one["encoding"] for one in read(file)} == {"rope", "alibi", "fox"}


def test_a_file_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match=r"speed\.csv could not be written"):
        write_rows(tmp_path / "file" / "speed.csv", [row("rope", 16, 1.0)])


def test_a_folder_that_cannot_be_written_is_told_before_anything_is_measured(command, folder, monkeypatch):
    monkeypatch.setattr("pe_bench.cli.inspect.os.access", lambda *_: False)
    for arguments in ([], ["--output", "mine.csv"]):
        outcome = command("speed", "rope", *arguments)
        assert outcome.code == 2 and "cannot be written: name another with --output" in outcome.line
        assert not outcome.out


def test_rows_that_could_not_be_written_are_not_said_to_be(speed, monkeypatch):
    def full(*_):
        raise RunError("results/speed.csv could not be written: no space left on device")

    monkeypatch.setattr("pe_bench.cli.inspect.write_rows", full)
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

    monkeypatch.setattr("pe_bench.inspection.speed.time_pass", too_large)
    bench = Bench("", False, None, CPU, 1)
    found = list(bench.rows([32], lambda _: resolve(["nope", "rope", *TINY]), lambda *_: None))
    assert [(one.status, one.reason, one.batch) for one in found] == [
        ("out_of_memory", "it is too much by far", 1)
    ] * 2


def test_without_a_reference_there_is_a_time_and_no_ratio():
    (subject,) = resolve(["rope", *TINY])
    found, _ = Bench("", False, 1, CPU, 1).row(subject, 16, None)
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
        "pe_bench.inspection.speed.time_pass", lambda *rest: told.append(1) or time_pass(*rest)
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

    monkeypatch.setattr("pe_bench.inspection.speed.time_pass", interrupted)
    outcome = speed("rope", "alibi")
    assert outcome.code == 130 and outcome.line == "pe-bench: interrupted"
    assert [one["encoding"] for one in written()] == ["nope", "rope", "alibi"]
    assert "alibi" in outcome.out and (Path("results") / "speed.png").is_file()
