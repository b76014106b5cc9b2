"""The NLL of every target of a plan, from as few passes of the model as give it exactly.

Where an encoding is prefix consistent, a token's score does not depend on what follows. A window that begins
where a longer one began was then scored with that one: the longer one comes first, and the shorter one takes
its beginning, exact to the rounding of the precision. So it is for the windows that are scored from their
first token on, those of `nonoverlapping`, and for the ranges of positions, which are parts of such windows.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from pe_bench.config.schema import EvalConfig
from pe_bench.data.packed import Split
from pe_bench.model.decoder import Decoder
from pe_bench.model.loss import token_nll
from pe_bench.model.seeds import derive_seed
from pe_bench.runs.rows import POSITIONS
from pe_bench.scoring.denormals import flushed_denormals
from pe_bench.scoring.protocols import Plan, Window, batches, inputs, targets, with_donors
from pe_bench.system.memory import PeakMemory

SHARING = ("nonoverlapping", POSITIONS)

# Told of each length: the protocol, the length, and the share of it that is done.
Watcher = Callable[[str, int, float], None]


@dataclass(frozen=True)
class Scored:
    """The NLLs of a plan's targets in nats, float32, in the order of its windows.

    peak_memory_mb: while windows of the plan's length passed through the model; None where none did.
    """

    nll: np.ndarray
    peak_memory_mb: float | None


class Scorer:
    """Runs plans of one model, and keeps what later ones can take a beginning of."""

    def __init__(
        self,
        model: Decoder,
        split: Split,
        device: torch.device,
        evaluation: EvalConfig,
        plans: Sequence[tuple[int, Plan]],
        watch: Watcher,
    ):
        self.model, self.split, self.device = model, split, device
        self.evaluation, self.plans, self.watch = evaluation, plans, watch
        self.ranges = [plan for _, plan in plans if plan.protocol == POSITIONS]
        self._from_start: dict[tuple[int, int], np.ndarray] = {}  # by document and start, 4 bytes a target

    def order(self) -> list[int]:
        """The places of the plans in the order that needs the fewest passes."""
        lengths = [length if self._shares(plan) else 0 for length, plan in self.plans]
        return sorted(range(len(lengths)), key=lambda place: (lengths[place] > 0, -lengths[place]))

    def score(self, length: int, plan: Plan) -> Scored:
        if not self._shares(plan):
            with PeakMemory(self.device) as peak:
                nll = self._run(plan, length, self._told_of(length, plan))
            return Scored(nll, peak.mb)
        missing = [window for window in plan.windows if len(self._known(window)) < window.size]
        with PeakMemory(self.device) as peak:
            self._run_from_start(replace(plan, windows=missing), length)
        known = [self._known(window)[window.first : window.first + window.targets] for window in plan.windows]
        ran_whole = any(window.size == length for window in missing)
        return Scored(np.concatenate(known), peak.mb if ran_whole else None)

    def _shares(self, plan: Plan) -> bool:
        return plan.protocol in SHARING and "prefix_consistent" in self.model.encoding.claims

    def _known(self, window: Window) -> np.ndarray:
        return self._from_start.get((window.document, window.start), np.empty(0, np.float32))

    def _run_from_start(self, plan: Plan, length: int) -> None:
        """Run the windows, and keep the NLLs of all their targets."""
        told = self._told_of(length, plan)
        if not plan.windows:
            if plan.protocol != POSITIONS:
                told(1.0)
            return
        windows = [replace(window, first=0, targets=window.size) for window in plan.windows]
        nll = self._run(replace(plan, windows=windows), length, told)
        ends = np.cumsum([window.size for window in windows])
        for window, own in zip(windows, np.split(nll, ends[:-1]), strict=True):
            self._from_start[window.document, window.start] = own

    def _told_of(self, length: int, plan: Plan) -> Callable[[float], None]:
        """Whom to tell of the share that is done; all ranges of positions are one thing to wait for."""
        if plan.protocol != POSITIONS:
            what = plan.protocol if plan.control == "none" else f"{plan.control} control"
            return lambda share: self.watch(what, length, share)
        longest = self.ranges[-1].windows[0].size
        if self._shares(plan):
            return lambda share: self.watch(POSITIONS, longest, share)
        place = self.ranges.index(plan)
        return lambda share: self.watch(POSITIONS, longest, (place + share) / len(self.ranges))

    @torch.no_grad()
    def _run(self, plan: Plan, length: int, tell: Callable[[float], None]) -> np.ndarray:
        dtype = getattr(torch, self.evaluation.precision)
        found, done = [], 0
        with flushed_denormals(), torch.autocast(self.device.type, dtype, enabled=dtype != torch.float32):
            for batch in batches(plan.windows, self.evaluation.batch_tokens):
                tell(done / len(plan.windows))
                found.append(self._nll(batch, plan, length))
                done += len(batch)
        tell(1.0)
        return np.concatenate(found)

    def _nll(self, batch: list[Window], plan: Plan, length: int) -> np.ndarray:
        model, device = self.model, self.device
        tokens_BT = inputs(self.split, batch)
        # One draw for each length, whatever the batches: a score must not depend on memory.
        generator = torch.Generator().manual_seed(derive_seed(self.evaluation.seed, "ids", length))
        # A control changes what is read and not where: the ids are those of the text itself.
        ids = model.encoding.ids(tokens_BT.to(device), train=False, generator=generator)
        fed_BT = with_donors(self.split, batch, tokens_BT) if plan.control == "swap" else tokens_BT
        hidden_BTD = model.hidden(fed_BT.to(device), ids, plan.limit)
        first, count = batch[0].first, batch[0].targets
        scored = hidden_BTD[:, first : first + count].flatten(0, 1)
        nll = token_nll(scored, model.output_weight, targets(self.split, batch).flatten().to(device))
        return nll.float().cpu().numpy()
