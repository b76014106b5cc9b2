"""The documentation is a site: built with warnings as errors, complete, and readable without a network."""

import html
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
from pe_bench.config.groups import keys, names_in

ROOT = Path(__file__).parent.parent


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
    article = re.search(r"<article.*?</article>", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert article is not None
    return html.unescape(re.sub(r"<[^>]+>", "", article[0]))


def test_every_page_of_docs_is_in_the_site_and_its_search(site: Path) -> None:
    pages = [f"docs/{path.stem}.html" for path in (ROOT / "docs").glob("*.md")]
    assert len(pages) > 5 and all((site / page).is_file() for page in pages)
    found = {
        entry["location"] for entry in json.loads((site / "search/search_index.json").read_text())["docs"]
    }
    assert {*pages, "index.html", "docs/reference/keys.html"} <= found


@pytest.mark.parametrize(
    ("elsewhere", "here"),
    [("ABF", "rope"), ("mscale", "yarn"), ("CABLE", "fox"), ("GNoPE", "cohere2"), ("NAPE", "alibi")],
)
def test_search_finds_an_encoding_by_its_other_names(site: Path, elsewhere: str, here: str) -> None:
    entries = json.loads((site / "search/search_index.json").read_text())["docs"]
    matching = {entry["location"] for entry in entries if elsewhere in entry["text"]}
    assert f"docs/reference/encodings/{here}.html" in {location.partition("#")[0] for location in matching}


def test_nothing_is_asked_of_the_network_to_read_it(site: Path) -> None:
    loads = re.compile(
        r"<(?:script|img|iframe)[^>]*src=[\"']?(?:https?:)?//|<link[^>]*href=[\"']?(?:https?:)?//"
    )
    styles = re.compile(r"url\([\"']?(?:https?:)?//|@import")
    pages, sheets = [*site.rglob("*.html")], [*site.rglob("*.css")]
    assert pages and sheets
    assert [page.name for page in pages if loads.search(page.read_text(encoding="utf-8"))] == []
    assert [sheet.name for sheet in sheets if styles.search(sheet.read_text(encoding="utf-8"))] == []


def test_the_reference_has_every_command_option_key_encoding_and_call(site: Path) -> None:
    reference = site / "docs" / "reference"
    commands, program = text_of(reference / "commands.html"), typer.main.get_command(app)
    listed: dict[str, Any] = program.commands  # type: ignore[attr-defined]
    params = [param for command in listed.values() for param in command.params]
    options = {name for param in params if param.param_type_name == "option" for name in param.opts}
    assert options > {"--lengths", "--with"}
    assert [name for name in (*listed, *options) if name not in commands] == []
    shown = text_of(reference / "keys.html")
    assert [key.name for key in keys() if key.name not in shown] == []
    assert [key.name for key in keys() if key.meaning.replace("`", "") not in shown] == []
    encodings = text_of(reference / "encodings.html")
    assert [name for name in names_in("encoding") if name not in encodings] == []
    page = text_of(reference / "encodings" / "fox.html")
    for fact in ("CABLE", "Past the training length", "arXiv:2503.02130", "@misc{lin2025fox"):
        assert fact in page, fact
    measured = text_of(reference / "encodings" / "alibi.html")
    assert "<svg" in (reference / "encodings" / "alibi.svg").read_text(encoding="utf-8")
    assert (
        "Measured" in measured and "alibi (stdlib)" in measured and "times as long as with nope" in measured
    )
    for name in names_in("encoding"):
        assert "<math" in (reference / "encodings" / f"{name}.html").read_text(encoding="utf-8"), name
    calls = text_of(reference / "python.html")
    assert all(
        f"pe_bench.{name}(" in calls for name in ("train", "evaluate", "probe", "results", "import_runs")
    )
    assert pe_bench.train.__doc__ and pe_bench.train.__doc__.splitlines()[0] in calls
