"""Scoring: a run's directory and lengths in; eval.csv and the NLL of every target out."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch

from pe_bench.config import Config, EvalConfig
from pe_bench.controls import control_plans, remark, why_not
from pe_bench.data.packed import Data
from pe_bench.data.targets import scored_documents, target_blocks
from pe_bench.encodings import LengthError
from pe_bench.errors import RunError, first_line
from pe_bench.loss import token_nll
from pe_bench.machine import (
    device_name,
    git_commit,
    package_version,
    peak_memory_mb,
    reset_peak_memory,
    today,
)
from pe_bench.model import Decoder
from pe_bench.positions import in_range, one_pass, position_plans
from pe_bench.protocols import (
    Plan,
    batches,
    inputs,
    nonoverlapping_plan,
    paired_plan,
    sliding_plan,
    target_bytes,
    target_documents,
    targets,
    with_donors,
)
from pe_bench.results import POSITIONS, TOLD, Row, read_rows, write_rows
from pe_bench.scores import LEVEL_OF_PROTOCOL, Scores, load_scores, save_scores, score_path
from pe_bench.seeds import derive_seed


@dataclass(frozen=True)
class Subject:
    """A trained model and what its rows say of it."""

    run: Path
    config: Config
    model: Decoder
    data: Data
    device: torch.device
    threads: int
    train_dtype: str
    setting: str
    label: str
    scored_with: str  # the label of the encoding in `model`, where that is not the run's own
    tokens_per_second: float


# Told of each length: the protocol, the length, and the share of it that is done.
Watcher = Callable[[str, int, float], None]


def evaluate(subject: Subject, evaluation: EvalConfig, watch: Watcher) -> list[Row]:
    """Score what is missing of the asked lengths, and return the rows of all that was asked.

    After each length its scores and its row are on the disk. A length that the encoding cannot
    reach is a row with its status and reason, and the others go on.
    """
    kept = {row.key: row for row in read_rows(subject.run / "eval.csv")}
    asked = []
    plans = make_plans(subject.config, evaluation, subject.data)
    scorer = Scorer(subject, evaluation, [plan for _, plan in plans if plan.protocol == POSITIONS], watch)
    for length, plan in plans:
        row = _empty_row(subject, length, plan)
        if not _is_scored(subject.run, kept.get(row.key)):
            kept[row.key] = _score(subject, plan, row, scorer)
            write_rows(subject.run / "eval.csv", sorted(kept.values(), key=lambda one: one.order))
        asked.append(kept[row.key])
    return asked


def make_plans(config: Config, evaluation: EvalConfig, data: Data) -> list[tuple[int, Plan]]:
    """What to score at each length, in rising order of lengths. Raises `UserError`.

    Lengths up to `max_length` share one set of targets. Longer ones make a set of their own, on
    which the training length is scored too, so that there is something to compare with. The controls of a
    set follow its lengths.
    """
    train_length = config.train.length
    lengths = evaluation.resolved_lengths(train_length)
    longest = max(train_length, evaluation.resolved_max_length(train_length))
    within = [length for length in lengths if length <= longest]
    beyond = [length for length in lengths if length > longest]
    plans = list(_plans(config, evaluation, data, within, longest)) if within else []
    if beyond:
        plans += _plans(config, evaluation, data, sorted({train_length, *beyond}), max(beyond))
    if evaluation.per_position:
        text = scored_documents(data.validation, max(lengths), evaluation.tokens, evaluation.seed)
        plans += position_plans(data, text, max(lengths))
    return plans


def count_parts(plans: Sequence[tuple[int, Plan]]) -> int:
    """How many things there are to wait for: all ranges of positions are one."""
    ranges = sum(plan.protocol == POSITIONS for _, plan in plans)
    return len(plans) - max(0, ranges - 1)


def shortages(config: Config, evaluation: EvalConfig, plans: Sequence[tuple[int, Plan]]) -> list[str]:
    """A line for each set of target blocks that is smaller than was asked for."""
    longest = max(config.train.length, evaluation.resolved_max_length(config.train.length))
    reached: dict[str, int] = {}
    blocks: dict[str, Plan] = {}
    for length, plan in plans:
        if plan.protocol == "paired" and len(plan.windows) < evaluation.targets:
            own = longest if length <= longest else length
            reached[plan.target_hash] = max(own, reached.get(plan.target_hash, 0))
            blocks[plan.target_hash] = plan
    # A set of longer lengths has a row of the training length too: its longest says what documents reach.
    return [
        f"too few documents: {plan.documents} reach {reached[target_hash]} tokens, with room for "
        f"{len(plan.windows)} of eval.targets={evaluation.targets} target blocks; those are scored"
        for target_hash, plan in blocks.items()
    ]


def _plans(
    config: Config, evaluation: EvalConfig, data: Data, lengths: Sequence[int], longest: int
) -> Iterator[tuple[int, Plan]]:
    if evaluation.protocol == "paired":
        size = evaluation.resolved_target_tokens(config.train.length)
        blocks = target_blocks(data.validation, longest, size, evaluation.targets, evaluation.seed, data.hash)
        yield from ((length, paired_plan(blocks, length)) for length in lengths)
        yield from control_plans(evaluation, blocks, list(lengths), config.train.length)
        return
    text = scored_documents(data.validation, longest, evaluation.tokens, evaluation.seed)
    if evaluation.protocol == "nonoverlapping":
        yield from ((length, nonoverlapping_plan(data, text, length)) for length in lengths)
    else:
        strides = {length: min(length, evaluation.stride or max(1, length // 2)) for length in lengths}
        yield from ((length, sliding_plan(data, text, length, strides[length])) for length in lengths)


def _is_scored(run: Path, row: Row | None) -> bool:
    """Whether there is a row to keep: a lost or damaged file of scores is made again."""
    if row is None or row.status == "out_of_memory":
        return False
    if row.status != "ok":
        return True
    try:
        load_scores(_path(run, row))
    except RunError:
        return False
    return True


def _path(run: Path, row: Row) -> Path:
    other = row.scored_with if row.scored_with != row.encoding else None
    return score_path(run, row.protocol, row.length, row.control, row.target_hash, other, row.stride)


def _score(subject: Subject, plan: Plan, row: Row, scorer: "Scorer") -> Row:
    """The row with its numbers, or with the reason why it has none."""
    layers = subject.config.model.n_layers
    impossible = why_not(plan, subject.model.encoding, layers, row.length)
    if impossible is not None:
        return replace(row, status=impossible[0], reason=impossible[1])
    reset_peak_memory(subject.device)
    try:
        nll = scorer.nll(plan, row.length)
    except LengthError as error:
        return replace(row, status="undefined", reason=str(error))
    except (torch.OutOfMemoryError, MemoryError) as error:
        return replace(row, status="out_of_memory", reason=first_line(error))
    except RuntimeError as error:
        if "can't allocate memory" not in str(error):  # how PyTorch says it on a CPU
            raise
        return replace(row, status="out_of_memory", reason=first_line(error))
    split = subject.data.validation
    scores = Scores(nll, target_documents(plan.windows), target_bytes(split, plan.windows))
    save_scores(_path(subject.run, row), scores)
    level = LEVEL_OF_PROTOCOL[row.protocol](scores)
    return replace(
        row,
        reason=_remarks(subject, plan),
        nll=level.nll,
        perplexity=level.perplexity,
        bits_per_byte=level.bits_per_byte,
        peak_memory_mb=round(peak_memory_mb(subject.device), 1),
    )


def _remarks(subject: Subject, plan: Plan) -> str:
    """What a row with numbers says beside them."""
    told = "prefix_consistent" not in subject.model.encoding.claims
    remarks = [remark(plan, subject.config.model.n_layers), TOLD if told else ""]
    return "; ".join(one for one in remarks if one)


class Scorer:
    """Runs plans; the ranges of positions share one pass where the encoding is prefix consistent."""

    def __init__(self, subject: Subject, evaluation: EvalConfig, ranges: Sequence[Plan], watch: Watcher):
        self.subject, self.evaluation, self.ranges, self.watch = subject, evaluation, ranges, watch

    def nll(self, plan: Plan, length: int) -> np.ndarray:
        """The NLL of every target of a plan in nats, float32, in the order of its windows."""
        if plan.protocol != POSITIONS:
            what = plan.protocol if plan.control == "none" else f"{plan.control} control"
            return self._run(plan, length, lambda share: self.watch(what, length, share))
        if "prefix_consistent" in self.subject.model.encoding.claims:
            try:
                return in_range(self._of_all_positions, plan)
            except LengthError:  # then every range says for itself whether it can be scored
                pass
        return self._run(plan, length, self._watch_ranges(plan))

    @cached_property
    def _of_all_positions(self) -> np.ndarray:
        whole = one_pass(self.ranges)
        longest = whole.windows[0].size
        return self._run(whole, longest, lambda share: self.watch(POSITIONS, longest, share))

    def _watch_ranges(self, plan: Plan) -> Callable[[float], None]:
        """All ranges are one thing to wait for."""
        place, longest = self.ranges.index(plan), self.ranges[-1].windows[0].size
        return lambda share: self.watch(POSITIONS, longest, (place + share) / len(self.ranges))

    @torch.no_grad()
    def _run(self, plan: Plan, length: int, tell: Callable[[float], None]) -> np.ndarray:
        model, split, device = self.subject.model, self.subject.data.validation, self.subject.device
        found, done = [], 0
        for batch in batches(plan.windows, self.evaluation.batch_tokens):
            tell(done / len(plan.windows))
            tokens_BT = inputs(split, batch)
            # One draw for each length, whatever the batches: a score must not depend on memory.
            generator = torch.Generator().manual_seed(derive_seed(self.evaluation.seed, "ids", length))
            # A control changes what is read and not where: the ids are those of the text itself.
            ids = model.encoding.ids(tokens_BT.to(device), train=False, generator=generator)
            fed_BT = with_donors(split, batch, tokens_BT) if plan.control == "swap" else tokens_BT
            hidden_BTD = model.hidden(fed_BT.to(device), ids, plan.limit)
            first, count = batch[0].first, batch[0].targets
            scored = hidden_BTD[:, first : first + count].flatten(0, 1)
            nll = token_nll(scored, model.output_weight, targets(split, batch).flatten().to(device))
            found.append(nll.float().cpu().numpy())
            done += len(batch)
        tell(1.0)
        return np.concatenate(found)


def _empty_row(subject: Subject, length: int, plan: Plan) -> Row:
    """A row with all that is known before anything is scored."""
    config, data = subject.config, subject.data
    return Row(
        run=subject.run.name,
        encoding=subject.label,
        scored_with=subject.scored_with,
        seed=config.seed,
        model=config.model.name,
        setting=subject.setting,
        train_length=config.train.length,
        length=length,
        protocol=plan.protocol,
        control=plan.control,
        stride=plan.stride,
        status="ok",
        reason="",
        nll=None,
        perplexity=None,
        bits_per_byte=None,
        context_mean=plan.context_mean,
        targets=sum(window.targets for window in plan.windows),
        documents=plan.documents,
        target_hash=plan.target_hash,
        data=config.data.name,
        data_hash=data.hash,
        tokenizer=data.tokenizer,
        parameters=subject.model.parameter_count,
        steps=config.train.total_steps,
        train_tokens=config.train.total_steps * config.train.batch_tokens,
        tokens_per_second=round(subject.tokens_per_second, 1),
        peak_memory_mb=None,
        device=device_name(subject.device),
        train_dtype=subject.train_dtype,
        score_dtype="float32",
        threads=subject.threads,
        torch=torch.__version__,
        pe_bench=package_version(),
        git=git_commit(),
        date=today(),
    )
