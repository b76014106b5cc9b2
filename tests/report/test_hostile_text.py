"""A run with text that is meant to do more than be read: all forms of a report, and lists, only show it."""

import csv
import io
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from support.commands import Command
from support.results import add_run

from pe_bench.runs.rows import COLUMNS

LABEL = "evil\n[red]x[/red] \u200b|$\\frac{$<script>alert(1)</script>\\input{/etc/passwd}![a](http://b)"
TEXTS = ("encoding", "scored_with", "model", "data", "tokenizer")
LEVELS = {64: 3.1, 128: 3.0, 256: 3.1, 512: 3.2}


def set_cells(run: Path, columns: tuple[str, ...], text: str, rows: slice = slice(None)) -> None:
    """Write the text into the file as a stranger can: our own writer would make it harmless.

    The file is then one of an older version, without a checksum.
    """
    path = run / "eval.csv"
    heading, *lines = csv.reader(io.StringIO(path.read_text(encoding="utf-8"), newline=""))
    heading, lines = heading[: len(COLUMNS)], [line[: len(COLUMNS)] for line in lines]
    for line in lines[rows]:
        for column in columns:
            line[heading.index(column)] = text
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([heading, *lines])


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    for column in TEXTS[2:]:
        set_cells(add_run(tmp_path, f"by_{column}", LEVELS), (column,), LABEL)
    for seed in (0, 1):
        add_run(tmp_path, "rope", LEVELS, seed=seed)
        set_cells(add_run(tmp_path, "name", {**LEVELS, 512: None}, seed=seed), TEXTS[:2], LABEL)
    return tmp_path


@pytest.fixture
def report(hostile: Path, command: Command):
    def run(*arguments: str) -> str:
        outcome = command("report", "--all", *arguments, "--results-dir", str(hostile))
        assert outcome.code == 0, outcome.err
        assert_only_shows(outcome.err)
        return outcome.out

    return run


def assert_only_shows(text: str) -> None:
    assert all(sign.isprintable() for line in text.split("\n") for sign in line)
    assert not [line for line in text.split("\n") if line.startswith("[red]x")]


@pytest.mark.parametrize("details", [(), ("--details",)])
def test_texts_and_documents_show_it_without_a_mark_a_tag_or_a_command(report, details) -> None:
    text = report(*details, "--baseline", "rope")
    assert "evil [red]" in text, "brackets are no marks"
    markdown = report("--markdown", "-", *details)
    assert "<script" not in markdown and re.search(r"(?<!\\)\[a\]", markdown) is None
    for table in markdown.split("\n\n"):
        cells = [len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines() if line.startswith("|")]
        assert len(set(cells)) <= 1
    latex = report("--latex", "-", *details)
    code = "\n".join(line for line in latex.splitlines() if not line.startswith("%"))
    assert "\\input" not in code and "\\frac" not in code
    for table in code.split(r"\end{table}"):
        rows = [line for line in table.splitlines() if line.endswith(r"\\")]
        assert len({len(re.findall(r"(?<!\\)&", row)) for row in rows}) <= 1
    for shown in (text, markdown, latex):
        assert_only_shows(shown)


def test_the_page_and_the_pictures_show_it_as_text(report, hostile: Path) -> None:
    report("--html", str(hostile / "a.html"), "--plot", str(hostile / "a.png"))
    page = (hostile / "a.html").read_text(encoding="utf-8")
    assert page.count("<script") == page.count("</script") == 1
    assert "\u200b" not in page
    report("--plot", str(hostile / "a.svg"), "--plot-of", "change")
    drawn = "".join(ElementTree.parse(hostile / "a.svg").getroot().itertext())
    assert "\\u200b" in drawn or "evil" in drawn
    assert "\u200b" not in drawn


@pytest.mark.parametrize("sign", ["\x1b[2J", "\u202e"])
def test_what_steers_a_terminal_is_left_out_and_named(hostile: Path, report, sign: str) -> None:
    [run] = (hostile / "runs").glob("name-s0*")
    set_cells(run, ("encoding",), f"a{sign}b")
    text = report()
    assert_only_shows(text)
    assert f"leftout:{run}" in "".join(text.split())


@pytest.mark.parametrize(
    ("column", "text"),
    [
        *(("model", "a\nb"), ("data", "tinz"), ("setting", "a\nb"), ("protocol", "tinz"), ("documents", "0")),
        *(("targets", "nan"), ("bits_per_byte", "1e308"), ("perplexity", "nan"), ("peak_memory_mb", "1e308")),
        *(("tokens_per_second", "0"), ("steps", "0")),
    ],
)
def test_no_changed_cell_ends_a_report_in_a_traceback(
    tmp_path: Path, command: Command, column: str, text: str
) -> None:
    for encoding in ("rope", "alibi"):
        run = add_run(tmp_path, encoding, LEVELS)
    set_cells(run, (column,), text, slice(1, 3))
    files = [f"--{kind}={tmp_path / f'a.{kind}'}" for kind in ("markdown", "latex", "csv", "html")]
    arguments = [*files, "--details", "--baseline", "rope", "--results-dir", str(tmp_path)]
    assert command("report", *arguments).code in (0, 1, 2)
