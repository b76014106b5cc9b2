"""The manual page of an encoding or a task: its docstring, options and where they are from, and claims."""

import inspect
import json
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path

import numpy as np

from pe_bench.config.compose import compose
from pe_bench.config.groups import config_dir, head_comment
from pe_bench.config.parse import parse_config
from pe_bench.data.tasks import build_task
from pe_bench.encodings.signatures import complete, read_part
from pe_bench.encodings.signatures import options_of as options_of_class
from pe_bench.encodings.spec import NOT_OPTIONS, PartSpec
from pe_bench.errors import UserError, require
from pe_bench.inspection.resolve import ResolvedEncoding, parameter_count
from pe_bench.system.terminal import PIPED_WIDTH, wrap

MIN_LAST_COLUMN = 24  # columns that the last cell of a line needs; with fewer it goes below
ITEM = re.compile(r"[-*+] |\d+[.)] ")  # of a list
COMMENT = re.compile(r"^(?:  )?(\w+): .*? # (.*)$", re.MULTILINE)
KEY = re.compile(r"\w+\.\w+")
EXAMPLE_SIZE = 8  # of a task's example


def page(subject: ResolvedEncoding, width: int = PIPED_WIDTH) -> str:
    """Return all that there is to say of an encoding, as text of at most `width` columns."""
    width = min(width, PIPED_WIDTH)  # longer lines are hard to read
    parts = sorted(subject.spec.parts, key=lambda part: part.key != f"encoding.modifiers.{subject.name}")
    blocks = [block for part in parts for block in _describe_part(subject, part, width)]
    folders = "".join(f" --config-dir {shlex.quote(str(folder))}" for folder in subject.config.search)
    options = " KEY=VALUE ..." if subject.typed else ""
    named = shlex.quote(f"encoding={subject.name}")
    steps = [
        ("check it", f"pe-bench check {shlex.quote(subject.name)}{folders}"),
        ("train it", f"pe-bench train {named}{options}{folders}"),
    ]
    return _page_of(subject.label, [*blocks, _facts(subject, width), align(steps, width)])


def _page_of(title: str, blocks: Sequence[str]) -> str:
    return "\n\n".join([f"{title}\n{'=' * len(title)}", *filter(None, blocks)]) + "\n"


def _facts(subject: ResolvedEncoding, width: int) -> str:
    """Describe what is known of the encoding once it is built."""
    try:
        encoding = subject.encoding
    except UserError as error:  # some have options that no default could stand for
        return wrap(f"cannot be built as it is: {error}", width)
    where = f"(model={subject.config.model.name}, train.length={subject.config.train.length})"
    facts = [
        ("parameters", f"{parameter_count(encoding):,}  {where}"),
        ("past training", encoding.past_training),
        ("claims", ", ".join(sorted(encoding.claims)) or "none"),
    ]
    return align(facts, width)


def _describe_part(subject: ResolvedEncoding, part: PartSpec, width: int) -> list[str]:
    """Return the docstring, the options and the declarations of the encoding or one of its modifiers."""
    encoding_class, path = part.encoding_class, part.code.path
    docstring = sys.modules[encoding_class.__module__].__doc__ or encoding_class.__doc__ or "(no docstring)"
    facts = [
        ("family", encoding_class.family),
        ("file", str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)),
        ("compatible with", ", ".join(sorted(encoding_class.compatible_with))),
        ("changeable", ", ".join(sorted(encoding_class.changeable_after_training))),
    ]
    options = align(list(options_of(subject, part)), width)
    stated = align([fact for fact in facts if fact[1]], width)
    return [reflow(_preset(subject, part), width), reflow(docstring, width), options, stated]


def reflow(docstring: str, width: int) -> str:
    """Fill the paragraphs of a docstring; lines that are indented, and lists, keep their beginnings."""
    paragraphs = []
    for text in inspect.cleandoc(docstring).split("\n\n"):
        lines = text.splitlines()
        is_prose = not any(line.startswith(" ") or ITEM.match(line) for line in lines)
        filled = [" ".join(lines)] if is_prose else lines
        paragraphs.append("\n".join(wrap(line, width, 2) for line in filled))
    return "\n\n".join(paragraphs)


