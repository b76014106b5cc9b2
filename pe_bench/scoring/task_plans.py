"""The plan of a task at a length: each example is a document, and only its answers are scored.

Each length has its own examples, so lengths are not paired with each other; encodings at one length are.
"""

import hashlib

import numpy as np

from pe_bench.data.packed import Split
from pe_bench.data.prompt import Prompts
from pe_bench.data.tasks import Example, Task
from pe_bench.runs.rows import TASK
from pe_bench.scoring.protocols import Answers, Plan, Window


def task_plan(task: Task | Prompts, length: int, count: int, seed: int) -> Plan:
    """Return the plan of `count` examples at a length, a function of the task, the seed and the length."""
    examples = task.examples_at(length, count, seed)
    tokens = np.concatenate([example.tokens for example in examples])
    is_answer = np.concatenate([example.is_answer for example in examples])
    sizes = [len(example.tokens) for example in examples]
    # As many targets in each, so that windows of one size have one shape.
    targets = max(len(example.tokens) - int(example.is_answer.argmax()) for example in examples)
    windows = [Window(row, 0, size - 1, size - 1 - targets, targets) for row, size in enumerate(sizes)]
    names = [f"{task.name} {row}" for row in range(count)]
    split = Split(tokens, np.cumsum([0, *sizes]), names, 0)
    answers = Answers(
        split,
        np.stack([example.is_answer[-targets:] for example in examples]),
        task.chance,
        np.stack([_numbers(example)[-targets:] for example in examples]),
    )
    words = repr((task.hash, length, seed, (count, *sorted(set(sizes))))).encode()
    target_hash = hashlib.sha256(words + tokens.astype("<i8").tobytes() + is_answer.tobytes()).hexdigest()[
        :16
    ]
    return Plan(TASK, length, windows, target_hash, answers=answers)


def _numbers(example: Example) -> np.ndarray:
    """Return the number of the answer that each token is a part of, int64 [tokens]."""
    return np.arange(len(example.tokens)) if example.number is None else example.number
