"""`pe_bench.probe`: can a run find a span of the text, as `pe-bench probe` asks."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from pe_bench.errors import require
from pe_bench.experiment.checkpoint import is_checkpoint
from pe_bench.interface.evaluate import score_named
from pe_bench.interface.request import listed, read_lengths, read_request
from pe_bench.interface.run import Run
from pe_bench.interface.values import plain as as_plain
from pe_bench.scoring.needles import DEFAULT_DEPTHS, DEFAULT_WINDOWS, Probe
from pe_bench.values import check_type


def probe(
    run: Run | str | Path,
    lengths: int | Sequence[int] | None = None,
    with_: str | Sequence[str] | None = None,
    *,
    depths: int | None = None,
    windows: int = DEFAULT_WINDOWS,
    task: str | None = None,
    precision: str | None = None,
    device: str | None = None,
    threads: int | None = None,
    force: bool = False,
    config_dir: str | Path | Sequence[str | Path] | None = None,
    code: str | Path | Sequence[str | Path] | None = None,
    data_path: str | Path | None = None,
    cache_dir: str | Path | None = None,
    results_dir: str | Path = "results",
    overrides: str | Sequence[str] | None = None,
    plain: bool = False,
) -> Run:
    """Ask a finished run to find a span of its validation text, and return the run.

        print(pe_bench.probe(run, lengths=[512, 2048], with_="yarn"))

    run, with_, overrides: as of `evaluate`. lengths: of windows in tokens, from 128; 1, 2, 4 and 16 times the
    training length if None. depths: evenly spaced places of the span, 5 if None. windows: at each length and
    depth. task: ask a checkpoint prompts of RULER instead: niah_multikey_3, vt or fwe. All other arguments
    are the options of `pe-bench probe`. Finished scores are reused.

    `print` shows the table of the command, and `scores` has a row for each length, depth and control.

    Raises `UserError` (a `ValueError`) before anything is scored where there is no such run or an option
    cannot work, `RunError` where scoring fails.
    """
    if task is not None:
        is_run = isinstance(run, Run) or not is_checkpoint(str(run))
        require(not is_run, f"task={task} is for a checkpoint (hf:FOLDER): probe {run} without it")
        require(depths is None, f"depths={depths} has no effect on prompts: leave it out")
    wanted_depths = DEFAULT_DEPTHS if depths is None else as_plain(depths)
    wanted = read_probe(read_lengths(lengths), wanted_depths, as_plain(windows))
    wanted = replace(wanted, prompts=task)
    machine = {"device": device, "threads": threads, "cache_dir": cache_dir}
    changes = {"precision": precision}
    request = read_request(changes, machine, with_, code, data_path, config_dir, force=force, probe=wanted)
    return score_named(run, request, Path(results_dir), listed(overrides), plain=plain)


def read_probe(lengths: Sequence[int] | None, depths: int, windows: int) -> Probe:
    """Return the probe that is asked for. Raises `UserError`."""
    known = None if lengths is None else check_type([*lengths], list[int], "lengths")
    found = Probe(known, check_type(depths, int, "depths"), check_type(windows, int, "windows"))
    found.check()
    return found
