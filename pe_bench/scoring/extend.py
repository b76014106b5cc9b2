"""Scores of one set of target blocks that are reused for another, because one set contains the other."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from pe_bench.errors import RunError
from pe_bench.runs.rows import Row
from pe_bench.runs.scores import load_scores, score_file
from pe_bench.scoring.protocols import Plan
from pe_bench.scoring.targets import TargetBlocks

# A row says what computed all of its scores, so those of other code or of another device are not reused.
SAME = (
    *("run", "scored_with", "forced", "protocol", "control", "length", "target_tokens"),
    *("score_dtype", "device", "torch", "pe_bench"),
)


@dataclass(frozen=True)
class Known:
    """The NLLs of some targets of a plan: `is_known` bool [targets], and `nll` float32 [known targets]."""

    is_known: np.ndarray
    nll: np.ndarray

    def missing(self, plan: Plan) -> Plan:
        """Return the plan without the windows whose targets are all known."""
        first_targets = np.cumsum([0, *(window.targets for window in plan.windows)])[:-1]
        windows = zip(plan.windows, self.is_known[first_targets], strict=True)
        return replace(plan, windows=[window for window, is_known in windows if not is_known])

    def joined(self, nll: np.ndarray) -> np.ndarray:
        """Return the NLLs of all targets, given those that were missing."""
        joined = np.empty(len(self.is_known), np.float32)
        joined[self.is_known], joined[~self.is_known] = self.nll, nll
        return joined


def known_scores(run: Path, plan: Plan, row: Row, kept: Iterable[Row]) -> Known | None:
    """Return the scores of the plan of `row` that a run has already; None where it has none."""
    if plan.blocks is None:
        return None
    of_plan = [getattr(row, name) for name in SAME]
    others = [
        other for other in kept if other.status == "ok" and [getattr(other, name) for name in SAME] == of_plan
    ]
    for other in sorted(others, key=lambda other: -other.targets):
        found = _known_from(run, other, plan.blocks)
        if found is not None:
            return found
    return None


def _known_from(run: Path, other: Row, blocks: TargetBlocks) -> Known | None:
    """Return what a row's scores have of the blocks; None where it is of another text, or has lost them."""
    scored = blocks.first(other.targets // blocks.target_tokens)
    if scored.hash != other.target_hash:
        return None
    try:
        nll = load_scores(score_file(run, other)).nll
    except RunError:
        return None
    if len(nll) != len(scored) * blocks.target_tokens:
        return None
    is_known = np.repeat(blocks.turn < len(scored), blocks.target_tokens)
    return Known(is_known, nll[np.repeat(scored.turn < len(blocks), blocks.target_tokens)])
