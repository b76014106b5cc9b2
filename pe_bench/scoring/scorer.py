"""The NLL of every target of a plan, exactly, in as few passes of the model as possible.

With a prefix consistent encoding, a token's score does not depend on the tokens that follow. The scores of a
window that begins like a longer window are then the beginning of the longer window's scores, exact to the
rounding of the precision: longer windows are scored first. This is done for the windows of `nonoverlapping`,
which are scored from their first token on, and for ranges of positions, which are parts of such windows.
"""

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from pe_bench.config.schema import EvalConfig
from pe_bench.data.packed import Split
from pe_bench.encodings.base import LengthError, PositionalEncoding, Side
from pe_bench.errors import RunError, first_line
from pe_bench.model.checks import describe_user_code_error, find_lookahead, is_users_own
from pe_bench.model.decoder import LanguageModel, derive_seed
from pe_bench.runs.rows import POSITIONS, PROBE
from pe_bench.scoring.needles import fed_tokens, score_needles, text_order_key
from pe_bench.scoring.protocols import Plan, Window, batches, inputs, targets, with_donors
from pe_bench.system.machine import PeakMemory, adapt_threads, is_out_of_memory
from pe_bench.system.signals import INTERRUPTIONS

# If at most this share of a window's tokens is scored, the last layer computes only the queries of the scored
# tokens.
MAX_SHARE_OF_QUERIES = 1 / 4
SHARING_PROTOCOLS = ("nonoverlapping", POSITIONS)
OMP_PAUSE_KIND = 1  # omp_pause_soft
NO_SCORES = np.empty(0, np.float32)

# Called with a plan and the finished share of it, which is above 1 while other plans are scored together with
# the plan, and with None when the plan is finished.
ScoreWatcher = Callable[[Plan, float | None], None]


class Scored(NamedTuple):
    """The scores of a plan's targets, in the order of its windows; or the reason why there are none."""

    nll: np.ndarray = NO_SCORES  # nats, float32
    correct: np.ndarray = NO_SCORES  # 1 for each right target and 0 for others, float32, if there are answers
    peak_memory_mb: float | None = None  # the peak in passes of the plan's length; None without such a pass
    status: str = "ok"  # as in `Row`
    reason: str = ""  # why there are no scores


def n_tokens_without_query(window: Window) -> int:
    """Return the number of tokens at the start of a window for which the last layer computes no query.

    These are all tokens before the first target if few tokens are scored, else 0.
    """
    has_few_targets = window.size - window.first <= window.size * MAX_SHARE_OF_QUERIES
    return window.first if has_few_targets else 0


