"""The result of `explain`: tables for people, rows for programs."""

import csv
import io
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from pe_bench.commands.explain.changes import layer_changes
from pe_bench.commands.explain.effects import Effect, Loss, Place, is_nonzero, percent
from pe_bench.commands.explain.measures import LayerMeasure
from pe_bench.errors import require
from pe_bench.render import grid
from pe_bench.render.grid import MISSING, Cell, Column, Grid
from pe_bench.report.cells import number_text
from pe_bench.report.statistics import Interval
from pe_bench.system.cost import count

# The reason why a change or measure has no meaning in a layer, the name of the change or measure, the layer.
MissingNumber = tuple[str, str, str]
# The columns of --csv.
CSV_COLUMNS = (
    *("change", "layers", "head", "length", "restored", "restored_low", "restored_high"),
    *("share", "share_low", "share_high", "reason"),
    *("measure", "mean", "difference", "difference_low", "difference_high"),
)
SHARES_NOTE = (
    "%: share of the loss that the change restores; ± half its 95 % interval; shares need not add up"
)


@dataclass(frozen=True)
class Explanation:
    """A model's losses at longer texts, the effects of changes, and the cause in a sentence."""

    label: str  # the encoding
    runs: tuple[Path, ...]  # one for each seed
    train_length: int
    lengths: tuple[int, ...]
    targets: int  # tokens at each length
    documents: int
    has_bytes: bool  # whether levels are bits per byte; else they are nats per token
    losses: tuple[Loss, ...]
    effects: tuple[Effect, ...]
    sentence: str  # the cause, by the rule of `effects.py`
    measures: tuple[LayerMeasure, ...] = ()  # empty if no layer was measured
    warning: str = ""  # a warning that the model has learned too little; empty for a model that has learned

    @property
    def unit(self) -> str:
        return "bits per byte" if self.has_bytes else "nats per token"

    def __str__(self) -> str:
        tables = [table.draw for table in explanation_tables(self)]
        return grid.printed_text(lambda console: grid.show(tables, console))

    def plot(self, path: str | Path) -> None:
        """Draw the effects of all changes, and the measures of each layer, into a .png, .svg or .pdf file.

        Raises `UserError` for another suffix, and if there is nothing to draw.
        """
        from pe_bench.commands.explain.picture import draw_layers

        message = "nothing is surely lost, and no layer was measured, so there is nothing to draw"
        require(bool(self.effects or self.measures), f"{message}: explain with by='layer'")
        title = f"{self.label}, trained at {self.train_length:,} tokens"
        length = max((loss.length for loss in self.losses if loss.is_sure), default=None)
        if length is not None:
            title += f": what a change restores of the loss at {length:,} tokens"
        effects = [effect for effect in self.effects if effect.length == length]
        draw_layers(Path(path), title, [f"{self.sentence}."], effects, self.measures)


def explanation_tables(explanation: Explanation) -> list[Grid]:
    """Return the table of changes with the sentence below it, and the table of measures if there are any."""
    tables = [_table_of_changes(explanation)]
    if explanation.measures:
        tables.append(_table_of_measures(explanation))
    return tables


def _table_of_changes(explanation: Explanation) -> Grid:
    """Return a row for each change and place: shares by length, and the cost at the training length."""
    effects_by_row: dict[tuple[str, str], dict[int, Effect]] = {}
    for effect in explanation.effects:
        by_length = effects_by_row.setdefault((effect.change, str(effect.place)), {})
        by_length[effect.length] = effect
    trained = explanation.train_length
    rows = [[Cell("lost"), Cell(), Cell(), *map(_loss_cell, explanation.losses)]]
    missing_effects: list[MissingNumber] = []
    for (change, place), by_length in effects_by_row.items():
        longer = [effect for length, effect in by_length.items() if length != trained]
        reasons = [effect.reason for effect in by_length.values() if effect.reason]
        missing_effects += [(reason, change, place) for reason in dict.fromkeys(reasons)]
        if longer and all(effect.reason for effect in longer):
            continue
        cost = _cost_cell(by_length.get(trained))
        shares = [_share_cell(by_length.get(length)) for length in explanation.lengths]
        rows.append([Cell(change), Cell(place), cost, *shares])
    notes = [f"{explanation.sentence}."]
    if explanation.warning:
        notes.insert(0, f"warning: {explanation.warning}")
    if effects_by_row:
        notes.append(SHARES_NOTE)
        notes.append(f"at {trained:,}: {explanation.unit} that the change adds at the training length")
    notes += _missing_notes(missing_effects)
    seeds = len(explanation.runs)
    title = [
        f"{explanation.label}, trained at {trained:,} tokens",
        f"{seeds} seeds" if seeds > 1 else explanation.runs[0].name,
    ]
    title.append(f"{count(explanation.targets, 'target')} of {count(explanation.documents, 'document')}")
    title.append(f"lost in {explanation.unit}")
    columns = _columns_by_layer("change", f"at {trained:,}", *_headings(explanation.lengths))
    return Grid(columns, rows, title, notes=notes, keys=2).without_empty()


