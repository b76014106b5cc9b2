"""Reports of made-up results, kept as text: what a change moves in any of them is seen in its diff.

`python -m pytest tests/report/test_goldens.py` with GOLDENS=write in the environment writes them anew.
"""

import os
from pathlib import Path

import pytest
from support.commands import Command
from support.golden_results import FOLDERS, FORMATS

GOLDENS = Path(__file__).parent / "goldens"


@pytest.mark.parametrize("name", FOLDERS)
def test_a_report_is_the_one_that_was_kept(
    name: str, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write, options = FOLDERS[name]
    write(tmp_path / "results")
    printed = [
        f"=== {title}\n{_report(command, [*options, *format_options], columns, monkeypatch)}"
        for title, (columns, format_options) in FORMATS.items()
    ]
    golden = GOLDENS / f"{name}.txt"
    if os.environ.get("GOLDENS") == "write":
        golden.write_text("".join(printed), encoding="utf-8")
    assert "".join(printed) == golden.read_text(encoding="utf-8")


def _report(command: Command, options: list[str], columns: int, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("COLUMNS", str(columns))
    outcome = command("report", *options)
    assert outcome.code == 0, outcome.err
    return outcome.out
