"""Needles: does a model find a span of the window, given the span's beginning once more?

A window of L tokens is the body, L - 31 tokens of a document as they are; then the cue, the first 16 tokens
of a span of 32 in the body; then all but the last of the span's other 16 tokens, which are the targets. The
scores are:

- The NLL of the targets in the window, and in the control `replaced`: the same window with another span of
  the document, the span after the body, in place of the span.
- Right or wrong: the answer is right if the targets are likelier after the cue than the second halves of
  seven other spans, which are spread evenly over the body, by the sum of the NLLs of their 16 tokens. A tie
  is wrong.

Depth 0 is a span at the start of the body, depth 1 a span at its end. If the cue or the second half of a span
occurs once more in the window, or in its replacement, the text itself would repeat the answer: the nearest
unique span is taken instead. If no unique span lies within a twentieth of the body, or within 32 tokens in a
short window, the window is left out at this depth.

Windows follow from the text, the seed, the length and the depth. A smaller set of windows is part of every
larger set.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view
from torch import Tensor

from pe_bench.config.schema import Config, EvalConfig, Half
from pe_bench.data.packed import Data, Split
from pe_bench.data.prompt import PROMPT_KINDS
from pe_bench.errors import require
from pe_bench.model.decoder import LanguageModel
from pe_bench.runs.rows import PROBE
from pe_bench.scoring.plans import task_plan
from pe_bench.scoring.protocols import Needle, Plan, Window
from pe_bench.scoring.targets import target_blocks, with_half_prefix
from pe_bench.values import unknown

SPAN, CUE = 32, 16
ANSWER_TOKENS = SPAN - CUE
CHOICES = 8
MIN_PROBE_LENGTH = 128
DEFAULT_DEPTHS, DEFAULT_WINDOWS = 5, 64
# For a Hugging Face model, at each depth: a model of 135 million parameters then takes some nine minutes at
# 4,096 tokens on two cores, in bfloat16.
HF_MODEL_WINDOWS = 8
DEFAULT_TIMES = (1, 2, 4, 16)  # the default lengths, over the training length
# The largest distance between the wanted depth and a unique span, as a share of the body; at least `SPAN`.
MAX_SHIFT = 1 / 20
REPLACED = "replaced"  # a control
FIRST_INDEX = 1  # index 0 may have the beginning-of-text token of a Hugging Face model


@dataclass(frozen=True)
class Probe:
    """The options of a call of `probe` that decide the probed windows."""

    lengths: Sequence[int] | None = None  # None for the default lengths
    depths: int = DEFAULT_DEPTHS  # the number of depths, evenly spaced
    windows: int | None = None  # at each length and depth; the default is smaller for a Hugging Face model
    prompts: str | None = None  # the kind of prompts of a Hugging Face model, in place of needles

    def __post_init__(self) -> None:
        is_known = self.prompts is None or self.prompts in PROMPT_KINDS
        require(is_known, unknown(str(self.prompts), "--task", PROMPT_KINDS))

    def resolved_lengths(self, train_length: int) -> list[int]:
        """Return the lengths to probe: the given lengths, or `DEFAULT_TIMES` the training length."""
        if self.lengths:
            return sorted(set(self.lengths))
        usual = [times * train_length for times in DEFAULT_TIMES]
        return [length for length in usual if length >= MIN_PROBE_LENGTH] or [MIN_PROBE_LENGTH]

    def plans(self, config: Config, evaluation: EvalConfig, data: Data) -> list[Plan]:
        """Return a plan for each length, depth and control. Raise `UserError` for a length past the text."""
        lengths = self.resolved_lengths(config.train.length)
        if self.prompts is not None and data.prompts is not None:
            count = self.windows or DEFAULT_WINDOWS
            seed, half = evaluation.seed, evaluation.half
            return [task_plan(data.prompts, length, count, seed, half) for length in lengths]
        assert data.task is None and data.prompts is None, "only text has spans to find"
        usual = DEFAULT_WINDOWS if config.hf_model is None else HF_MODEL_WINDOWS
        count = self.windows or usual
        depths = np.linspace(0, 1, self.depths).round(4).tolist()
        plans: list[Plan] = []
        for length in lengths:
            for depth in depths:
                plans += needle_plans(data, length, depth, count, evaluation.seed, evaluation.half)
        return plans


def needle_plans(
    data: Data, length: int, depth: float, count: int, seed: int, half: Half = "both"
) -> list[Plan]:
    """Return two plans: at most `count` windows with a needle at a depth, and the control `replaced`.

    Raises `UserError` if no window has a unique span at the depth.
    """
    split = data.validation
    room = length + 1  # room for the body, and after it the span that replaces another
    blocks = target_blocks(split, room, SPAN, count, seed, data.hash, half)
    first = length - ANSWER_TOKENS
    windows = []
    for document, end in blocks.places:
        start = end - room
        needle = find_needle(split.document(document)[start:end], start, depth)
        if needle is not None:
            windows.append(Window(document, start, length, first, ANSWER_TOKENS, needle=needle))
    message = f"none of {len(blocks)} windows of {length} tokens has a unique span at depth {depth:g}"
    require(bool(windows), f"{message}: try more windows (--windows), or other data")
    spans = [(window.document, window.start, window.needle) for window in windows]
    words = repr((PROBE, data.hash, length, depth, spans)).encode()
    digest = hashlib.sha256(words).hexdigest()
    target_hash = with_half_prefix(digest[:16], half)
    plan = Plan(PROBE, length, windows, target_hash, depth=depth)
    replaced = []
    for window in windows:
        if window.needle is not None:
            needle = replace(window.needle, replacement=window.start + room - SPAN)
            replaced.append(replace(window, needle=needle))
    return [plan, replace(plan, windows=replaced, control=REPLACED)]


def find_needle(tokens: np.ndarray, start: int, depth: float) -> Needle | None:
    """Return the needle at a depth, from 0 to 1, of a haystack.

    Returns None without a unique span near the depth, and without `CHOICES` - 1 other spans.

    tokens: the haystack, and the span after it in the document, which replaces the needle in the control.
    start: the index of the first token in the document.
    """
    last = len(tokens) - 2 * SPAN  # start of a span in the body
    cues = sliding_window_view(tokens, CUE)
    center = FIRST_INDEX + round(depth * (last - FIRST_INDEX))
    shift = max(SPAN, round(MAX_SHIFT * last))
    lowest = max(FIRST_INDEX, center - shift)
    highest = min(last, center + shift)
    near = range(lowest, highest + 1)
    nearest = sorted(near, key=lambda index: abs(index - center))
    index = next((index for index in nearest if _is_unique(cues, index)), None)
    if index is None:
        return None
    spans = _other_spans(cues, index, last)
    if len(spans) < CHOICES - 1:
        return None
    others = tuple(start + other for other in spans)
    return Needle(start + index, start + index + CUE, others)


def text_order_key(window: Window) -> tuple[int, ...]:
    """Return the sort key by which each window begins like the window before it, as far as possible.

    The windows of one text are neighbours: first the text itself, then the text with each needle replaced,
    the last needle first.
    """
    needle = window.needle
    assert needle is not None
    return window.document, window.start, needle.replacement is not None, -needle.start


def end_of_body(window: Window) -> int:
    """Return the index in the document of the first token after a window's body."""
    return window.start + window.size + 1 - SPAN


