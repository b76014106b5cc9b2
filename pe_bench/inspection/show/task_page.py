"""The manual page of a task: its docstring, its options, and an example with the answers marked."""

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from pe_bench.config.compose import compose
from pe_bench.config.groups import config_dir
from pe_bench.config.overrides import check_overrides
from pe_bench.config.parse import parse_config
from pe_bench.data.tasks import Task, build_task
from pe_bench.errors import require
from pe_bench.inspection.show.page import COMMENT, align, reflow
from pe_bench.system.terminal import PIPED_WIDTH, wrap

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
