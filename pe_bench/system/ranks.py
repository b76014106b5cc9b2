"""Which of the processes that train one run this is, by torchrun's variables; without them, the only one."""

import os


def world_size() -> int:
    return int(os.environ["WORLD_SIZE"]) if "RANK" in os.environ and "WORLD_SIZE" in os.environ else 1


def local_world_size() -> int:
    """Return how many of the processes are on this machine."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", 1)) if world_size() > 1 else 1


def rank() -> int:
    return int(os.environ["RANK"]) if world_size() > 1 else 0


def local_rank() -> int:
    return int(os.environ.get("LOCAL_RANK", 0)) if world_size() > 1 else 0
