"""Hooks of MkDocs: the pages of the repository where they lie, and the reference, which comes from the code.

A page keeps its place, so that its links work on the site as they do in a checkout. What a page links to is
part of the site too: it can be read without a network.
"""

import csv
import html
import inspect
import json
import os
import re
import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import typer
from math_core import LatexToMathML
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

import pe_bench
from pe_bench.cli.app import app
from pe_bench.cli.exchange import bibliography
from pe_bench.cli.list import other_names
from pe_bench.cli.options import EXAMPLES_HEADING
from pe_bench.commands.reproduce.ledger import OUTCOMES, Ledger, LedgerEntry, spell_answers
from pe_bench.commands.reproduce.papers import Paper
from pe_bench.config.groups import keys
from pe_bench.inspection import picture
from pe_bench.inspection.catalogue import catalogue, shipped
from pe_bench.inspection.page import page
from pe_bench.inspection.resolve import ResolvedEncoding
from pe_bench.render.paper import save_picture

YOU_KNOW_IT_AS = "## You know it as"  # in docs/encodings.md; below, a row of the table there
KNOWN_AS = re.compile(r"^\| ([^|`]+) \| ([^|]*`[^|]*) \|$", re.MULTILINE)
CODE = re.compile(r"`(\w+)")
FORMULA = re.compile(r"^\$(.+?)\$$", re.MULTILINE | re.DOTALL)  # a paragraph in LaTeX
ROOT = Path(__file__).parent.parent
REFERENCE = ROOT / "results" / "reference"
LINK = re.compile(r"\[([^]]*)\]\(([^)#:\s]+)(#[^)\s]*)?\)")
FIRST = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "results/README.md")
PAGE = ".md"
NOTEBOOK = ".ipynb"
COLOUR = re.compile(r"\x1b\[[\d;]*m")
PAGE_WIDTH = 80  # characters in a line of what `show` prints
Record = dict[str, Any]  # what the catalogue tells of an encoding


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Give the files of docs/ their paths in the repository, and add all files that they link to."""
    from_theme = [file for file in files if Path(str(file.src_dir or ROOT)) != Path(config.docs_dir)]
    of_docs = [f"docs/{file.src_uri}" for file in files if file not in from_theme]
    found = [File(path, str(ROOT), config.site_dir, use_directory_urls=False) for path in _reached(of_docs)]
    subjects = shipped()
    records = catalogue(subjects)
    reference = {
        "commands": _commands(),
        "keys": _keys(),
        "encodings": _encodings(records),
        "python": _python(),
    }
    pages, pictures = _encoding_pages(subjects, records)
    texts = {f"{name}{PAGE}": text for name, text in reference.items()}
    texts |= {f"{name}{PAGE}": text for name, text in _claim_pages(Ledger().papers).items()}
    texts |= {f"encodings/{name}{PAGE}": text for name, text in pages.items()}
    texts |= {f"encodings/{name}.svg": text for name, text in pictures.items()}
    made = [File.generated(config, f"docs/reference/{name}", content=text) for name, text in texts.items()]
    for file in found:
        if file.src_uri.endswith(NOTEBOOK):
            shown = _notebook((ROOT / file.src_uri).read_text(encoding="utf-8"))
            made.append(File.generated(config, _page_of_notebook(file.src_uri), content=shown))
    return Files([*from_theme, *found, *made])


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Show links to folders as plain text, for which a site has no page, and lead to a notebook's page."""
    here = (ROOT / page.file.src_uri).parent
    markdown = re.sub(
        rf"\]\(([^)\s]+{NOTEBOOK})\)", lambda link: f"]({_page_of_notebook(link[1])})", markdown
    )
    return LINK.sub(lambda link: link[1] if (here / link[2]).is_dir() else link[0], markdown)


