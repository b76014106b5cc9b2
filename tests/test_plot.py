"""Pictures: that they are written whole, are the same each time, and can be read."""

import math
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Annotation
from result_fixtures import add_run

from pe_bench.errors import UserError
from pe_bench.plot import draw, plot_tables, spread_apart
from pe_bench.report import Table, build_tables

LENGTHS = (64, 128, 192, 256, 512)


def tables_of(folder: Path, encodings: int = 3, seeds: int = 1) -> list[Table]:
    """Encodings whose lines end almost at one point, where labels would overlap."""
    for index in range(encodings):
        for seed in range(seeds):
            levels: dict[int, float | None] = dict.fromkeys(LENGTHS, 2.5 + 0.001 * index + 0.1 * seed)
            add_run(folder, f"encoding{index}", levels, seed=seed)
    return build_tables(folder)


def labels(figure: Figure) -> list[Annotation]:
    return [
        text for axes in figure.axes for text in axes.texts
        if isinstance(text, Annotation) and text.get_text().startswith("encoding")
    ]  # fmt: skip


@pytest.mark.parametrize(("suffix", "start"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("PDF", b"%PDF")])
def test_the_suffix_is_the_format_and_a_second_drawing_is_the_same(
    tmp_path: Path, suffix: str, start: bytes
) -> None:
    tables = tables_of(tmp_path, encodings=2)
    paths = [tmp_path / f"{name}.{suffix}" for name in ("first", "second")]
    for path in paths:
        plot_tables(tables, path)
    contents = [path.read_bytes() for path in paths]
    assert contents[0].startswith(start)
    assert contents[0] == contents[1]
    assert not list(tmp_path.glob(".partial-*"))


@pytest.mark.parametrize("name", ["plot.jpg", "plot", "png"])
def test_another_suffix_is_refused_with_those_there_are(tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError, match=r"\.png, \.svg or \.pdf"):
        plot_tables([], tmp_path / name)


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"there is no folder .*nowhere"):
        plot_tables([], tmp_path / "nowhere" / "plot.png")


@pytest.mark.parametrize("encodings", [1, 3, 13])
def test_no_two_labels_overlap_and_all_are_in_the_picture(tmp_path: Path, encodings: int) -> None:
    figure = draw(tables_of(tmp_path, encodings))
    middles = sorted(label.get_position()[1] for label in labels(figure))
    assert len(middles) == encodings
    assert all(0 <= middle <= 1 for middle in middles)
    height = figure.axes[0].get_window_extent().height * 72 / figure.dpi
    assert all(np.diff(middles) * height >= 10)


def test_a_long_label_does_not_squeeze_the_panel(tmp_path: Path) -> None:
    add_run(tmp_path, "rope", {128: 3.0, 256: 3.0}, scored_with="yarn factor=4 beta_fast=16 beta_slow=2")
    figure = draw(build_tables(tmp_path))
    before = figure.axes[0].get_position().bounds
    figure.draw_without_rendering()
    assert figure.axes[0].get_position().bounds == before
    assert figure.axes[0].get_position().width > 0.8


def test_encodings_differ_in_looks_and_keep_theirs_in_every_panel(tmp_path: Path) -> None:
    tables_of(tmp_path, 13)
    add_run(tmp_path, "encoding7", {128: 3.0, 256: 3.0}, setting="0f0f0f0f")
    figure = draw(build_tables(tmp_path))
    looks = {
        axes: {(line.get_color(), line.get_marker(), line.get_linestyle()) for line in axes.lines[:-1]}
        for axes in figure.axes
    }
    small, large = sorted(looks.values(), key=len)
    assert (len(small), len(large)) == (1, 13)
    assert small < large


@pytest.mark.parametrize(("seeds", "filled"), [(1, 0), (2, 1)])
def test_a_band_needs_two_seeds(tmp_path: Path, seeds: int, filled: int) -> None:
    [axes] = draw(tables_of(tmp_path, 1, seeds)).axes
    assert sum(len(band.get_paths()) for band in axes.collections) == filled


def test_the_scored_lengths_are_the_ticks_of_a_log2_axis(tmp_path: Path) -> None:
    [axes] = draw(tables_of(tmp_path)).axes
    assert axes.get_xscale() == "log"
    assert list(axes.get_xticks()) == list(LENGTHS)
    assert [label.get_text() for label in axes.get_xticklabels()] == list(map(str, LENGTHS))
    assert "training length 128" in [text.get_text() for text in axes.texts]


def test_ticks_that_would_touch_keep_their_place_and_lose_their_number(tmp_path: Path) -> None:
    add_run(tmp_path, "rope", {16: 4.0, 127: 3.0, 128: 3.0, 129: 3.0, 2048: 3.0})
    [axes] = draw(build_tables(tmp_path)).axes
    assert [label.get_text() for label in axes.get_xticklabels()] == ["16", "", "128", "", "2048"]


def test_a_line_that_ends_early_says_so_and_infinite_levels_are_left_out(tmp_path: Path) -> None:
    add_run(tmp_path, "encoding0", {128: 3.0, 256: None})
    add_run(tmp_path, "encoding1", {128: 3.0, 256: math.inf})
    add_run(tmp_path, "encoding2", {128: 3.0, 256: 4.0})
    found = [label.get_text() for label in labels(draw(build_tables(tmp_path)))]
    assert sorted(found) == ["encoding0 (to 128)", "encoding1 (to 128)", "encoding2"]


def test_a_line_breaks_where_the_targets_change(tmp_path: Path) -> None:
    add_run(tmp_path, "rope", {64: 3.1, 128: 3.0, 256: 3.1})
    add_run(tmp_path, "rope", {128: 3.5, 4096: 5.0, 8192: 5.1}, target_hash="0ther", seed=0)
    add_run(tmp_path, "rope", {1024: 3.2}, seed=0)
    [axes] = draw(build_tables(tmp_path)).axes
    segments = [line for line in axes.lines if line.get_marker() != "None"]
    assert [list(np.asarray(line.get_xdata())) for line in segments] == [[64, 128, 256, 1024], [4096, 8192]]
    assert len({line.get_color() for line in segments}) == 1


def test_a_table_without_a_number_is_an_empty_panel(tmp_path: Path) -> None:
    add_run(tmp_path, "learned", {256: None})
    plot_tables(build_tables(tmp_path), tmp_path / "plot.png")
    assert (tmp_path / "plot.png").exists()


def test_one_panel_a_table_with_titles_that_tell_them_apart(tmp_path: Path) -> None:
    add_run(tmp_path, "rope", {128: 3.0, 256: 3.0})
    add_run(tmp_path, "rope", {128: 3.0, 256: 3.0}, setting="0f0f0f0f")
    titles = [axes.get_title(loc="left") for axes in draw(build_tables(tmp_path)).axes]
    assert len(set(titles)) == 2


def test_places_are_apart_in_order_and_inside() -> None:
    wanted = np.array([5.0, 5.0, 99.0, 0.0])
    places = spread_apart(wanted, 10, 100)
    assert np.all(np.diff(np.sort(places)) >= 10 - 1e-9)
    assert places.min() >= 0
    assert places.max() <= 100
    assert np.argsort(places).tolist() == [3, 0, 1, 2]
    assert spread_apart(np.array([20.0, 80.0]), 10, 100).tolist() == [20.0, 80.0]