@dataclass
class Scorer:
    """A model, and the text whose targets it scores; it keeps scores of windows that later plans share."""

    model: LanguageModel
    split: Split
    evaluation: EvalConfig
    watch: ScoreWatcher = lambda plan, share: None
    # The NLLs of kept windows, by the document and the start.
    _from_start: dict[tuple[int, int], np.ndarray] = field(default_factory=dict)

    def scores(self, plans: Sequence[Plan]) -> Iterator[tuple[Plan, Scored]]:
        """Yield each plan with its scores, in the order that needs the fewest passes."""
        apart: list[Plan] = []
        sharing: list[Plan] = []
        probes: dict[int, list[Plan]] = {}
        for plan in plans:
            if plan.protocol == PROBE and self.model.keeps_last_text:
                probes.setdefault(plan.length, []).append(plan)
            elif self._can_share_prefixes(plan):
                sharing.append(plan)
            else:
                apart.append(plan)
        sharing.sort(key=lambda plan: -plan.length)
        for plan in (*apart, *sharing):
            yield plan, self._score_or_reason(plan)
        for plans_of_length in probes.values():
            yield from self._score_together(plans_of_length)

    def _score_together(self, plans: Sequence[Plan]) -> Iterator[tuple[Plan, Scored]]:
        """Yield each plan of a probe at one length with its scores; windows are scored text by text."""
        windows = [window for plan in plans for window in plan.windows]
        order = sorted(range(len(windows)), key=lambda index: text_order_key(windows[index]))
        together = replace(plans[0], windows=[windows[index] for index in order])
        finished = np.cumsum([0, *fed_tokens(together.windows)])
        plans_by_window = len(plans) * finished / finished[-1]

        def watch_together(plan: Plan, share: float | None) -> None:
            self.watch(plan, None if share is None else plans_by_window[round(share * len(order))])

        scorer = replace(self, watch=watch_together)
        try:
            scored = scorer._score_or_reason(together)
        finally:
            self.model.forget_text()
        if scored.status != "ok":
            yield from ((plan, scored) for plan in plans)
            return
        place = np.argsort(order)  # the place in `order` of each window
        nll = scored.nll.reshape(len(windows), -1)[place]
        correct = scored.correct.reshape(len(windows), -1)[place]
        stop = 0
        for plan in plans:
            start, stop = stop, stop + len(plan.windows)
            own_nll = nll[start:stop].ravel()
            own_correct = correct[start:stop].ravel()
            yield plan, scored._replace(nll=own_nll, correct=own_correct)

    def _score_or_reason(self, plan: Plan) -> Scored:
        """Return the scores of a plan, or the status and the reason if it has no scores.

        Errors of pe-bench's own code, and requests to stop, are raised.
        """
        if reason := why_control_is_empty(plan, self.model):
            return Scored(status="undefined", reason=reason)
        try:
            problem = self._find_lookahead(plan)
            if problem:
                return Scored(status="failed", reason=problem)
            return self.score(plan)
        except LengthError as error:
            return Scored(status="undefined", reason=str(error))
        except INTERRUPTIONS:
            raise
        except BaseException as error:
            if is_out_of_memory(error):
                return Scored(status="out_of_memory", reason=first_line(error))
            description = describe_user_code_error(error, self.model.encoding)
            if description is None:
                raise
            if isinstance(error, torch.AcceleratorError):  # the GPU computes nothing more in this process
                raise RunError(description) from error
            return Scored(status="failed", reason=description)

    def _find_lookahead(self, plan: Plan) -> str:
        """Return the problem if a user's own encoding reads later tokens at this length; else empty."""
        if not plan.windows or not is_users_own(self.model.encoding):
            return ""
        window = max(plan.windows, key=lambda window: window.size)
        problem = find_lookahead(self.model, window.size, n_tokens_without_query(window))
        return problem and f"it reads later tokens: {problem}"

    def score(self, plan: Plan) -> Scored:
        """Return the scores of one plan. Raises `LengthError`, and the errors of a lack of memory."""
        if not self._can_share_prefixes(plan):
            with PeakMemory(self.model.device) as peak:
                nll, correct = self._score_windows(plan)
            return Scored(nll, correct, peak.mb)
        fed = []
        for window in plan.windows:
            if len(self._nll_from_start(window)) < window.size:
                fed.append(replace(window, first=0, targets=window.size))
        with PeakMemory(self.model.device) as peak:
            nll, _ = self._score_windows(replace(plan, windows=fed))
        ends = np.cumsum([window.size for window in fed])
        for window, window_nll in zip(fed, np.split(nll, ends), strict=False):
            self._from_start[window.document, window.start] = window_nll
        parts = []
        for window in plan.windows:
            end = window.first + window.targets
            parts.append(self._nll_from_start(window)[window.first : end])
        ran_at_length = any(window.size == plan.length for window in fed)
        return Scored(np.concatenate(parts), peak_memory_mb=peak.mb if ran_at_length else None)

    def _can_share_prefixes(self, plan: Plan) -> bool:
        """Return whether the beginning of a longer window's scores can serve a shorter window of the plan."""
        return plan.protocol in SHARING_PROTOCOLS and "prefix_consistent" in self.model.encoding.claims

    def _nll_from_start(self, window: Window) -> np.ndarray:
        """Return the kept NLLs of a window that begins like this window; empty if none is kept."""
        return self._from_start.get((window.document, window.start), NO_SCORES)

    def _score_windows(self, plan: Plan) -> tuple[np.ndarray, np.ndarray]:
        """Return the NLL of each scored target, and for answers 1 for each right target and 0 for others."""
        parts = [(NO_SCORES, NO_SCORES)]
        done = 0
        device = self.model.device.type
        dtype = getattr(torch, self.evaluation.precision)
        is_coarse = dtype != torch.float32
        # One draw for each length, whatever the batches: a score must not depend on memory.
        seed = derive_seed(self.evaluation.seed, "ids", plan.length)
        with torch.no_grad(), flush_denormals(), torch.autocast(device, dtype, enabled=is_coarse):
            for batch in batches(plan.windows, self.evaluation.batch_tokens):
                self.watch(plan, done / len(plan.windows))
                adapt_threads()
                generator = torch.Generator().manual_seed(seed)
                if plan.protocol == PROBE:
                    parts.append(score_needles(self.model, self.split, batch, generator))
                else:
                    parts.append(self._score_batch(batch, plan, generator))
                done += len(batch)
        nll, correct = (np.concatenate(each) for each in zip(*parts, strict=True))
        return nll, correct

    def _score_batch(
        self, batch: list[Window], plan: Plan, generator: torch.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the NLL of each scored target of a batch, and whether answers are right, 1 or 0, float32.

        Without answers, the second array is empty.
        """
        model = self.model
        device = model.device
        split = self.split if plan.examples is None else plan.examples.split
        fed_BT = inputs(split, batch)
        # A control changes the tokens and not their positions: the ids are of the unchanged text.
        ids = model.encoding.ids(fed_BT.to(device), train=False, generator=generator)
        if plan.offset:
            ids = ids + plan.offset
        if plan.control == "swap":
            fed_BT = with_donors(self.split, batch, fed_BT)
        skipped = n_tokens_without_query(batch[0])
        first = batch[0].first - skipped
        hidden_BTD = model.hidden(fed_BT.to(device), ids, plan.limit, skipped)
        scored_ND = hidden_BTD[:, first : first + batch[0].targets].flatten(0, 1)
        targets_N = targets(split, batch).flatten().to(device)
        if plan.examples is None:
            return _as_array(model.nll(scored_ND, targets_N)), NO_SCORES
        is_answer = plan.examples.is_answer[[window.document for window in batch]]
        index = torch.from_numpy(np.flatnonzero(is_answer)).to(device)
        scored_ND = scored_ND[index]
        targets_N = targets_N[index]
        nll = model.nll(scored_ND, targets_N)
        correct = model.likeliest(scored_ND) == targets_N
        return _as_array(nll), _as_array(correct)


def _as_array(values: torch.Tensor) -> np.ndarray:
    return values.float().cpu().numpy()


@contextmanager
def flush_denormals() -> Iterator[None]:
    """Count denormal numbers as zeros on a CPU, in all computing threads, while the context is open.

    As weights, denormal numbers cost some processors many times more. Each thread has a switch of its own,
    and a new thread takes it over from the thread that starts it. PyTorch turns only the calling thread's
    switch. So OpenMP has to end its threads, and starts new threads when it needs them.
    """
    if not torch.set_flush_denormal(True):  # not every processor can
        yield
        return
    _renew_threads()
    try:
        yield
    finally:
        torch.set_flush_denormal(False)
        _renew_threads()


def _renew_threads() -> None:
    """End OpenMP's threads, which start again when needed; nothing without OpenMP or with an old version."""
    library = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    with suppress(OSError, AttributeError):
        ctypes.CDLL(str(library)).omp_pause_resource_all(OMP_PAUSE_KIND)


# Controls that show nothing


def why_control_is_empty(plan: Plan, model: LanguageModel) -> str:
    """Return the reason why scoring a control would show nothing.

    Empty for a control that shows something, and for a plan that is not a control.
    """
    if plan.control == "window" and is_windowed(model.encoding, model.n_layers, plan.length):
        return "the encoding is windowed itself"
    has_own_donor = any(window.donor == window.document for window in plan.windows)
    if plan.control == "swap" and has_own_donor:
        return "all targets are of one document, and there is no other to swap with"
    return model.control_refusal(plan.control, plan.length)


def is_windowed(encoding: PositionalEncoding, n_layers: int, length: int) -> bool:
    """Return whether every layer by itself hides some of `length` tokens from the last token."""
    index = torch.arange(length)
    last_index = index[-1:]
    nothing = torch.empty(1, 1, length, 0)
    keys = Side(nothing, nothing, index, index, {})
    last = nothing[:, :, -1:]
    query = Side(last, last, last_index, last_index, {})
    layers = map(encoding.layer, range(n_layers))
    return not any(bool(layer.visible(query, keys).all()) for layer in layers)
