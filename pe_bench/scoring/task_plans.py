"""The plan of a task at a length: examples of one size, each a document, of which answers alone are scored.

Other lengths have other examples, so that no two of them are paired; encodings are, at each length.
"""

import hashlib

import numpy as np

from pe_bench.data.packed import Split
from pe_bench.data.task import Task
from pe_bench.data.task_windows import examples_at
from pe_bench.runs.rows import TASK
from pe_bench.scoring.protocols import Answers, Plan, Window


def task_plan(task: Task, length: int, count: int, seed: int) -> Plan:
    """Return the plan of `count` examples at a length, a function of the task, the seed and the length."""
    examples = examples_at(task, length, count, seed)
    tokens = np.stack([example.tokens for example in examples])
    is_answer = np.stack([example.is_answer for example in examples])
    size = tokens.shape[1]
    # From the first answer of any example on, so that all windows have one shape.
    first = int(np.flatnonzero(is_answer.any(0))[0]) - 1
    windows = [Window(row, 0, size - 1, first, size - 1 - first) for row in range(count)]
    split = Split(
        tokens.ravel(), np.arange(count + 1) * size, [f"{task.name} {row}" for row in range(count)], 0
    )
    answers = Answers(split, is_answer[:, first + 1 :], task.chance)
    words = repr((task.hash, length, seed, tokens.shape)).encode()
    target_hash = hashlib.sha256(words + tokens.astype("<i8").tobytes() + is_answer.tobytes()).hexdigest()[
        :16
    ]
    return Plan(TASK, length, windows, target_hash, answers=answers)