def _columns_by_layer(first: str, *lengths: str) -> list[Column]:
    """Return the columns of a table: names under the heading `first`, layers, and each length."""
    names = [Column(first, is_left=True), Column("layer", is_left=True)]
    return [*names, *map(Column, lengths)]


def _headings(lengths: Iterable[int]) -> list[str]:
    return [f"{length:,}" for length in lengths]


def _loss_cell(loss: Loss) -> Cell:
    if loss.lost is None:
        return Cell(MISSING)
    mark = "" if loss.is_sure else "?"
    return Cell(f"{number_text(loss.lost.mean)}{_half_width(loss.lost, '.2g')}", mark=mark)


def _half_width(interval: Interval, form: str, factor: float = 1) -> str:
    """Return ` ± ` and half the interval's width times a factor; empty for an infinite interval.

    form: the format of the number, such as `.2g`.
    """
    half = factor * (interval.high - interval.low) / 2
    if not math.isfinite(half):
        return ""
    text = f"{half:{form}}"
    return f" ± {number_text(half) if 'e' in text else text}"


def _cost_cell(effect: Effect | None) -> Cell:
    """Return the cell of a change's cost: how much it raises the level at the training length."""
    if effect is None or effect.restored is None:
        return Cell(MISSING if effect and effect.reason else "")
    return Cell(number_text(-effect.restored.mean, "+"))


def _share_cell(effect: Effect | None) -> Cell:
    """Return the cell of the share of the loss that a change restores; empty without a share."""
    if effect is None or effect.share is None:
        return Cell(MISSING if effect and effect.reason else "")
    share = effect.share
    text = f"{percent(share.mean)}{_half_width(share, ',.0f', 100)} %"
    return Cell(text, colour=_colour_of_interval(share))


def _colour_of_interval(interval: Interval) -> str:
    """Return the colour of a number: dim if the interval includes zero."""
    return "" if is_nonzero(interval) else "dim"


def _table_of_measures(explanation: Explanation) -> Grid:
    """Return a row for each measure and layer: its mean at each length."""
    trained = explanation.train_length
    lengths = dict.fromkeys(measure.length for measure in explanation.measures)
    measures_by_row: dict[tuple[str, int], list[LayerMeasure]] = {}
    for measure in explanation.measures:
        measures_by_row.setdefault((measure.name, measure.layer), []).append(measure)
    rows: list[list[Cell]] = []
    missing_measures: list[MissingNumber] = []
    for (name, layer), measures in measures_by_row.items():
        reason = measures[0].reason
        if reason:
            missing_measures.append((reason, name, str(layer)))
        else:
            cells = map(_measure_cell, measures)
            rows.append([Cell(name), Cell(str(layer)), *cells])
    notes = [
        "means over heads and targets; what they describe need not be a cause",
        f"±: half the 95 % interval of the difference from {trained:,} tokens, query by query",
        *_missing_notes(missing_measures),
    ]
    columns = _columns_by_layer("measured", *_headings(lengths))
    return Grid(columns, rows, ["what each layer reads"], notes=notes, keys=2)


def _measure_cell(measure: LayerMeasure) -> Cell:
    """Return the cell of a measure: its mean, with half of the interval of its change since training."""
    if measure.mean is None:
        return Cell(MISSING)
    change = measure.change
    text = _number_text(measure.mean)
    if change is None or math.isinf(change.high):
        return Cell(text)
    half = _number_text((change.high - change.low) / 2)
    return Cell(f"{text} ± {half}", colour=_colour_of_interval(change))


def _number_text(value: float) -> str:
    """Return a number with three decimals below 10, one below 100, and none above."""
    size = abs(value)
    if size >= 100:
        return f"{value:,.0f}"
    return f"{value:,.1f}" if size >= 10 else f"{value:,.3f}"


