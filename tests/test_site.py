"""The documentation is a site: built with warnings as errors, complete, and readable without a network."""

import html
import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

import pe_bench
from pe_bench.cli.app import app
from pe_bench.commands.reproduce.ledger import LedgerEntry
from pe_bench.commands.reproduce.papers import read_papers
from pe_bench.config.groups import keys, names_in

ROOT = Path(__file__).parent.parent


def test_the_reference_has_every_command_option_key_and_call() -> None:
    specification = importlib.util.spec_from_file_location("site_hooks", ROOT / "scripts" / "site.py")
    assert specification is not None and specification.loader is not None
    hooks = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(hooks)
    commands, listed = hooks._commands(), typer.main.get_command(app).commands  # type: ignore[attr-defined]
    params = [param for command in listed.values() for param in command.params]
    options = {name for param in params if param.param_type_name == "option" for name in param.opts}
    assert options > {"--lengths", "--with"}
    assert [name for name in (*listed, *options) if name not in commands] == []
    shown = hooks._keys()
    assert [key.name for key in keys() if key.name not in shown or key.meaning not in shown] == []
    calls = hooks._python()
    assert all(f"pe_bench.{name}(" in calls for name in pe_bench.__all__ if name[0].islower())
    assert pe_bench.train.__doc__ and pe_bench.train.__doc__.splitlines()[0] in calls


def test_each_claim_of_the_ledger_is_on_the_page_of_its_paper() -> None:
    specification = importlib.util.spec_from_file_location("site_hooks", ROOT / "scripts" / "site.py")
    assert specification is not None and specification.loader is not None
    hooks = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(hooks)
    papers = {paper: [LedgerEntry(claim, ()) for claim in paper.claims] for paper in read_papers()}
    pages = hooks._claim_pages(papers)
    for paper, entries in papers.items():
        assert f"(claims/{paper.name}.md)" in pages["claims"]
        page = pages[f"claims/{paper.name}"]
        assert [entry.sentence for entry in entries if entry.sentence not in page] == []
        assert [entry.claim.origin for entry in entries if entry.claim.origin not in page] == []
        assert paper.link in page and f"--claims {paper.name}" in page


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", str(folder)]
    variables = {"PYTHONPATH": str(ROOT), "NO_MKDOCS_2_WARNING": "1", "SITE_PICTURES": "alibi"}
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True, env={**os.environ, **variables})
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def text_of(page: Path) -> str:
    """Return the text of a page's article without markup."""
    [article] = re.findall(r"<article.*?</article>", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    return html.unescape(re.sub(r"<[^>]+>", "", article))


@pytest.mark.full
def test_every_page_is_in_the_site_and_its_search_which_knows_other_names(site: Path) -> None:
    pages = [f"docs/{path.stem}.html" for path in (ROOT / "docs").glob("*.md")]
    assert len(pages) > 5 and all((site / page).is_file() for page in pages)
    entries: list[dict[str, Any]] = json.loads((site / "search/search_index.json").read_text())["docs"]
    assert {*pages, "index.html", "docs/reference/keys.html"} <= {entry["location"] for entry in entries}
    for elsewhere, here in {"ABF": "rope", "mscale": "yarn", "CABLE": "fox", "NAPE": "alibi"}.items():
        matching = {entry["location"].partition("#")[0] for entry in entries if elsewhere in entry["text"]}
        assert f"docs/reference/encodings/{here}.html" in matching


@pytest.mark.full
def test_nothing_is_asked_of_the_network_to_read_it(site: Path) -> None:
    loads = r"<(?:script|img|iframe)[^>]*src=[\"']?(?:https?:)?//|<link[^>]*href=[\"']?(?:https?:)?//"
    for pattern, suffix in ((loads, "html"), (r"url\([\"']?(?:https?:)?//|@import", "css")):
        paths = [*site.rglob(f"*.{suffix}")]
        assert paths and not [path for path in paths if re.search(pattern, path.read_text(encoding="utf-8"))]


@pytest.mark.full
def test_every_encoding_has_a_page_with_its_formula_and_what_is_known_of_it(site: Path) -> None:
    reference = site / "docs" / "reference"
    encodings = text_of(reference / "encodings.html")
    for name in names_in("encoding"):
        assert name in encodings
        assert "<math" in (reference / "encodings" / f"{name}.html").read_text(encoding="utf-8"), name
    assert "<svg" in (reference / "encodings" / "alibi.svg").read_text(encoding="utf-8")
    for name, facts in (
        ("fox", ("CABLE", "Past the training length", "arXiv:2503.02130", "@misc{lin2025fox")),
        ("alibi", ("Measured", "alibi (stdlib)", "times as long as with nope")),
    ):
        page = text_of(reference / "encodings" / f"{name}.html")
        assert [fact for fact in facts if fact not in page] == []


@pytest.mark.full
def test_a_notebook_is_a_page_with_its_outputs(site: Path) -> None:
    for name in ("quick-start", "own-encoding"):
        text = text_of(site / "docs" / f"{name}-notebook.html")
        assert "import pe_bench" in text and "bits per byte" in text and '"cell_type"' not in text
    assert "docs/quick-start-notebook.html" in (site / "index.html").read_text(encoding="utf-8")
