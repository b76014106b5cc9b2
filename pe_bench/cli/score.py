"""`eval` and `probe`: score finished runs and Hugging Face models, and print their tables."""

from collections.abc import Sequence
from itertools import chain, product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pe_bench import api
from pe_bench.cli.data import print_runs
from pe_bench.cli.options import command
from pe_bench.errors import RunError, require
from pe_bench.runs.typed import results_option
from pe_bench.system.terminal import say
from pe_bench.values import parse_lengths, unknown

if TYPE_CHECKING:
    from pe_bench.commands.evaluate import Evaluation, Run


@command("eval", api.evaluate)
def evaluate(
    runs: Sequence[str] = (),
    *,
    where: Sequence[str] = (),
    everything: bool = False,
    baseline: str | None = None,
    as_json: bool = False,
    **options: Any,
) -> None:
    """Score runs at other lengths or with other encodings.

    Without RUN, --where and --all, the run that finished last is scored. Options
    replace values of the run's configuration. hf:FOLDER and hf:OWNER/NAME are
    Hugging Face models, whose data is given as KEY=VALUE.

    everything: Score every finished run, not only the last.
    baseline NAME: The encoding, or hf:FOLDER, to compare the others with.

    Examples:
      pe-bench eval --lengths 512,2048
      pe-bench eval rope-s0-1a2b3c4d --protocol sliding
      pe-bench eval rope alibi --where 'seed<3' --lengths 4096
      pe-bench eval --with yarn,rope_ntk --with 'yarn factor=4 beta_fast=16'
      pe-bench eval hf:FOLDER data=files data.path=texts --lengths 4096 --with yarn
      pe-bench eval hf:A hf:B data.path=texts --lengths 4096 --baseline hf:A
    """
    from pe_bench.cli.tables import print_scored, tables_by_folder, tables_of_run
    from pe_bench.commands.sweep.show import SweepTable
    from pe_bench.runs.find import is_hf_name

    options["per_position"] = options["per_position"] or None
    from pe_bench.commands.evaluate import Evaluation

    scored, failures = _score_named(Evaluation, runs, where, everything, options, baseline)
    # A run that lies elsewhere has no folder of results to be compared in.
    is_one = len(scored) == 1 and baseline is None
    alone = [run for run in scored if is_one or run.path.parent.name != "runs"]
    compared = [run.path for run in scored if run not in alone]
    rows = chain.from_iterable(run.scored for run in scored)
    hashes = dict.fromkeys(row.target_hash for row in rows)
    by = ("model",) if sum(map(is_hf_name, runs)) > 1 else ()
    lengths = scored[0].lengths if scored else ()
    together = tables_by_folder(SweepTable(compared, list(hashes), None), lengths, by=by, baseline=baseline)
    print_scored("eval", [*map(tables_of_run, alone), *together], failures, as_json=as_json)
    _raise_failures(failures)


@command("probe", api.probe, api.evaluate)
def probe(
    runs: Sequence[str] = (),
    *,
    where: Sequence[str] = (),
    everything: bool = False,
    as_json: bool = False,
    **options: Any,
) -> None:
    """Ask runs or Hugging Face models to find a span of the text.

    Each window of validation text ends with the first half of a span that also
    occurs earlier in it: does that make the second half likelier, and the likeliest
    of eight endings? Without RUN, --where and --all, the run that finished last is
    probed. Finished scores are reused; report --probe shows them.

    everything: Probe every finished run, not only the last.

    Examples:
      pe-bench probe --lengths 512,2048
      pe-bench probe rope alibi --depths 3 --windows 32
      pe-bench probe rope --lengths 256 --with yarn,rope_ntk
      pe-bench probe hf:FOLDER data=files data.path=texts --lengths 4096
      pe-bench probe hf:FOLDER --task niah_multikey_3,vt,fwe --lengths 4096
    """
    from pe_bench.commands.evaluate import Probing

    scored, failures = _score_named(Probing, runs, where, everything, options)
    if options["task"] is not None:
        from pe_bench.cli.tables import print_scored, tables_of_run

        print_scored("probe", map(tables_of_run, scored), failures, as_json=as_json)
    elif scored:
        _print_probes(scored, failures, options["results_dir"], as_json=as_json)
    _raise_failures(failures)


