"""The result of `explain`: tables for people, rows for programs."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pe_bench.commands.explain.effects import Effect, Loss, percent
from pe_bench.render import grid
from pe_bench.render.grid import MISSING, Cell, Column, Grid
from pe_bench.report.statistics import Interval

# The columns of --csv.
COLUMNS = (
    *("change", "layers", "head", "length", "restored", "restored_low", "restored_high"),
    *("share", "share_low", "share_high", "reason"),
)
SHARES_NOTE = (
    "%: share of the loss that the change restores; ± half its 95 % interval; shares need not add up"
)


@dataclass(frozen=True)
class Explanation:
    """What a model loses at longer texts, and what each change restores of it.

    label: the encoding. runs: one for each seed. targets: tokens at each length. sentence: what the table
    says.
    """

    label: str
    runs: tuple[Path, ...]
    train_length: int
    lengths: tuple[int, ...]
    targets: int
    documents: int
    has_bytes: bool
    losses: tuple[Loss, ...]
    effects: tuple[Effect, ...]
    sentence: str

    @property
    def unit(self) -> str:
        return "bits per byte" if self.has_bytes else "nats per token"

    def __str__(self) -> str:
        return grid.text_of(lambda console: grid.show([table.draw for table in tables_of(self)], console))


def tables_of(found: Explanation) -> list[Grid]:
    """Return the causal table, with the sentence below it."""
    return [_causal(found)]


def _causal(found: Explanation) -> Grid:
    """Return a row for each change and place: shares by length, and the cost at the training length."""
    known: dict[tuple[str, str], dict[int, Effect]] = {}
    for effect in found.effects:
        known.setdefault((effect.change, str(effect.place)), {})[effect.length] = effect
    lost_at = [loss.length for loss in found.losses if loss.is_sure]
    trained = found.train_length
    columns = [Column("change", is_left=True), Column("layer", is_left=True), Column(f"at {trained:,}")]
    columns += [Column(f"{length:,}") for length in found.lengths]
    rows = [[Cell("lost"), Cell(), Cell(), *(_loss_cell(loss) for loss in found.losses)]]
    reasons: dict[str, list[str]] = {}
    for (change, place), by_length in known.items():
        reason = next((by_length[length].reason for length in lost_at if length in by_length), "")
        if reason:
            reasons.setdefault(f"{change}: {reason}", []).append(place)
            continue
        cost = by_length.get(trained)
        cells = [_share_cell(by_length.get(length)) for length in found.lengths]
        rows.append([Cell(change), Cell(place), _cost_cell(cost), *cells])
    notes = [f"{found.sentence}."]
    if known:
        notes.append(SHARES_NOTE)
        notes.append(f"at {trained:,}: {found.unit} that the change adds at the training length")
    notes += [f"n/a  {text} (layer {', '.join(places)})" for text, places in reasons.items()]
    seeds = len(found.runs)
    title = [
        f"{found.label}, trained at {trained:,} tokens",
        f"{seeds} seeds" if seeds > 1 else found.runs[0].name,
        f"{found.targets:,} targets of {found.documents} documents",
        f"lost in {found.unit}",
    ]
    return Grid(columns, rows, title, notes=notes, keys=2).without_empty()


def _loss_cell(loss: Loss) -> Cell:
    if loss.lost is None:
        return Cell(MISSING)
    return Cell(f"{loss.lost.mean:.3f}{_margin(loss.lost)}", mark="" if loss.is_sure else "?")


def _margin(interval: Interval) -> str:
    half = (interval.high - interval.low) / 2
    return f" ± {half:.2g}" if math.isfinite(half) else ""


def _cost_cell(effect: Effect | None) -> Cell:
    if effect is None or effect.restored is None:
        return Cell()
    return Cell(f"{-effect.restored.mean:+.3f}")


def _share_cell(effect: Effect | None) -> Cell:
    if effect is None or effect.share is None:
        return Cell()
    share = effect.share
    is_sure = share.low > 0 or share.high < 0
    half = (share.high - share.low) / 2
    margin = f" ± {100 * half:.0f}" if math.isfinite(half) else ""
    return Cell(f"{percent(share.mean)}{margin} %", colour="" if is_sure else "dim")


def rows_of(found: Explanation) -> Iterator[dict[str, Any]]:
    """Yield a row for each loss and each effect, with the columns `COLUMNS`."""
    for loss in found.losses:
        yield _row(change="lost", length=loss.length, restored=loss.lost, reason=loss.reason)
    for effect in found.effects:
        yield _row(
            change=effect.change,
            layers=" ".join(map(str, effect.place.layers)),
            head=effect.place.head,
            length=effect.length,
            restored=effect.restored,
            share=effect.share,
            reason=effect.reason,
        )


def _row(**values: Any) -> dict[str, Any]:
    row: dict[str, Any] = {name: values.get(name) for name in COLUMNS}
    for name in ("restored", "share"):
        interval = values.get(name)
        if interval is not None:
            row |= {name: interval.mean, f"{name}_low": interval.low, f"{name}_high": interval.high}
    return row


def csv_text(rows: Sequence[dict[str, Any]]) -> str:
    import pandas

    return pandas.DataFrame(rows, columns=list(COLUMNS)).to_csv(index=False)
