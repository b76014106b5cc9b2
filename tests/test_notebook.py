"""The notebooks of docs/ run from their first cell to their last, in a kernel as a reader's."""

import os
import re
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient
from support.documentation import SHORT

from pe_bench.config.compose import OVERRIDES_VARIABLE

DOCS = Path(__file__).parent.parent / "docs"
# What each code cell's output has in it after a run on the shortest budget.
SHOWN = {
    "quick-start": [
        ["rope", "bits per byte"],
        ["perplexity"],
        ["yarn factor=auto", "512"],
        ["alibi", "verdict"],
        [],
    ],
    "own-encoding": [
        ["Writing nape.py"],
        ["fails  nape.py:NAPE", "decay"],
        [],
        ["none fails", "family  bias"],
        [],
        ["NAPE", "bits per byte"],
        ["NAPE", "against alibi"],
    ],
}


def read_notebook(name: str) -> tuple[Any, list[Any]]:
    """Return a notebook, and its cells of code."""
    notebook = nbformat.read(DOCS / f"{name}.ipynb", as_version=4)
    return notebook, [cell for cell in notebook.cells if cell.cell_type == "code"]


def require_outputs(cells: list[Any], name: str) -> None:
    for cell, shown in zip(cells, SHOWN[name], strict=True):
        assert all(text in text_of(cell) for text in shown), cell.source
    assert any("image/png" in output.get("data", {}) for cell in cells for output in cell.outputs)


def text_of(cell: Any) -> str:
    """Return what a cell shows, without its messages on standard error and without colours."""
    shown = [output for output in cell.outputs if output.get("name") != "stderr"]
    texts = "\n".join(output.get("text") or output.data.get("text/plain", "") for output in shown)
    return re.sub(r"\x1b\[[\d;]*m", "", texts)


@pytest.mark.parametrize("name", SHOWN)
def test_a_notebook_is_kept_with_its_outputs_and_says_how_to_install(name: str) -> None:
    notebook, cells = read_notebook(name)
    require_outputs(cells, name)
    assert all(text in notebook.cells[0].source for text in ("git clone", "pip install ./pe-bench"))
    assert (DOCS / f"{name}.ipynb").stat().st_size < 300_000


def test_the_python_of_the_quick_start_runs(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(OVERRIDES_VARIABLE, SHORT)
    names: dict[str, Any] = {}
    for cell in read_notebook("quick-start")[1][:-1]:
        exec(cell.source.replace("512_000", "8_192"), names)
    printed = capsys.readouterr().out
    assert "bits per byte" in printed and "yarn factor=auto" in printed
    assert {"rope", "alibi"} <= {*names["frame"]["scored_with"]}


@pytest.mark.full
@pytest.mark.parametrize("name", SHOWN)
def test_a_notebook_runs_as_it_stands(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(OVERRIDES_VARIABLE, SHORT)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("IPYTHONDIR", str(folder / "ipython"))
    notebook, cells = read_notebook(name)
    for cell in cells:
        cell.source = cell.source.replace("minutes=10", "minutes=0.01")
    options = {"coalesce_streams": True, "resources": {"metadata": {"path": str(folder / "work")}}}
    NotebookClient(notebook, timeout=600, kernel_name="python3", **options).execute()
    require_outputs(cells, name)
    written = [output.get("text", "") for cell in cells for output in cell.outputs]
    assert not any(re.search(r"\x1b\[[\d;]*[^\d;m]", text) for text in written), "no cursor moves"
    assert not any("tokens/s" in text_of(cell) for cell in cells)
