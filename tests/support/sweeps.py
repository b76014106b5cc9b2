"""Jobs of a sweep that nobody ran."""

import time
from pathlib import Path

from pe_bench.sweep.jobs import JobState
from pe_bench.sweep.show import Summary


def states(*kinds: str) -> list[JobState]:
    return [
        JobState(
            number,
            f"seed={number}",
            f"pe-bench train seed={number}",
            kind,
            text=f"step {number} of 9",
            share=number / 9,
            seconds=10.0,
            started=time.time(),
        )
        for number, kind in enumerate(kinds)
    ]


def summary_of(tmp_path: Path, kinds: list[str], jobs: int, **others) -> Summary:
    return Summary(tmp_path, states(*kinds), jobs, **{"problem": "", "stopped": False, **others})
