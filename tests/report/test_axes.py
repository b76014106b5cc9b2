"""Axes: their limits and shapes, their ticks, and that one rule holds for every picture."""

import numpy as np
import pytest
from matplotlib.figure import Figure

from pe_bench.report.curves import Scale, scale_of_changes, scale_of_levels
from pe_bench.report.draw import set_values

NO_BANDS = np.array([])


def levels(*values: float) -> Scale:
    return scale_of_levels(np.array(values), NO_BANDS, 0.1)


def changes(*values: float) -> Scale:
    return scale_of_changes(np.array(values), NO_BANDS, 0.01, 0.1)


def ticks_of(scale: Scale, maximum: int, signed: bool = False) -> list[str]:
    """Return the labels of the ticks within an axis."""
    axes = Figure().add_subplot()
    set_values(axes, scale, maximum, signed)
    ticks = [tick for tick in axes.get_yticks() if scale.low <= tick <= scale.high]
    return axes.yaxis.get_major_formatter().format_ticks(ticks)


def test_every_axis_has_several_ticks_within_it_and_labels_that_differ() -> None:
    several = [(2.0, 2.0), (4.486, 4.49), (2.0, 5.9), (1e-4, 30.0), (0.0, 1e6), (1.5, 12.0), (2.0, 9e9)]
    scales = [levels(*values) for values in several]
    scales += [changes(0.003), changes(-0.06, 3.3), changes(-900.0, 900.0)]
    for scale in scales:
        for maximum in (5, 7, 9):
            labels = ticks_of(scale, maximum)
            assert 3 <= len(labels) <= maximum, (scale, labels)
            assert len(set(labels)) == len(labels), (scale, labels)


@pytest.mark.parametrize("values", [(4.486, 4.49), (2.5, 2.505), (2.5, 2.5)])
def test_an_axis_of_levels_spans_ten_margins_at_least(values: tuple[float, float]) -> None:
    for margin in (0.01, 0.05):
        scale = scale_of_levels(np.array(values), NO_BANDS, 10 * margin)
        assert scale.high - scale.low >= 10 * margin
        assert scale.low < min(values) and max(values) < scale.high


def test_levels_more_than_fourfold_are_logarithmic() -> None:
    assert [levels(2.0, 7.9).shape, levels(2.0, 8.1).shape] == ["linear", "log"]
    assert levels(0.05, 8.0).shape == "linear", "what is as good as nothing is not magnified"
    assert scale_of_levels(np.array([0.2, 0.9]), NO_BANDS, 5.0).shape == "linear", "within ten margins"


def test_a_change_beyond_ten_margins_makes_the_axis_logarithmic_beyond_one() -> None:
    scale = scale_of_changes(np.array([0.02, 3.0]), NO_BANDS, 0.01, 0.1)
    assert (scale.shape, scale.linear_width) == ("asinh", 0.01)
    assert scale.share(0.02) - scale.share(0.0) > 0.15
    assert ticks_of(scale, 7, signed=True) == ["0", "+0.01", "+0.03", "+0.1", "+0.3", "+1", "+3"]


def test_bands_widen_an_axis_by_a_quarter_at_most() -> None:
    bands = np.array([-50.0, 50.0, np.inf, -np.inf])
    scale = scale_of_levels(np.array([2.0, 3.0]), bands, 0.1)
    assert 1.6 < scale.low < 1.75 + 1e-9
    assert 3.25 - 1e-9 < scale.high < 3.4


def test_matplotlib_puts_values_where_the_scale_does() -> None:
    for scale in (Scale(1, 3), Scale(1, 300, "log"), Scale(-1, 30, "asinh", 0.01)):
        axes = Figure().add_subplot()
        set_values(axes, scale, 7)
        for value in (1.0, 1.7, 2.9):
            place = axes.transAxes.inverted().transform(axes.transData.transform((0, value)))[1]
            assert place == pytest.approx(scale.share(value))
