"""The manual page of an encoding: its docstring, its options and where they come from, what it claims."""

import inspect
import json
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from pe_bench.config.compose import compose
from pe_bench.config.groups import config_dir, head_comment
from pe_bench.config.overrides import check_overrides
from pe_bench.config.parse import parse_config
from pe_bench.data.tasks import Task, build_task
from pe_bench.encodings.signatures import complete, meanings, read_part
from pe_bench.encodings.spec import NOT_OPTIONS, PartSpec
from pe_bench.errors import UserError, require
from pe_bench.inspection.resolve import ResolvedEncoding, parameter_count
from pe_bench.system.terminal import PIPED_WIDTH, wrap

MIN_LAST_COLUMN = 24  # columns that the last cell of a line needs; with fewer it goes below
ITEM = re.compile(r"[-*+] +|\d+[.)] +| +\S+ {2,}")  # of a list, or a word and its meaning in two columns
COMMENT = re.compile(r"^(\w+): .*? # (.*)$", re.MULTILINE)
INTERPOLATION = re.compile(r"\$\{(?:(\w+):([^{},]+),)?([^{}]+)\}")
SIGNS = {"divide": "/", "quotient": "//", "times": "*"}


def page(subject: ResolvedEncoding, width: int = PIPED_WIDTH, must_be_built: bool = False) -> str:
    """Return all that there is to say of an encoding, as text of at most `width` columns.

    Raises `UserError` for one that cannot be built where it `must_be_built`.
    """
    width = min(width, PIPED_WIDTH)  # longer lines are hard to read
    parts = [_part(subject, part, width) for part in _parts(subject)]
    title = f"{subject.label}\n{'=' * len(subject.label)}"
    facts = _facts(subject, width, must_be_built)
    return "\n\n".join([title, *parts, facts, _next_steps(subject, width)]) + "\n"


def _facts(subject: ResolvedEncoding, width: int, must_be_built: bool) -> str:
    """Describe what is known of the encoding once it is built."""
    try:
        encoding = subject.encoding
    except UserError as error:  # some have options that no default could stand for
        if must_be_built:
            raise
        return wrap(f"cannot be built as it is: {error}", width)
    config = subject.config
    sizes = (
        f" {key}={getattr(config.model, key.removeprefix('model.'))}"
        for key in sorted(subject.given)
        if key.startswith("model.")
    )
    where = f"(model={config.model.name}{''.join(sizes)}, train.length={config.train.length})"
    return align(
        [
            ("parameters", f"{parameter_count(encoding):,}  {where}"),
            ("past training", encoding.past_training),
            ("claims", ", ".join(sorted(encoding.claims)) or "none"),
        ],
        width,
    )


def _next_steps(subject: ResolvedEncoding, width: int) -> str:
    """List the commands that use the encoding; a class in a file needs a YAML file to be trained."""
    folders = "".join(f" --config-dir {shlex.quote(str(folder))}" for folder in subject.config.search)
    lines = [("check it", f"pe-bench check {shlex.quote(subject.name)}{folders}")]
    if ":" not in subject.name:
        options = " KEY=VALUE ..." if subject.given else ""
        lines.append(("train it", f"pe-bench train encoding={subject.name}{options}{folders}"))
    return align(lines, width)


def _parts(subject: ResolvedEncoding) -> list[PartSpec]:
    """Return the encoding and its modifiers, the one that is named first."""
    return sorted(subject.spec.parts, key=lambda part: part.key != f"encoding.modifiers.{subject.name}")


def _part(subject: ResolvedEncoding, part: PartSpec, width: int) -> str:
    """Describe the encoding or one of its modifiers."""
    encoding_class = part.encoding_class
    docstring = sys.modules[encoding_class.__module__].__doc__ or encoding_class.__doc__ or "(no docstring)"
    options = list(_options(subject, part))
    facts = [("family", encoding_class.family), ("file", _file(part.code.path))]
    if encoding_class.compatible_with:
        facts.append(("compatible with", ", ".join(sorted(encoding_class.compatible_with))))
    if encoding_class.changeable_after_training:
        facts.append(("changeable", ", ".join(sorted(encoding_class.changeable_after_training))))
    blocks = [
        _preset(subject, part, width),
        reflow(docstring, width),
        align(options, width),
        align(facts, width),
    ]
    return "\n\n".join(block for block in blocks if block)


def reflow(docstring: str, width: int) -> str:
    """Fill the paragraphs of a docstring; indented lines and items of a list keep their beginnings."""
    lines: list[str] = []
    for line in inspect.cleandoc(docstring).splitlines():
        is_prose = line and not line.startswith(" ") and not ITEM.match(line)
        if is_prose and lines and lines[-1] and not lines[-1].startswith(" "):
            lines[-1] += f" {line}"
        else:
            lines.append(line)
    return "\n".join(wrap(line, width, _hanging(line)) for line in lines)


def _hanging(line: str) -> int:
    """Return by how much the continuation of an item is indented beyond its first word."""
    item = ITEM.match(line)
    return item.end() - (len(line) - len(line.lstrip(" "))) if item else 0