def _print_probes(
    scored: Sequence["Run"], failures: Sequence[str], results_dir: Path, *, as_json: bool
) -> None:
    """Print the tables of probed runs, or one JSON document, which has the messages `failures` too."""
    from pe_bench.report.build import probes_of_rows
    from pe_bench.report.probes import show_probes

    runs = {run.name: run for run in scored}
    rows = list(chain.from_iterable(run.scored for run in scored))
    tables = probes_of_rows(rows, runs.__getitem__)
    if as_json:
        print_runs("probe", [run.path for run in scored], failures, probes=tables)
    else:
        show_probes(tables, hint=f"again: pe-bench report{results_option(results_dir)} --probe")


def _score_named(
    kind: "type[Evaluation]",
    names: Sequence[str],
    where: Sequence[str],
    everything: bool,
    options: dict[str, Any],
    baseline: str | None = None,
) -> tuple[list["Run"], list[str]]:
    """Score the named Hugging Face models or runs, runs that meet conditions, or all runs.

    By default the newest run is scored. Raises `UserError` for a `baseline` that none of them can be, before
    anything is scored.

    Returns the scored runs, and a message for each failure. kind: the class of the request that is made of
    the options.
    """
    from pe_bench.commands.evaluate import score, score_each
    from pe_bench.runs.find import address_of, is_hf_name, parse_condition, runs_to_score

    options["lengths"] = parse_lengths(",".join(options["lengths"])) if options["lengths"] else None
    hf_models = [name for name in dict.fromkeys(names) if is_hf_name(name)]
    if not hf_models:
        conditions = [*map(parse_condition, where)]
        paths = runs_to_score(names, conditions, options["results_dir"], everything=everything)
        if not (names or where or everything):
            say(f"the newest finished run: {paths[0]}")
        if baseline is not None:
            _require_baseline(baseline, paths)
        return score_each(paths, kind.read(**options))
    require(not where and not everything, "--where and --all choose runs: leave them out with hf:NAME")
    from pe_bench.hf.load import with_one_length

    overrides = [name for name in names if name not in hf_models]
    options["overrides"], options["reference"] = with_one_length(
        hf_models, overrides, options.get("reference")
    )
    if options.get("task"):
        requests = [kind.read(**{**options, "task": task}) for task in options["task"].split(",")]
    else:
        requests = [kind.read(**options)]
    if baseline is not None and is_hf_name(baseline):
        is_named = address_of(baseline) in map(address_of, hf_models)
        require(is_named, unknown(baseline, "--baseline", hf_models))
    runs = [score(name, request) for name, request in product(hf_models, requests)]
    return runs, [run.failure for run in runs if run.failure]


def _require_baseline(baseline: str, paths: Sequence[Path]) -> None:
    """Raise `UserError` unless a line of these runs, or of an anchor, may have the name `baseline`."""
    from pe_bench.runs.find import COPYING, TRIGRAM, is_hf_name, scores_hf_model
    from pe_bench.runs.folder import RunFolder, read_result

    if is_hf_name(baseline):
        is_known = any(scores_hf_model(RunFolder(path), baseline) for path in paths)
        require(
            is_known,
            f"--baseline {baseline}: none of the runs to score is of this model: name another baseline",
        )
        return
    try:
        encodings = {str((read_result(path) or {}).get("encoding")) for path in paths}
    except RunError:  # the other runs are scored, and the table says which run is left out
        return
    # A label begins with the encoding of the training: `rope base=500.0 -> yarn factor=2.0`.
    has_beginning = any(f"{baseline} ".startswith(f"{encoding} ") for encoding in encodings)
    known = {TRIGRAM, COPYING, *(encoding.partition(" ")[0] for encoding in encodings)}
    require(baseline in known or has_beginning, unknown(baseline, "--baseline", encodings))


def _raise_failures(failures: Sequence[str]) -> None:
    if len(failures) > 1:
        raise RunError(f"{failures[0]} (and {len(failures) - 1} more)")
    if failures:
        raise RunError(failures[0])