def fed_tokens(windows: Sequence[Window]) -> list[int]:
    """Return the number of tokens fed to a model for each window, if shared beginnings are fed once.

    windows: in the order of `text_order_key`.
    """
    counts = []
    before = None
    for window in windows:
        needle = window.needle
        assert needle is not None
        text = window.document, window.start
        new = window.size
        if text == before:
            first_new = needle.start if needle.replacement is not None else end_of_body(window)
            new = window.start + window.size - first_new
        counts.append(new + CHOICES * ANSWER_TOKENS)
        before = text
    return counts


def score_needles(
    model: LanguageModel, split: Split, batch: Sequence[Window], generator: torch.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Return the NLL of each target, and 1 for each target of a right answer, both float32 [targets]."""
    nll_WCS = nll_of_choices(model, windows_of_choices(split, batch).to(model.device), generator)
    sums_WC = nll_WCS.sum(-1, dtype=np.float64)
    least_wrong_W = sums_WC[:, 1:].min(1)
    is_right_W = sums_WC[:, 0] < least_wrong_W
    correct = np.repeat(is_right_W, ANSWER_TOKENS).astype(np.float32)
    return nll_WCS[:, 0].ravel(), correct


def windows_of_choices(split: Split, batch: Sequence[Window]) -> Tensor:
    """Return the tokens [B, C, T + 1] of windows with each of their choices, the right one first."""
    tokens = []
    for window in batch:
        needle = window.needle
        text = split.document(window.document)
        assert needle is not None
        body = text[window.start : end_of_body(window)].copy()
        if needle.replacement is not None:
            index = needle.start - window.start
            other_span = text[needle.replacement :][:SPAN]
            body[index : index + SPAN] = other_span
        cue = text[needle.start : needle.start + CUE]
        starts = (needle.start, *needle.others)
        choices = [text[start + CUE : start + SPAN] for start in starts]
        tokens.append([np.concatenate([body, cue, choice]) for choice in choices])
    return torch.from_numpy(np.array(tokens, np.int64))


def nll_of_choices(model: LanguageModel, tokens_BCT: Tensor, generator: torch.Generator) -> np.ndarray:
    """Return the NLL of each choice's answer tokens, float32 [B, C, ANSWER_TOKENS].

    tokens_BCT: [B, C, T + 1], as `windows_of_choices` returns them.
    """
    fed_BCT = tokens_BCT[..., :-1]
    first = fed_BCT.shape[-1] - ANSWER_TOKENS
    ids = model.encoding.ids(fed_BCT.flatten(0, 1), train=False, generator=generator)
    hidden_NSD = model.hidden_of_ends(fed_BCT, ids, first)
    targets_N = tokens_BCT[..., -ANSWER_TOKENS:].flatten()
    nll_N = model.nll(hidden_NSD.flatten(0, 1), targets_N).float()
    return nll_N.cpu().numpy().reshape(*fed_BCT.shape[:2], ANSWER_TOKENS)


def _is_unique(cues: np.ndarray, index: int) -> bool:
    """Return whether both halves of the span at an index occur only once. cues: all halves, [n, CUE]."""
    for half in (index, index + CUE):
        is_equal = (cues == cues[half]).all(1)
        if is_equal.sum() > 1:
            return False
    return True


def _other_spans(cues: np.ndarray, index: int, last: int) -> list[int]:
    """Return the starts of other spans, spread from `index` on around the body, no two with the same end.

    There are `CHOICES` - 1 of them, or fewer if the body has too few different ends.
    """
    body = np.arange(FIRST_INDEX, last + 1)
    starts: list[int] = []
    endings = {cues[index + CUE].tobytes()}
    for number in range(1, CHOICES):
        wanted = index + number * len(body) // CHOICES
        for start in np.roll(body, FIRST_INDEX - wanted).tolist():
            ending = cues[start + CUE].tobytes()
            if ending not in endings:
                starts.append(start)
                endings.add(ending)
                break
    return starts