def _missing_notes(missing: Sequence[MissingNumber]) -> list[str]:
    """Return notes, each with a reason, the changes or measures without a number, and their layers."""
    layers_without: dict[str, dict[str, list[str]]] = {}  # the layers, by reason and name
    for reason, name, layer in missing:
        layers_without.setdefault(reason, {}).setdefault(name, []).append(layer)
    notes: list[str] = []
    for reason, by_name in layers_without.items():
        names_by_layers: dict[str, list[str]] = {}
        for name, numbers in by_name.items():
            names_by_layers.setdefault(", ".join(numbers), []).append(name)
        for numbers, names in names_by_layers.items():
            listed = ", ".join(names)
            notes.append(f"n/a  {listed}: {reason} (layer {numbers})")
    return notes


def _csv_rows(explanation: Explanation) -> Iterator[dict[str, Any]]:
    """Yield a row for each loss, effect and measure, with the columns `CSV_COLUMNS`."""
    for loss in explanation.losses:
        yield _csv_row(change="lost", length=loss.length, restored=loss.lost, reason=loss.reason)
    for effect in explanation.effects:
        yield _csv_row(
            change=effect.change,
            layers=" ".join(map(str, effect.place.layers)),
            head=effect.place.head,
            length=effect.length,
            restored=effect.restored,
            share=effect.share,
            reason=effect.reason,
        )
    for measure in explanation.measures:
        yield _csv_row(
            measure=measure.name,
            layers=str(measure.layer),
            length=measure.length,
            mean=measure.mean,
            difference=measure.change,
            reason=measure.reason,
        )


def _csv_row(**values: Any) -> dict[str, Any]:
    """Return a row of `CSV_COLUMNS`; an interval fills three columns, and missing values are None."""
    row: dict[str, Any] = {name: values.get(name) for name in CSV_COLUMNS}
    for name in ("restored", "share", "difference"):
        interval = values.get(name)
        if interval is not None:
            row[name] = interval.mean
            row[f"{name}_low"] = interval.low
            row[f"{name}_high"] = interval.high
    return row


class CsvNumbers(NamedTuple):
    """The numbers in the CSV text of an explanation.

    The fields that the text lacks are empty: the `spread` and the `documents` of intervals, the `words` of
    effects.
    """

    losses: list[Loss]
    effects: list[Effect]
    measures: list[LayerMeasure]


def read_csv_text(text: str, seeds: int) -> CsvNumbers:
    """Return the numbers in the text that `csv_text` wrote. seeds: the number of runs."""
    rows = [*csv.DictReader(io.StringIO(text))]
    n_layers = max(len(row["layers"].split()) for row in rows)
    numbers = CsvNumbers([], [], [])
    changes = layer_changes(train_length=2)  # their names are the same at every length
    in_single_layers_alone = [change.name for change in changes if not change.in_all_layers]
    for row in rows:
        layers = tuple(map(int, row["layers"].split()))
        length = int(row["length"])
        restored = _interval_in(row, "restored", seeds)
        if row["change"] == "lost":
            numbers.losses.append(Loss(length, restored, row["reason"]))
        elif row["change"]:
            head = int(row["head"]) if row["head"] else None
            # In a model of one layer, a change of all layers comes before the same change of the layer.
            known = [effect for effect in numbers.effects if effect.place.is_all and effect.length == length]
            is_first = row["change"] not in [effect.change for effect in known]
            may_be_all = row["change"] not in in_single_layers_alone and head is None
            is_all = may_be_all and len(layers) == n_layers and is_first
            place = Place(layers, head, is_all=is_all)
            share = _interval_in(row, "share", seeds)
            numbers.effects.append(Effect(row["change"], "", place, length, restored, share, row["reason"]))
        else:
            mean = float(row["mean"]) if row["mean"] else None
            change = _interval_in(row, "difference", seeds)
            measure = LayerMeasure(row["measure"], layers[0], length, mean, change, row["reason"])
            numbers.measures.append(measure)
    return numbers


def _interval_in(row: Mapping[str, str], name: str, seeds: int) -> Interval | None:
    """Return the interval in the three columns of a name; None if they are empty."""
    if not row[name]:
        return None
    mean, low, high = (float(row[column]) for column in (name, f"{name}_low", f"{name}_high"))
    return Interval(mean, low, high, seeds, documents=0)


def csv_text(explanation: Explanation) -> str:
    """Return the numbers as CSV: a row for each loss, effect and measure."""
    import pandas

    frame = pandas.DataFrame(_csv_rows(explanation), columns=list(CSV_COLUMNS))
    # A column of integers with missing values would be one of floats.
    return frame.astype({"head": "Int64"}).to_csv(index=False)
