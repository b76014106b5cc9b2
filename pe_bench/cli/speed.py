"""The `speed` command: what encodings cost, as a table, a file and a picture."""

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from pe_bench.config.parse import parse_lengths
from pe_bench.errors import RunError, require
from pe_bench.inspection.resolve import ResolvedEncoding
from pe_bench.inspection.speed.rows import (
    Request,
    Row,
    read_request,
    read_rows,
    with_examples,
    write_rows,
)
from pe_bench.system.files import check_folder
from pe_bench.system.grid import draw, show
from pe_bench.system.terminal import say

if TYPE_CHECKING:
    from pe_bench.encodings.compose import Composition

LENGTHS = "512,2048,8192"
FILE = "speed.csv"


def time_encodings(
    arguments: Sequence[str] | None,
    lengths: str | None,
    repeats: int | None,
    output: Path | None,
    config_dir: Sequence[Path] | None,
    *,
    train: bool,
) -> None:
    """Time the encodings among `arguments`, or all, at each length; print, write and draw the results.

    Rows are written as they come, so that an interruption leaves those that there are, and those of other
    measurements stay in the file. Raises `UserError` for arguments that cannot be, before anything is timed.
    """
    wanted = sorted(set(parse_lengths(lengths or LENGTHS)))
    require(wanted[0] > 1, f"--lengths takes lengths of at least 2 tokens, and {wanted[0]} is shorter")
    if output is not None:
        require(output.suffix == ".csv", f"--output {output}: the name must end with .csv")
        require(output.parent.is_dir(), f"--output {output}: there is no folder {output.parent}")
        require(not output.is_dir(), f"--output {output}: a folder has that name")
    asked = read_request(arguments or [], train, config_dir or [])
    first = asked.at(wanted[0])
    for length in wanted[1:] if train else []:
        asked.reference(length)
    file = output or check_folder(first[0].config.results_dir, "results_dir") / FILE
    folder = next(parent for parent in file.absolute().parents if parent.exists())
    require(os.access(folder, os.W_OK), f"{file}: {folder} cannot be written: name another with --output")
    read_rows(file)
    _try_each(first, min(wanted[0], first[0].config.train.length))
    if not asked.is_choice:
        say(f"no encoding is named: timing all {len(first)}; Ctrl-C stops and keeps what is done")
    _measure(asked, first, wanted, repeats, file)


def _try_each(found: Sequence[ResolvedEncoding], length: int) -> None:
    """Build each, and try it on one window. Raises `UserError` for one that fails there."""
    from pe_bench.data.tokenizer import ByteTokenizer
    from pe_bench.encodings import LengthError
    from pe_bench.model.checks import dry_run
    from pe_bench.model.decoder import build_decoder

    encodings = [_built(subject) for subject in found]
    model = build_decoder(found[0].config, ByteTokenizer().vocabulary, found[0].spec)
    for subject, encoding in zip(found, encodings, strict=True):
        model.encoding = encoding
        with suppress(LengthError):  # is measured, and says so in its row
            dry_run(model, length, subject.name)


def _built(subject: ResolvedEncoding) -> "Composition":
    """Build the encoding, and print the example options used. Raises `UserError` where that fails."""
    given = subject.config.encoding
    complete = with_examples(subject)
    for option, value in complete.config.encoding.items():
        if given.get(option, {}) != value:
            say(f"{subject.name} has no default for {option}: timed with {option}={value}, an example")
    return complete.encoding


def _measure(
    asked: Request, first: Sequence[ResolvedEncoding], lengths: Sequence[int], repeats: int | None, file: Path
) -> None:
    """first: the subjects of the shortest length, which were composed to be checked."""
    from pe_bench.inspection.speed.measure import Bench
    from pe_bench.inspection.speed.passes import dtype_of
    from pe_bench.model.attention import is_kernel_here, training_kernel
    from pe_bench.system.machine import resolve_device, set_threads
    from pe_bench.system.progress import progress_bar

    config = first[0].config
    threads, device = set_threads(config.threads), resolve_device(config.device)
    if asked.train and device.type == "cpu" and not is_kernel_here():
        say(f"attention: {training_kernel(device, dtype_of(config, train=True))}")
    bench = Bench(" ".join(asked.shared), asked.train, repeats, device, threads)
    rows: list[Row] = []
    file.parent.mkdir(parents=True, exist_ok=True)

    def at(length: int) -> list[ResolvedEncoding]:
        same = length == lengths[0] or not asked.train
        return [with_examples(one) for one in (first if same else asked.at(length))]

    # A fault leaves the picture of the last command: one of a few rows would say less.
    is_drawn = True
    try:
        with progress_bar("speed", len(first) * len(lengths)) as bar:
            for row in bench.rows(lengths, at, lambda now: bar.show(len(rows), now)):
                write_rows(file, [*rows, row])
                rows.append(row)
                bar.show(len(rows), row.line, row.line)
    except Exception:
        is_drawn = False
        raise
    finally:
        if rows:
            _show(rows, file, is_drawn)
    if not any(row.status == "ok" for row in rows):
        raise RunError("nothing could be timed: the reasons are below the table")


def _show(rows: Sequence[Row], file: Path, is_drawn: bool) -> None:
    from pe_bench.inspection.speed.table import draw_rows, grid_of, title

    grid = grid_of(rows)
    show(lambda width: draw(grid, width))
    picture = file.with_suffix(".png")
    if is_drawn and any(row.relative is not None for row in rows):
        draw_rows(rows, title(rows), picture)
        say(f"wrote {file} and {picture}")
    else:
        say(f"wrote {file}")
