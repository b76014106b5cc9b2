"""benchmarks/gpu.sh at its toy size on a CPU: parts run, are done once, and leave a table when stopped."""

import os
import signal
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "gpu.sh"


def gpu(results: Path, *parts: str) -> subprocess.CompletedProcess[str]:
    toy = {"GPU_TOY": "1", "GPU_RESULTS": str(results), "OMP_NUM_THREADS": "1", "GPU_TEXT": ""}
    return subprocess.run(
        [SCRIPT, *parts], capture_output=True, text=True, env={**os.environ, **toy}, check=False
    )


def rows_after(output: str, part: str) -> list[list[str]]:
    """Return the words of each line of a part in the last table."""
    text = output.partition(f"== {part}\n")[2].partition("\n== ")[0]
    return [line.split() for line in text.splitlines()]


def test_a_misspelt_part_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    done = gpu(tmp_path / "results", "trainig")
    assert done.returncode == 2 and "no part trainig: agreement, correctness, training" in done.stderr
    assert not [*tmp_path.iterdir()]


@pytest.mark.full
def test_all_parts_run_and_parts_that_are_done_are_left(tmp_path: Path) -> None:
    done = gpu(tmp_path)
    assert done.returncode == 0, done.stderr + done.stdout
    losses = [row for row in rows_after(done.stdout, "agreement") if row[:1] == ["step"]]
    assert [row[1] for row in losses] == ["10", "20"] and all(row[2] == row[3] for row in losses)
    bits = [row for row in rows_after(done.stdout, "agreement") if row[:1] == ["length"]]
    assert len(bits) == 11 and all(len(row) == 5 for row in bits)
    assert {row[0] for row in rows_after(done.stdout, "correctness")} == {"paths", "rope", "gated_deltanet"}
    assert ["encoding", "tokens/s", "TFLOP/s", "of", "the", "product's"] in rows_after(
        done.stdout, "training"
    )
    assert "rope" in {row[0] for row in rows_after(done.stdout, "study") if row}
    repeated = gpu(tmp_path)
    parts = ("agreement", "correctness", "training", "scoring", "study")
    assert repeated.stdout.splitlines()[: len(parts)] == [f"{part}: done already" for part in parts]
    assert rows_after(repeated.stdout, "study") == rows_after(done.stdout, "study")


@pytest.mark.full
def test_the_longer_form_runs_the_study_and_several_processes(tmp_path: Path) -> None:
    done = gpu(tmp_path, "--long")
    assert done.returncode == 0, done.stderr + done.stdout
    assert "gpu: Seven encodings at 30 million parameters" in done.stdout
    assert {row[0] for row in rows_after(done.stdout, "correctness") if row} >= {"rope", "fire"}
    assert rows_after(done.stdout, "together")


def test_what_is_done_is_in_the_table_of_a_stopped_script(tmp_path: Path) -> None:
    toy = {"GPU_TOY": "1", "GPU_RESULTS": str(tmp_path), "OMP_NUM_THREADS": "1", "GPU_TEXT": ""}
    process = subprocess.Popen(
        [SCRIPT, "scoring", "study"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **toy},
    )
    assert process.stdout
    while not process.stdout.readline().startswith("study: at most"):
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 1 and "stopped" in errors and "Traceback" not in errors
    summary = (tmp_path / "summary.txt").read_text()
    assert output.endswith(summary) and "== scoring\n" in summary
    assert (tmp_path / "scoring.done").exists() and not (tmp_path / "study.done").exists()
