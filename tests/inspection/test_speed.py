"""What `speed` shows: its table, its picture, and mistakes. No test says how fast anything is."""

import subprocess
import sys
from pathlib import Path

import pytest
from support.timed import row

from pe_bench.inspection.speed import Row, curves_of, grid_of, measure, ordered, read_request
from pe_bench.system.grid import draw

ONE_CLASS = Path(__file__).with_name("test_speed_passes.py")  # a file with one class


def test_without_names_every_encoding_is_meant(folder):
    (folder / "my" / "encoding").mkdir(parents=True)
    (folder / "my" / "encoding" / "root.yaml").write_text("name: root\n", encoding="utf-8")
    asked = read_request(["threads=1"], False, [folder / "my"])
    assert {"nope", "rope", "yarn", "root"} <= set(asked.names) and len(asked.names) > 50
    assert not asked.is_choice, "and that is said"
    chosen = read_request(["rope", "threads=1"], False, [])
    assert chosen.names == ("rope",) and chosen.is_choice


# Table and picture


def table(rows: list[Row], width: int = 80) -> str:
    return "\n".join(line.plain for line in draw(grid_of(rows), width))


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
    spread = {"relative_low": 11.25, "relative_high": 13.75}
    rows = [row("nope", 16, 1.0, **long), row("rope+sliding_window", 65_536, 12.5, **spread, **long)]
    rows.append(row("rope a=[red]", 65_536, None, status="out_of_memory", reason="[bold] too much"))
    text = table(rows)
    assert max(map(len, text.splitlines())) <= 80
    assert "rope a=[red]" in text and "[bold] too much" in text and "out of memory" in text
    assert "65,536" in text and "12.50" in text and "median of 5 passes" in text
    assert "nope: 1,234 GFLOP/s at 16 tokens" in text


@pytest.mark.parametrize(("threads", "advice"), [(1, "machine"), (2, "try threads=1")])
def test_noisy_passes_are_named_and_one_thread_is_proposed_to_those_who_have_more(threads, advice):
    noisy = {"milliseconds_min": 1.0, "milliseconds_max": 9.0, "threads": threads}
    text = table([row("nope", 16, 1.0, **noisy)], 120)
    (note,) = [line for line in text.splitlines() if line.startswith("noisy: ")]
    assert note.startswith("noisy: passes of nope at 16 took 1 to 9 ms") and note.endswith(advice)


def test_curves_have_a_point_where_there_is_a_number():
    rows = [row("nope", 16, 1.0), row("rope", 32, 1.2), row("rope", 16, 1.1), row("none", 16, None)]
    assert curves_of(rows) == {"nope": [(16, 1.0)], "rope": [(16, 1.1), (32, 1.2)]}


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
        ([str(ONE_CLASS)], f"{ONE_CLASS}:Scripted"),
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
    (reference, rope) = read_request(["rope", "model.d_ff=24"], False, []).at(16)
    assert (reference.config.model.d_model, rope.config.model.d_ff) == (16, 24)


def test_the_table_says_within_which_ratios_half_of_the_passes_lie():
    timing = measure.Timing([1.0] * 5, [1.0, 1.2, 1.3, 1.4, 9.0], None)
    assert timing.relative == 1.3 and timing.middle_half == pytest.approx((1.2, 1.4))
    spread = {"relative_low": 1.2, "relative_high": 1.4, "peak_memory_mb": 3.0}
    text = table([row("nope", 16, 1.0), row("rope", 16, 1.3, **spread)])
    assert " 8% " in text and "spread: half of these ratios" in text
