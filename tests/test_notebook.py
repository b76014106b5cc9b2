"""docs/quick-start.ipynb runs from its first cell to its last, in a kernel as a reader's."""

import os
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient
from support.documentation import SHORT

from pe_bench.config.compose import OVERRIDES_VARIABLE

NOTEBOOK = Path(__file__).parent.parent / "docs" / "quick-start.ipynb"


def read_notebook() -> Any:
    return nbformat.read(NOTEBOOK, as_version=4)


def code_cells(notebook: Any) -> list[Any]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def text_of(cell: Any) -> str:
    """Return what a cell shows, but for its messages on standard error."""
    shown = [output for output in cell.outputs if output.get("name") != "stderr"]
    return "\n".join(output.get("text") or output.data.get("text/plain", "") for output in shown)


def has_picture(cell: Any) -> bool:
    return any("image/png" in output.get("data", {}) for output in cell.outputs)


def test_the_notebook_is_kept_with_its_outputs_which_have_verdicts_and_a_picture() -> None:
    trained, _, _, frame, picture = code_cells(read_notebook())
    assert "works to" in text_of(trained) and "fails" in text_of(frame) and has_picture(picture)
    assert NOTEBOOK.stat().st_size < 300_000


def test_the_notebook_runs_as_it_stands(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(OVERRIDES_VARIABLE, SHORT)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("IPYTHONDIR", str(folder / "ipython"))
    notebook = read_notebook()
    where = {"metadata": {"path": str(folder / "work")}}
    NotebookClient(notebook, timeout=600, kernel_name="python3", resources=where).execute()
    trained, scores, scored, frame, picture = code_cells(notebook)
    assert "rope" in text_of(trained) and "tokens/s" not in text_of(trained)
    assert "\x1b" not in text_of(trained) and text_of(trained).count("bits per byte") == 1
    assert "perplexity" in text_of(scores)
    assert "yarn factor=auto" in text_of(scored) and "384" in text_of(scored)
    assert "alibi" in text_of(frame) and "verdict" in text_of(frame)
    assert has_picture(picture)
