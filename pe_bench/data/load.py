"""The data of a run: packed text, or the examples of a task."""

import numpy as np

from pe_bench.config.schema import Config
from pe_bench.data.packed import Data, Split, load_data
from pe_bench.data.task import Task, build_task


def load_data_of(config: Config) -> Data:
    """Return the data that a configuration names. Raises `UserError`, `RunError` as `load_data` does."""
    if config.task is None:
        return load_data(config.data, config.tokenizer, config.cache_dir)
    return task_data(build_task(config.task))


def task_data(task: Task) -> Data:
    """Return the data of a task: its vocabulary, and no text."""
    nothing = Split(np.empty(0, np.uint16), np.zeros(1, np.int64), [], 0)
    return Data(task.name, task.hash, "symbols", task.vocabulary, task.padding, nothing, nothing, task)
