"""Reuse of scores between nested sets of target blocks or of needles."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from pe_bench.errors import RunError
from pe_bench.runs.rows import Row
from pe_bench.runs.scores import load_scores, score_file
from pe_bench.scoring.protocols import NeedleSet, Plan
from pe_bench.scoring.scorer import Scored
from pe_bench.scoring.targets import TargetBlocks

# A row says what computed all of its scores, so those of other code or of another device are not reused.
SAME = (
    *("run", "scored_with", "forced", "protocol", "control", "length", "target_tokens", "depth"),
    *("score_dtype", "device", "torch", "pe_bench"),
)


@dataclass(frozen=True)
class Known:
    """The scores of some targets of a plan: `is_known` bool [targets], the others as in `Scores`."""

    is_known: np.ndarray
    nll: np.ndarray
    correct: np.ndarray | None

    def missing(self, plan: Plan) -> Plan:
        """Return the plan without the windows whose targets are all known."""
        first_targets = np.cumsum([0, *(window.targets for window in plan.windows)])[:-1]
        windows = zip(plan.windows, self.is_known[first_targets], strict=True)
        return replace(plan, windows=[window for window, is_known in windows if not is_known])

    def joined(self, missing: Scored) -> Scored:
        """Return the scores of all targets, given those that were missing."""
        correct = None
        if self.correct is not None and missing.correct is not None:
            correct = self._joined(self.correct, missing.correct)
        return replace(missing, nll=self._joined(self.nll, missing.nll), correct=correct)

    def _joined(self, known: np.ndarray, missing: np.ndarray) -> np.ndarray:
        joined = np.empty(len(self.is_known), np.float32)
        joined[self.is_known], joined[~self.is_known] = known, missing
        return joined


def known_scores(run: Path, plan: Plan, row: Row, kept: Iterable[Row]) -> Known | None:
    """Return the scores of the plan of `row` that a run has already; None where it has none."""
    targets = plan.needles if plan.blocks is None else plan.blocks
    if targets is None:
        return None
    of_plan = [getattr(row, name) for name in SAME]
    others = [
        other for other in kept if other.status == "ok" and [getattr(other, name) for name in SAME] == of_plan
    ]
    for other in sorted(others, key=lambda other: -other.targets):
        found = _known_from(run, other, targets)
        if found is not None:
            return found
    return None


def _known_from(run: Path, other: Row, targets: TargetBlocks | NeedleSet) -> Known | None:
    """Return what a row's scores have of the targets; None where it is of another text, or has lost them."""
    scored = targets.first(other.targets // targets.target_tokens)
    if scored.hash != other.target_hash:
        return None
    try:
        found = load_scores(score_file(run, other))
    except RunError:
        return None
    if len(found.nll) != len(scored) * targets.target_tokens:
        return None
    is_known = np.repeat(targets.turn < len(scored), targets.target_tokens)
    is_wanted = np.repeat(scored.turn < len(targets), targets.target_tokens)
    return Known(is_known, found.nll[is_wanted], None if found.correct is None else found.correct[is_wanted])
