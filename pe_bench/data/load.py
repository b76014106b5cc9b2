"""The data of a run: packed text, the examples of a task, or prompts of a checkpoint."""

import numpy as np

from pe_bench.config.schema import Config
from pe_bench.data.packed import Data, Split, load_data
from pe_bench.data.prompt import Prompts
from pe_bench.data.task import Task, build_task
from pe_bench.data.tokenizer import load_file

NOTHING = Split(np.empty(0, np.uint16), np.zeros(1, np.int64), [], 0)


def load_data_of(config: Config) -> Data:
    """Return the data that a configuration names. Raises `UserError`, `RunError` as `load_data` does."""
    if config.task is None:
        return load_data(config.data, config.tokenizer, config.cache_dir)
    if config.checkpoint is not None:
        return prompt_data(config)
    return task_data(build_task(config.task))


def task_data(task: Task) -> Data:
    """Return the data of a task: its vocabulary, and no text."""
    return Data(task.name, task.hash, "symbols", task.vocabulary, task.padding, NOTHING, NOTHING, task)


def prompt_data(config: Config) -> Data:
    """Return the prompts of a checkpoint that its section `task` names, with its tokenizer."""
    assert config.task is not None and config.checkpoint is not None
    tokenizer = load_file(config.tokenizer)
    found = Prompts(str(config.task["name"]), tokenizer, begins=config.checkpoint.begin is not None)
    return Data(
        found.name,
        found.hash,
        tokenizer.label,
        tuple(tokenizer.vocabulary),
        tokenizer.end_of_text,
        NOTHING,
        NOTHING,
        prompts=found,
    )
