"""How a command ends: with its code, and without a word where its reader is gone."""

import subprocess
import sys

import pytest


def test_a_reader_that_is_gone_ends_a_command_without_a_word() -> None:
    command = [sys.executable, "-m", "pe_bench", "train", "--cfg", "job"]
    done = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert done.stdout is not None and done.stderr is not None
    done.stdout.close()
    assert done.stderr.read() == ""
    done.stderr.close()
    assert done.wait() in (0, 1)


@pytest.mark.parametrize(
    ("ends", "code", "told"), [("atexit.register(print, 'written') and 3", 3, "written\n"), ("1 / 0", 1, "")]
)
def test_a_command_ends_with_its_code_and_with_all_that_was_left_to_do(
    ends: str, code: int, told: str
) -> None:
    lines = ("import atexit", "from pe_bench.cli import program", f"program.run = lambda _: {ends}")
    program = "\n".join((*lines, "program.main()"))
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (code, told)
    assert ("ZeroDivisionError" in ended.stderr) == (code == 1)
