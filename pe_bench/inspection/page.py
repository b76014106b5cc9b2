"""The manual page of an encoding or a task: its docstring, its options with their origins, its claims."""

import inspect
import json
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from pe_bench.config.compose import compose
from pe_bench.config.groups import config_dir, head_comment
from pe_bench.config.parse import parse_config
from pe_bench.data.tasks import build_task
from pe_bench.encodings.signatures import MISSING, USUAL_VALUES
from pe_bench.encodings.signatures import options_of as options_of_class
from pe_bench.encodings.spec import PartSpec
from pe_bench.errors import UserError
from pe_bench.inspection.resolve import ResolvedEncoding, parameter_count
from pe_bench.system.terminal import PIPED_WIDTH, wrap

MIN_LAST_COLUMN = 24  # columns that the last cell of a line needs; with fewer it goes below
FORMULA = re.compile(r"^\$[^$]+\$(\n\n|\Z)", re.MULTILINE)  # a paragraph in LaTeX
EXAMPLE_SIZE = 8  # the size of a task's example


def page(subject: ResolvedEncoding, width: int = PIPED_WIDTH, *, has_formulas: bool = False) -> str:
    """Return the manual page of an encoding, as text of at most `width` columns.

    has_formulas: keep the paragraphs with a formula in LaTeX.
    """
    width = min(width, PIPED_WIDTH)  # longer lines are hard to read
    config = subject.config
    where = f"(model={config.model.name}, train.length={config.train.length})"
    parameters = parameter_count(subject.encoding)
    claims = ", ".join(sorted(subject.encoding.claims))
    facts = [
        ("parameters", f"{parameters:,}  {where}"),
        ("past training", subject.encoding.past_training),
        ("claims", claims or "none"),
    ]
    blocks = [reflow(_preset_comment(subject), width)]
    for part in subject.spec.parts:
        blocks += _describe_part(subject, part, width)
    if not has_formulas:
        blocks = [FORMULA.sub("", block) for block in blocks]
    return _page_of(subject.label, [*blocks, align_cells(facts, width)])


def _page_of(title: str, blocks: Sequence[str]) -> str:
    heading = f"{title}\n{'=' * len(title)}"
    return "\n\n".join([heading, *filter(None, blocks)]) + "\n"


def _describe_part(subject: ResolvedEncoding, part: PartSpec, width: int) -> list[str]:
    """Return the docstring, the options and the declarations of the encoding or one of its modifiers."""
    encoding_class = part.encoding_class
    docstring = sys.modules[encoding_class.__module__].__doc__ or encoding_class.__doc__ or "(no docstring)"
    path = part.code.path
    if path.is_relative_to(Path.cwd()):
        path = path.relative_to(Path.cwd())
    facts = {
        "family": encoding_class.family,
        "file": str(path),
        "compatible with": ", ".join(sorted(encoding_class.compatible_with)),
        "changeable": ", ".join(sorted(encoding_class.changeable_after_training)),
    }
    options = align_cells(list(options_of(subject, part)), width)
    known = [(name, fact) for name, fact in facts.items() if fact]
    return [reflow(docstring, width), options, align_cells(known, width)]


def reflow(docstring: str, width: int) -> str:
    """Fill the paragraphs of a docstring, but leave a paragraph with an indented line as it is."""
    paragraphs = []
    for text in inspect.cleandoc(docstring).split("\n\n"):
        lines = text.splitlines()
        if not any(line.startswith(" ") for line in lines):
            lines = [" ".join(lines)]
        paragraphs.append("\n".join(wrap(line, width, 2) for line in lines))
    return "\n\n".join(paragraphs)


def options_of(subject: ResolvedEncoding, part: PartSpec) -> Iterator[tuple[str, ...]]:
    """Yield each option's key, its value, the key that the value follows, and the option's meaning."""
    for option in options_of_class(str(part.values["class"]), subject.config.search):
        if option.name in part.nested:
            continue
        value = part.values[option.name]
        origin = ""
        is_derived = option.default is MISSING and option.name in part.values.get("derived", [])
        if is_derived and option.name in USUAL_VALUES:
            key = USUAL_VALUES[option.name].removeprefix("${").removesuffix("}")
            origin = f"from {key}"
        text = json.dumps(value)
        if option.name in subject.examples:
            text = "(no default)"
        elif isinstance(value, str) and "\n" not in value:
            text = value
        yield f"{part.key}.{option.name}", text, origin, option.meaning


def _preset_comment(subject: ResolvedEncoding) -> str:
    """Return the comment below the description in an encoding's YAML file; empty without such a comment."""
    file = f"encoding/{subject.config.encoding['name']}.yaml"
    for folder in (*subject.config.search, config_dir()):
        if (folder / file).is_file():
            comment = "\n".join(head_comment(folder / file))
            _, _, below = comment.partition("\n\n")
            return below
    return ""


def align_cells(lines: Sequence[tuple[str, ...]], width: int) -> str:
    """Align cells below each other; the last cell of a line, which may be long, is wrapped in its column."""
    columns = zip(*lines, strict=True)
    all_widths = [max(map(len, column)) for column in columns]
    widths = all_widths[:-1]
    indent = sum(widths) + 2 * len(widths)
    hanging = indent if width - indent >= MIN_LAST_COLUMN else 4
    aligned_texts: list[str] = []
    for line in lines:
        text = "  ".join([*map(str.ljust, line, widths), line[-1]])
        aligned_texts.append(wrap(text.rstrip(), width, hanging))
    return "\n".join(aligned_texts)


def task_page(arguments: Sequence[str], search: Sequence[Path], width: int = PIPED_WIDTH) -> str:
    """Return the manual page of the task that `task=NAME` names, with an example. Raises `UserError`."""
    width = min(width, PIPED_WIDTH)
    config = parse_config(compose(arguments, search), search, is_trained=False)
    if config.task is None:
        raise UserError("name the task: pe-bench show task=NAME")
    task = build_task(config.task)
    size = max(task.smallest_size, min(EXAMPLE_SIZE, task.size_at(config.train.length)))
    tokens, is_answer, _ = task.example(np.random.default_rng(config.seed), size)
    texts = []
    for token, is_right in zip(tokens, is_answer, strict=True):
        text = task.vocabulary[token]
        texts.append(f"[{text}]" if is_right else text)
    shown = wrap(f"    {' '.join(texts)}", width, 4)
    example = f"an example of size {size}, with its answers in brackets:\n\n{shown}"
    options = [(f"task.{name}", str(value)) for name, value in config.task.items() if name != "name"]
    module = sys.modules[type(task).__module__]
    docstring = reflow(module.__doc__ or "", width)
    return _page_of(task.name, [docstring, align_cells(options, width), example])
