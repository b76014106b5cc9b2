"""The result of `explain`: tables for people, rows for programs."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pe_bench.commands.explain.effects import Effect, Loss, percent
from pe_bench.commands.explain.measures import Quantity
from pe_bench.errors import require
from pe_bench.render import grid
from pe_bench.render.grid import MISSING, Cell, Column, Grid
from pe_bench.report.statistics import Interval

# The columns of --csv.
COLUMNS = (
    *("change", "layers", "head", "length", "restored", "restored_low", "restored_high"),
    *("share", "share_low", "share_high", "reason"),
    *("measure", "mean", "difference", "difference_low", "difference_high"),
)
SHARES_NOTE = (
    "%: share of the loss that the change restores; ± half its 95 % interval; shares need not add up"
)


@dataclass(frozen=True)
class Explanation:
    """What a model loses at longer texts, and what each change restores of it.

    label: the encoding. runs: one for each seed. targets: tokens at each length. sentence: what the table
    says. measures: empty if they were not asked for. unlearned: why the numbers mean little; empty for a
    model that has learned.
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
    measures: tuple[Quantity, ...] = ()
    unlearned: str = ""

    @property
    def unit(self) -> str:
        return "bits per byte" if self.has_bytes else "nats per token"

    def __str__(self) -> str:
        return grid.text_of(lambda console: grid.show([table.draw for table in tables_of(self)], console))

    def plot(self, path: str | Path) -> None:
        """Draw each layer into a file: .png, .svg or .pdf. Raises `UserError` for other files.

        Raises it also if no layer was measured.
        """
        from pe_bench.commands.explain.picture import draw_layers

        require(
            bool(self.measures), "no layer was measured, so there is nothing to draw: explain with by='layer'"
        )
        title = f"{self.label}, trained at {self.train_length:,} tokens"
        length = max((loss.length for loss in self.losses if loss.is_sure), default=None)
        if length is not None:
            title += f": what a change restores of the loss at {length:,} tokens"
        effects = [effect for effect in self.effects if effect.length == length]
        draw_layers(Path(path), title, f"{self.sentence}.", effects, self.measures)


def tables_of(found: Explanation) -> list[Grid]:
    """Return the causal table with the sentence below it, and what was measured by layer."""
    return [_table_of_changes(found), *([_table_of_measures(found)] if found.measures else [])]


def _table_of_changes(found: Explanation) -> Grid:
    """Return a row for each change and place: shares by length, and the cost at the training length."""
    known: dict[tuple[str, str], dict[int, Effect]] = {}
    for effect in found.effects:
        known.setdefault((effect.change, str(effect.place)), {})[effect.length] = effect
    lost_at = [loss.length for loss in found.losses if loss.is_sure]
    trained = found.train_length
    columns = [Column("change", is_left=True), Column("layer", is_left=True), Column(f"at {trained:,}")]
    columns += [Column(f"{length:,}") for length in found.lengths]
    rows = [[Cell("lost"), Cell(), Cell(), *(_loss_cell(loss) for loss in found.losses)]]
    missing: dict[str, dict[str, list[str]]] = {}
    for (change, place), by_length in known.items():
        reason = next((by_length[length].reason for length in lost_at if length in by_length), "")
        if reason:
            missing.setdefault(reason, {}).setdefault(change, []).append(place)
            continue
        cost = by_length.get(trained)
        cells = [_share_cell(by_length.get(length)) for length in found.lengths]
        rows.append([Cell(change), Cell(place), _cost_cell(cost), *cells])
    notes = [f"{found.sentence}."]
    if found.unlearned:
        notes.insert(
            0, f"warning: {found.label} {found.unlearned}, so its losses at longer lengths mean little"
        )
    if known:
        notes.append(SHARES_NOTE)
        notes.append(f"at {trained:,}: {found.unit} that the change adds at the training length")
    notes += _missing_notes(missing)
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


def _table_of_measures(found: Explanation) -> Grid:
    """Return a row for each measure and layer: its mean at each length."""
    trained = found.train_length
    lengths = list(dict.fromkeys(measure.length for measure in found.measures))
    columns = [Column("measured", is_left=True), Column("layer", is_left=True)]
    columns += [Column(f"{length:,}") for length in lengths]
    by_row: dict[tuple[str, int], list[Quantity]] = {}
    for measure in found.measures:
        by_row.setdefault((measure.name, measure.layer), []).append(measure)
    rows: list[list[Cell]] = []
    missing: dict[str, dict[str, list[str]]] = {}
    for (name, layer), measures in by_row.items():
        reason = measures[0].reason
        if reason:
            missing.setdefault(reason, {}).setdefault(name, []).append(str(layer))
        else:
            rows.append([Cell(name), Cell(str(layer)), *map(_quantity_cell, measures)])
    notes = [
        "means over heads and targets; what they describe need not be a cause",
        f"±: half the 95 % interval of the difference from {trained:,} tokens, query by query",
        *_missing_notes(missing),
    ]
    return Grid(columns, rows, ["what each layer reads"], notes=notes, keys=2)


def _quantity_cell(quantity: Quantity) -> Cell:
    if quantity.mean is None:
        return Cell(MISSING)
    change = quantity.change
    text = _number(quantity.mean)
    if change is None or math.isinf(change.high):
        return Cell(text)
    is_sure = change.low > 0 or change.high < 0
    half = (change.high - change.low) / 2
    return Cell(f"{text} ± {_number(half)}", colour="" if is_sure else "dim")


def _number(value: float) -> str:
    """Return a number with three decimals, a large one with fewer."""
    decimals = 3 if abs(value) < 10 else 1
    return f"{value:,.{decimals}f}" if abs(value) < 100 else f"{value:,.0f}"


def _missing_notes(missing: Mapping[str, Mapping[str, Sequence[str]]]) -> list[str]:
    """Return a line for each reason: what has no meaning in which layers.

    missing: by reason and name, the layers.
    """
    notes: list[str] = []
    for reason, places_of in missing.items():
        names_in: dict[str, list[str]] = {}
        for name, places in places_of.items():
            names_in.setdefault(", ".join(places), []).append(name)
        for places, names in names_in.items():
            notes.append(f"n/a  {', '.join(names)}: {reason} (layer {places})")
    return notes


def rows_of(found: Explanation) -> Iterator[dict[str, Any]]:
    """Yield a row for each loss, effect and measure, with the columns `COLUMNS`."""
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
    for measure in found.measures:
        yield _row(
            measure=measure.name,
            layers=str(measure.layer),
            length=measure.length,
            mean=measure.mean,
            difference=measure.change,
            reason=measure.reason,
        )


def _row(**values: Any) -> dict[str, Any]:
    row: dict[str, Any] = {name: values.get(name) for name in COLUMNS}
    for name in ("restored", "share", "difference"):
        interval = values.get(name)
        if interval is not None:
            row |= {name: interval.mean, f"{name}_low": interval.low, f"{name}_high": interval.high}
    return row


def csv_text(rows: Sequence[dict[str, Any]]) -> str:
    import pandas

    return pandas.DataFrame(rows, columns=list(COLUMNS)).to_csv(index=False)
