"""benchmarks/gpu.sh at its toy size on a CPU: its parts run, are done once, and can be done again."""

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "gpu.sh"


def gpu(results: Path, *parts: str) -> subprocess.CompletedProcess[str]:
    toy = {"GPU_TOY": "1", "GPU_RESULTS": str(results), "OMP_NUM_THREADS": "1", "GPU_TEXT": ""}
    return subprocess.run(
        [SCRIPT, *parts], capture_output=True, text=True, env={**os.environ, **toy}, check=False
    )


@pytest.mark.full
def test_all_parts_run_and_parts_that_are_done_are_left(tmp_path: Path) -> None:
    done = gpu(tmp_path, "trainig")
    assert done.returncode == 2 and "no part trainig" in done.stderr and not [*tmp_path.iterdir()]
    done = gpu(tmp_path)
    assert done.returncode == 0, done.stderr + done.stdout
    output = (tmp_path / "correctness.txt").read_text()
    assert "rope: right" in output and "fire: right" in output
    assert "gpu: Seven encodings at 30 million parameters" in done.stdout
    assert (tmp_path / "training.csv").is_file() and (tmp_path / "speed.csv").is_file()
    parts = ("correctness", "training", "scoring", "together", "study")
    assert gpu(tmp_path).stdout.splitlines() == [f"{part}: done already" for part in parts]