def _reached(of_docs: Sequence[str]) -> list[str]:
    """Return the first pages, those of docs/, and all files that they lead to."""
    waiting = [*FIRST, *of_docs]
    found: dict[str, None] = {}
    while waiting:
        path = waiting.pop()
        if path in found or not (ROOT / path).is_file():  # MkDocs names a link that leads nowhere
            continue
        found[path] = None
        if path.endswith(PAGE):
            links = LINK.finditer((ROOT / path).read_text(encoding="utf-8"))
            targets = [((ROOT / path).parent / link[2]).resolve() for link in links]
            waiting += [str(each.relative_to(ROOT)) for each in targets if each.is_relative_to(ROOT)]
    return sorted(found)


def _page_of_notebook(path: str) -> str:
    return f"{path.removesuffix(NOTEBOOK)}-notebook{PAGE}"


def _notebook(text: str) -> str:
    """Return a page with the cells of a notebook, given as JSON, and their outputs."""
    parts = []
    for cell in json.loads(text)["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        parts += filter(None, map(_output, cell.get("outputs", ())))
    return _page(parts)


def _output(output: Record) -> str:
    """Return what a cell printed or drew; a table of data as text."""
    data = output.get("data", {})
    if "image/png" in data:
        image = "".join(data["image/png"]).replace("\n", "")
        return f'<img alt="the picture that this cell draws" src="data:image/png;base64,{image}">'
    printed = "".join(output.get("text") or data.get("text/plain") or "")
    printed = COLOUR.sub("", printed).replace("\r", "")
    return f"```text\n{printed.rstrip()}\n```" if printed.strip() else ""


def _commands() -> str:
    program: Any = typer.main.get_command(app)
    parts = ["# Commands", "`pe-bench COMMAND --help` prints the same."]
    for name, command in program.commands.items():
        context = typer.Context(command, info_name=name)
        parts += [f"## {name}", inspect.cleandoc(command.help or "")]
        rows = [record for param in command.get_params(context) if (record := param.get_help_record(context))]
        parts += [_table(("option", "meaning"), [(_code(typed), said) for typed, said in rows])]
        parts += ["```sh\n" + inspect.cleandoc(command.epilog.partition(EXAMPLES_HEADING)[2]) + "\n```"]
    return _page(parts)


def _keys() -> str:
    parts = [
        "# Keys of a run",
        "`pe-bench train KEY=VALUE` changes one, and so does `pe_bench.train`. `pe-bench train --cfg job` "
        "prints all of a run, and `pe-bench show NAME` an encoding's options (`encoding.OPTION=VALUE`).",
        _table(
            ("key", "default", "meaning"),
            [(_code(key.name), _code(key.default), key.meaning) for key in keys()],
        ),
    ]
    return _page(parts)


def _encodings(records: Sequence[Record]) -> str:
    parts = ["# Encodings", "`pe-bench show NAME` has equation, options and claims, and draws the encoding."]
    facts = ("family", "what_it_is", "past_training", "paper")
    rows = [
        (f"[{name}](encodings/{name}.md)", *(record[fact] for fact in facts), other_names(record))
        for record in records
        for name in [record["encoding"]]
    ]
    titles = ("encoding", "family", "what it is", "past the training length", "paper", "note")
    return _page([*parts, _table(titles, rows)])


def _encoding_pages(
    subjects: Sequence[ResolvedEncoding], records: Sequence[Record]
) -> tuple[dict[str, str], dict[str, str]]:
    """Return a page for each encoding (formula, facts, what `show` prints, scores, BibTeX), and pictures.

    There are pictures of the encodings that SITE_PICTURES names: `all`, or names with commas between.
    """
    drawn = os.environ.get("SITE_PICTURES", "").split(",")
    entries, measured, costs, catalogue_lines = bibliography(), _measured(), _costs(), _catalogue_lines()
    table = (ROOT / "docs" / "encodings.md").read_text(encoding="utf-8").partition(YOU_KNOW_IT_AS)[2]
    known_as = KNOWN_AS.findall(table.partition("\n## ")[0])
    mathml = LatexToMathML()
    pages, pictures = {}, {}
    for subject, record in zip(subjects, records, strict=True):
        name, what, label = (str(record[fact]) for fact in ("encoding", "what_it_is", "label"))
        facts = [
            ("family", record["family"]),
            ("parameters, in the tiny model", f"{record['parameters']:,}"),
            ("past the training length", record["past_training"]),
            ("also known as", "; ".join(words for words, here in known_as if name in CODE.findall(here))),
            ("note", other_names(record)),
            ("a training step", costs.get(label, "")),
        ]
        shown = page(subject, PAGE_WIDTH, has_formulas=True)
        parts = [f"# {name}", f"{what[:1].upper()}{what[1:]}."]
        for formula in dict.fromkeys(FORMULA.findall(shown)):
            shown = shown.replace(f"${formula}$\n\n", "")
            drawn_formula = mathml.convert_with_local_state(" ".join(formula.split()), displaystyle=True)
            parts += [f'<div style="overflow-x: auto">{drawn_formula}</div>']
        parts += [_table(("fact", "value"), [fact for fact in facts if fact[1] != ""])]
        if name in drawn or drawn == ["all"]:
            pictures[name] = _picture(subject)
            parts += [f"![What {name} does, by distance or position]({name}.svg)"]
        parts += [f"```text\n{shown}```", *_measurements(catalogue_lines.get(label), measured.get(name, ()))]
        if record["paper"] in entries:
            parts += ["## Cite", f"```bibtex\n{entries[str(record['paper'])]}\n```"]
        pages[name] = _page(parts)
    return pages, pictures


def _measurements(line: str | None, levels: Sequence[Sequence[str]]) -> list[str]:
    """Return an encoding's line of the catalogue, and its levels in the studies."""
    parts = ["## Measured"] if line or levels else []
    if line:
        of_all = "[One seed of each encoding, after 500 steps](../../../results/reference/catalogue.md)"
        parts += [f"{of_all}, in bits per byte:", line]
    if levels:
        parts += ["Bits per byte by length, in [the studies](../../study.md):"]
        parts += [_table(("study", "line", "protocol", "levels"), levels)]
    return parts


def _catalogue_lines() -> dict[str, str]:
    """Return, by encoding, the table of the catalogue of results with that encoding's line alone."""
    rows = re.findall(r"^\|.*\|$", (REFERENCE / "catalogue.md").read_text(encoding="utf-8"), re.MULTILINE)
    return {row.split()[1]: "\n".join([*rows[:2], row]) for row in rows[2:]}


def _costs() -> dict[str, str]:
    """Return what a training step of each encoding costs, as `benchmarks/steps.py` measured it."""
    with (REFERENCE / "cost.csv").open(encoding="utf-8", newline="") as file:
        rows = {row["encoding"].split()[0]: row for row in csv.DictReader(file)}
    reference = float(rows["nope"]["peak_memory_mb"])
    return {
        label: f"{float(row['relative']):.1f} times as long as with `nope` and "
        f"{float(row['peak_memory_mb']) / reference:.1f} times its memory, at {row['length']} tokens "
        f"({row['processor']}, {row['threads']} thread, torch {row['torch']}, {row['date'][:10]})"
        for label, row in rows.items()
        if row["status"] == "ok"
    }


def _picture(subject: ResolvedEncoding) -> str:
    """Return the SVG that `pe-bench show NAME --plot` draws."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "picture.svg"
        save_picture(lambda: picture.draw(picture.rows_of([subject])), path)
        return path.read_text(encoding="utf-8")


def _measured() -> dict[str, list[tuple[str, ...]]]:
    """Return what the tables of studies say of each encoding, under its own name or with options."""
    lines: dict[tuple[str, ...], list[str]] = {}
    for path in sorted((ROOT / "configs" / "study").glob("*.csv")):
        with path.open(encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                if (row["variant"], row["control"]) == ("full", "none") and row["level"]:
                    label = row["encoding"] + (f" (sweep {row['sweep']})" if row["sweep"] else "")
                    line = (path.stem, label, row["protocol"], row["data"])
                    lines.setdefault(line, []).append(f"{int(row['length']):,}: {float(row['level']):.3f}")
    found: dict[str, list[tuple[str, ...]]] = {}
    for (study, label, protocol, data), levels in lines.items():
        for name in re.findall(r"[\w]+", label.split(" -> ")[-1].split(" ")[0]):
            found.setdefault(name, []).append((f"{study} ({data})", label, protocol, ", ".join(levels)))
    return found


def _claim_pages(papers: Mapping[Paper, Sequence[LedgerEntry]]) -> dict[str, str]:
    """Return a page for each paper of the ledger, and one that lists them."""
    explained = "[How claims are judged](../reproduce.md#the-ledger-of-claims)"
    rows = []
    pages = {}
    for paper, entries in papers.items():
        counts = Counter(entry.outcome for entry in entries)
        link = f"[{paper.paper}](claims/{paper.name}.md)"
        rows.append((link, paper.title, *(counts[outcome] or "" for outcome in OUTCOMES)))
        parts = [f"# {paper.paper}", _paper_title(paper)]
        parts += [
            explained.replace("../", "../../")
            + f"; `pe-bench reproduce --claims {paper.name}` prints the same."
        ]
        found = [
            (
                entry.sentence,
                entry.claim.origin,
                entry.outcome,
                entry.claim.evidence or spell_answers(entry.answers),
            )
            for entry in entries
        ]
        parts.append(_table(("claim", "where", "outcome", "by size and training tokens"), found))
        parts += [f"**{rule}**: {said}" for rule, said in paper.rules.items()]
        pages[f"claims/{paper.name}"] = _page(parts)
    titles = ("paper", "title", *OUTCOMES)
    about = "What papers claim, and what our stored scores say of it, by size and training budget."
    pages["claims"] = _page(["# Claims of papers", f"{about} {explained}.", _table(titles, rows)])
    return pages


def _paper_title(paper: Paper) -> str:
    """Return the title of a paper, which leads to it; a page of ours is linked by its place here."""
    address = paper.link if "://" in paper.link else f"../../../{paper.link}"
    return f"[{paper.title}]({address})"


def _python() -> str:
    parts = [
        "# Python",
        "These calls do what the commands do. [A notebook](../quick-start.ipynb) shows three of them.",
    ]
    for name in pe_bench.__all__:
        call = getattr(pe_bench, name)
        if not inspect.isfunction(call):  # a class of errors
            continue
        parts += [
            f"## {name}",
            f"```python\npe_bench.{name}{_signature(call)}\n```",
            inspect.getdoc(call) or "",
        ]
    from pe_bench.commands.evaluate import Run

    parts += ["## Run", inspect.getdoc(Run) or ""]
    described = [
        (name, inspect.getdoc(value)) for name, value in vars(Run).items() if isinstance(value, property)
    ]
    parts += [
        _table(
            ("attribute", "meaning"),
            [(_code(name), said or "") for name, said in described],
        )
    ]
    return _page(parts)


def _signature(call: Any) -> str:
    """Return the parameters of a call, one a line."""
    parts: list[str] = []
    for parameter in inspect.signature(call).parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and not any(part.startswith("*") for part in parts):
            parts.append("*")
        annotated = re.sub(r": '([^']*)'", r": \1", str(parameter))  # it may be text: it is evaluated late
        parts.append(re.sub(r"(\w+\.)+(?=\w)", "", annotated))
    return "(\n" + textwrap.indent(",\n".join(parts), "    ") + "\n)"


def _table(titles: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    lines = [titles, ["---"] * len(titles), *rows]
    return "\n".join(f"| {' | '.join(map(_cell, line))} |" for line in lines)


def _code(value: Any) -> str:
    """Return a text as code for a cell, in which a bar must not end the cell."""
    return f"<code>{html.escape(str(value)).replace('|', '&#124;')}</code>"


def _cell(value: Any) -> str:
    return re.sub(r"\s+", " ", str(value)).replace("|", "\\|").strip()


def _page(parts: Iterable[str]) -> str:
    return "\n\n".join(parts) + "\n"