def _file(path: Path) -> str:
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def _options(subject: ResolvedEncoding, part: PartSpec) -> Iterator[tuple[str, ...]]:
    """Yield each option's key, its value, where that is from, and what it means."""
    key, default = part.key, _file_of(subject, part)
    comments = meanings(str(part.values["class"]), subject.config.search)
    for option, value in part.values.items():
        if option in NOT_OPTIONS or option in part.nested:
            continue
        if f"{key}.{option}" in subject.given:
            origin = "given"
        elif option in part.values.get("derived", []) and str(default.get(option, "${")).startswith("${"):
            origin = f"from {_formula(str(default.get(option, 'the rest')))}"
        else:
            origin = "default" if default.get(option, value) == value else f"of {subject.name}"
        yield f"{key}.{option}", _shown(value), origin, comments.get(option, "")


def _file_of(subject: ResolvedEncoding, part: PartSpec) -> dict[str, Any]:
    """Return the keys of the file that chooses a part, as they are written; those of a class without one."""
    path = _yaml_of(subject, part)
    return complete({"class": part.values["class"]}) if path is None else read_part(path)


def _preset(subject: ResolvedEncoding, part: PartSpec, width: int) -> str:
    """Return what the comment of a part's file says below its description, as that of a preset does."""
    path = _yaml_of(subject, part)
    lines = [] if path is None else head_comment(path)
    return reflow("\n".join(lines[lines.index("") + 1 :]), width) if "" in lines else ""


def _yaml_of(subject: ResolvedEncoding, part: PartSpec) -> Path | None:
    *_, group, name = ("", *part.key.split("."))
    inner = f"modifier/{name}.yaml" if group == "modifiers" else f"encoding/{part.values['name']}.yaml"
    paths = [folder / inner for folder in (*subject.config.search, config_dir())]
    return next((path for path in paths if path.is_file()), None)


def _formula(text: str) -> str:
    """Spell `${times:16,${train.length}}` as `16 * train.length`."""

    def plain(match: re.Match[str]) -> str:
        name, first, last = match.groups()
        return f"{first} {SIGNS.get(name, name)} {last}" if name else last

    while INTERPOLATION.search(text):
        text = INTERPOLATION.sub(plain, text)
    return text


def _shown(value: Any) -> str:
    text = yaml.safe_dump(value, default_flow_style=True, width=sys.maxsize).removesuffix("...\n").strip()
    return json.dumps(value) if "\n" in text else text  # YAML breaks lines where a value has them


def align(lines: Sequence[tuple[str, ...]], width: int) -> str:
    """Align cells below each other; the last of a line, which may be long, is wrapped in its column."""
    inner = [line[:-1] for line in lines]
    widths = [max(map(len, column)) for column in zip_longest(*inner, fillvalue="")]
    place = sum(widths) + 2 * len(widths)
    hanging = place if width - place >= MIN_LAST_COLUMN else 4
    return "\n".join(
        wrap("  ".join([*map(str.ljust, line, widths), last]), width, hanging)
        for line, last in zip(inner, (line[-1] for line in lines), strict=True)
    )


MAX_SIZE = 8  # of the example


def task_page(arguments: Sequence[str], search: Sequence[Path], width: int = PIPED_WIDTH) -> str:
    """Return all that there is to say of the task that `task=NAME` names. Raises `UserError`."""
    width = min(width, PIPED_WIDTH)
    encodings = [text for text in arguments if "=" not in text or text.startswith("encoding=")]
    require(not encodings, f"show {' '.join(encodings)} and the task in two commands")
    check_overrides(arguments, search)
    config = parse_config(compose(arguments, search), search)
    require(config.task is not None, "name the task: pe-bench show task=NAME")
    assert config.task is not None
    task = build_task(config.task)
    title = f"{task.name}\n{'=' * len(task.name)}"
    docstring = reflow(sys.modules[type(task).__module__].__doc__ or "", width)
    comments = dict(
        COMMENT.findall(
            (config_dir() / "task" / f"{task.name}.yaml").read_text("utf-8").replace("\n  ", "\n")
        )
    )
    options = [
        (f"task.{name}", str(value), comments.get(name, "").strip())
        for name, value in config.task.items()
        if name != "name"
    ]
    length = config.train.length
    facts = [
        ("tokens", f"{len(task.symbols_and_signs)} different ones"),
        ("guessing", f"{100 * task.chance:.3g} % of answers are right"),
        ("sizes", f"{task.least} to {task.size_at(length)} at {length} tokens (train.length={length})"),
        ("file", f"pe_bench/data/tasks/{task.name}.py"),
    ]
    steps = [("train it", f"pe-bench train task={task.name} encoding=rope")]
    example = f"an example of size {_size(task, length)}, with its answers in brackets:\n\n"
    example += wrap(f"    {_example(task, length, config.seed)}", width, 4)
    parts = [docstring, align(options, width), align(facts, width), example, align(steps, width)]
    return "\n\n".join([title, *filter(None, parts)]) + "\n"


def _size(task: Task, length: int) -> int:
    return max(task.least, min(MAX_SIZE, task.size_at(length)))


def _example(task: Task, length: int, seed: int) -> str:
    tokens, is_answer, _ = task.example(np.random.default_rng(seed), _size(task, length))
    texts = [task.vocabulary[token] for token in tokens]
    return " ".join(f"[{text}]" if right else text for text, right in zip(texts, is_answer, strict=True))