def options_of(subject: ResolvedEncoding, part: PartSpec) -> Iterator[tuple[str, ...]]:
    """Yield each option's key, its value, where that is from, and what it means."""
    path = _yaml_of(subject, part)
    written = complete({"class": part.values["class"]}) if path is None else read_part(path)
    options = options_of_class(str(part.values["class"]), subject.config.search)
    meanings = {option.name: option.meaning for option in options}
    for option, value in part.values.items():
        if option in NOT_OPTIONS or option in part.nested:
            continue
        text = str(written.get(option, "${the rest}"))
        if f"{part.key}.{option}" in subject.typed:
            origin = "given"
        elif option in part.values.get("derived", []) and text.startswith("${"):
            origin = f"from {' and '.join(KEY.findall(text)) or 'the rest'}"
        else:
            origin = "default" if written.get(option, value) == value else f"of {subject.name}"
        shown = value if isinstance(value, str) and "\n" not in value else json.dumps(value)
        yield f"{part.key}.{option}", shown, origin, meanings.get(option, "")


def _preset(subject: ResolvedEncoding, part: PartSpec) -> str:
    """Return what the comment of a part's file says below its description, as that of a preset does."""
    path = _yaml_of(subject, part)
    lines = [] if path is None else head_comment(path)
    return "\n".join(lines[lines.index("") + 1 :]) if "" in lines else ""


def _yaml_of(subject: ResolvedEncoding, part: PartSpec) -> Path | None:
    *_, group, name = ("", *part.key.split("."))
    inner = f"modifier/{name}.yaml" if group == "modifiers" else f"encoding/{part.values['name']}.yaml"
    paths = [folder / inner for folder in (*subject.config.search, config_dir())]
    return next((path for path in paths if path.is_file()), None)


def align(lines: Sequence[tuple[str, ...]], width: int) -> str:
    """Align cells below each other; the last of a line, which may be long, is wrapped in its column."""
    inner = [line[:-1] for line in lines]
    widths = [max(map(len, column)) for column in zip_longest(*inner, fillvalue="")]
    indent = sum(widths) + 2 * len(widths)
    hanging = indent if width - indent >= MIN_LAST_COLUMN else 4
    return "\n".join(
        wrap("  ".join([*map(str.ljust, line, widths), last]), width, hanging)
        for line, (*_, last) in zip(inner, lines, strict=True)
    )


def task_page(arguments: Sequence[str], search: Sequence[Path], width: int = PIPED_WIDTH) -> str:
    """Return all that there is to say of the task that `task=NAME` names. Raises `UserError`."""
    width = min(width, PIPED_WIDTH)
    encodings = [text for text in arguments if "=" not in text or text.startswith("encoding=")]
    require(not encodings, f"show {' '.join(encodings)} and the task in two commands")
    config = parse_config(compose(arguments, search), search)
    if config.task is None:
        raise UserError("name the task: pe-bench show task=NAME")
    task, length = build_task(config.task), config.train.length
    file = config_dir() / "task" / f"{task.name}.yaml"
    comments = dict(COMMENT.findall(file.read_text("utf-8")))
    names = [name for name in config.task if name != "name"]
    options = [(f"task.{name}", str(config.task[name]), comments.get(name, "").strip()) for name in names]
    facts = [
        ("tokens", f"{len(task.symbols_and_signs)} different ones"),
        ("guessing", f"{100 * task.chance:.3g} % of answers are right"),
        ("sizes", f"{task.least} to {task.size_at(length)} at {length} tokens (train.length={length})"),
    ]
    size = max(task.least, min(EXAMPLE_SIZE, task.size_at(length)))
    tokens, is_answer, _ = task.example(np.random.default_rng(config.seed), size)
    texts = [task.vocabulary[token] for token in tokens]
    shown = " ".join(f"[{text}]" if right else text for text, right in zip(texts, is_answer, strict=True))
    blocks = [
        *(reflow(sys.modules[type(task).__module__].__doc__ or "", width), align(options, width)),
        align(facts, width),
        f"an example of size {size}, with its answers in brackets:\n\n{wrap(f'    {shown}', width, 4)}",
        align([("train it", f"pe-bench train task={task.name} encoding=rope")], width),
    ]
    return _page_of(task.name, blocks)
