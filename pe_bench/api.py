"""What notebooks call and the commands do: `train`, `evaluate`, `probe` and `results`.

Heavy imports wait until a call has work to do.
"""

from __future__ import annotations

import io
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pe_bench.config.compose import compose_config, is_sweep
from pe_bench.config.overrides import parse_override, quote
from pe_bench.config.parse import parse_config, to_plain, without_none
from pe_bench.config.schema import Config, EvalConfig, Protocol, Slice, check_margin, warn_unused
from pe_bench.errors import RunError, UserError, require
from pe_bench.runs.commands import called_with
from pe_bench.runs.find import find_run, find_runs, parse_condition
from pe_bench.runs.folder import RunFolder, read_config
from pe_bench.runs.gather import require_results_folder
from pe_bench.runs.identity import encoding_in
from pe_bench.runs.rows import ALL, COLUMNS, MAYBE_WHOLE, PROBE, Row
from pe_bench.runs.scores import explain_lost_scores, lengths_without_scores
from pe_bench.system.files import check_folder
from pe_bench.system.signals import interruptible
from pe_bench.system.terminal import say
from pe_bench.values import check_type

if TYPE_CHECKING:
    import pandas

    from pe_bench.report.build import Report
    from pe_bench.report.selection import Selection
    from pe_bench.scoring.needles import Probe

Score = Callable[[], "Run"]  # scores a run that was checked
OF_EVAL = ("lengths", "protocol", "max_length", "targets", "stride", "controls", "per_position", "precision")
OF_MACHINE = ("device", "threads", "cache_dir")
PREFIX = "hf:"


class Run(RunFolder):
    """A finished run. `print(run)` shows the table that the command prints.

    path: its folder, which is all that a later process needs. config: its configuration, as nested
    dictionaries. validation_loss: the last one of its training, in nats per token.
    """

    def __init__(self, path: Path, scored: Sequence[Row], margin: float, asked: Sequence[int] = ()) -> None:
        """scored: the rows that the call asked for. margin: of verdicts. asked: lengths that were named."""
        super().__init__(path)
        self.scored, self.margin, self.asked = list(scored), margin, tuple(asked)

    @property
    def name(self) -> str:
        """The encoding, the seed and a hash of everything that changes the weights."""
        return self.path.name

    @property
    def scores(self) -> pandas.DataFrame:
        """Return the scores that the call asked for, one a row, with the columns of results.csv."""
        import pandas

        frame = pandas.DataFrame([vars(row) for row in self.scored], columns=list(COLUMNS))
        return frame.astype(dict.fromkeys(MAYBE_WHOLE, "Int64"))

    @property
    def failure(self) -> str:
        """Return which scores a custom encoding's code failed at, and the way out; empty where none did."""
        from pe_bench.experiment import describe_failures

        return describe_failures(self.scored)

    def __repr__(self) -> str:
        failed = f", failure={self.failure!r}" if self.failure else ""
        return f"Run({str(self.path)!r}{failed})"

    def __str__(self) -> str:
        from rich.console import Console

        from pe_bench.report.build import probes_of_rows, run_tables
        from pe_bench.report.columns import show
        from pe_bench.report.probes import show_probes

        text = io.StringIO()
        plain = Console(file=text, color_system=None, force_terminal=False, force_jupyter=False)
        if any(row.protocol == PROBE for row in self.scored):  # and then all are
            show_probes(probes_of_rows(self.scored, lambda name: self), plain)
        else:
            show(run_tables(self.scored, self.path, self.margin, self.asked), plain)
        return text.getvalue()


def train(*overrides: str, config_dir: str | Path | None = None, **keys: Any) -> Run:
    """Train a model, score it at longer lengths, and return the run. Finished work is reused.

        pe_bench.train(encoding="rope", seed=1, train={"length": 64})
        pe_bench.train("encoding=rope", "seed=1", "train.length=64")

    overrides: KEY=VALUE as on the command line. keys: the same keys by name, after the overrides; a
    dictionary holds keys of a group, such as train, eval or encoding. config_dir: a folder with your own
    encoding/NAME.yaml. Progress is written on standard error.

    An interrupt (Ctrl-C, the stop button of a notebook) ends the training after its step: what is done is
    saved, and the same call continues from there.

    Raises `UserError` (a `ValueError`) before anything is written where a key or a value cannot work,
    `RunError` where the run fails later. Lengths at which the code of a custom encoding fails raise nothing:
    they have the status failed in `scores`, and `failure` names them.
    """
    named = [override for key, value in keys.items() for override in _overrides(key, value)]
    folder = None if config_dir is None else Path(config_dir)
    require(folder is None or folder.is_dir(), f"config_dir={config_dir} is not a folder")
    texts = [*overrides, *named]
    require(not is_sweep(texts), "hydra.mode=MULTIRUN makes many runs: call train once for each of them")
    with interruptible(), called_with(texts):
        return train_run(texts, folder)


def train_run(overrides: Sequence[str], config_dir: Path | None) -> Run:
    """Train and score the one run that overrides ask for. Raises `UserError`, `RunError`."""
    config = compose_config(overrides, [] if config_dir is None else [config_dir])
    warn_unused([config.eval], [parse_override(text).key for text in overrides])
    check_folder(config.results_dir, "results_dir", is_written=True)
    from pe_bench import experiment

    return Run(*experiment.train(config), config.report.margin)


def evaluate(
    run: Run | str | Path,
    lengths: int | Sequence[int] | None = None,
    with_: str | Sequence[str] | None = None,
    *,
    protocol: str | None = None,
    max_length: int | None = None,
    targets: int | None = None,
    stride: int | None = None,
    controls: str | None = None,
    per_position: bool | None = None,
    precision: str | None = None,
    device: str | None = None,
    threads: int | None = None,
    force: bool = False,
    plain: bool = False,
    key_tokens_of: Run | str | Path | None = None,
    config_dir: str | Path | Sequence[str | Path] | None = None,
    code: str | Path | Sequence[str | Path] | None = None,
    data_path: str | Path | None = None,
    cache_dir: str | Path | None = None,
    results_dir: str | Path = "results",
    overrides: str | Sequence[str] | None = None,
) -> Run:
    """Score a finished run at other lengths, or its weights under other encodings, and return the run.

        pe_bench.evaluate(run, lengths=[512, 2048], with_=["yarn", "rope_ntk factor=4"])
        pe_bench.evaluate("hf:FOLDER", [4096], overrides=["data=files", "data.path=texts"])

    run: what `train` returned, or a path, a name, its beginning or an encoding that only one run of
    `results_dir` has; or hf:FOLDER or hf:OWNER/NAME[@REVISION], a checkpoint of Hugging Face. lengths:
    context lengths in tokens. with_: names of encodings, each with its options. overrides: of a checkpoint,
    KEY=VALUE of data, eval and train.length. All other arguments are the options of `pe-bench eval`; None
    keeps the run's value. Finished scores are reused, and progress is written on standard error.

    Raises `UserError` (a `ValueError`) before anything is scored where there is no such run or an option
    cannot work, `RunError` where scoring fails.
    """
    options = dict(locals())
    return _score(options.pop("run"), options)


def probe(
    run: Run | str | Path,
    lengths: int | Sequence[int] | None = None,
    with_: str | Sequence[str] | None = None,
    *,
    depths: int | None = None,
    windows: int | None = None,
    task: str | None = None,
    precision: str | None = None,
    device: str | None = None,
    threads: int | None = None,
    force: bool = False,
    plain: bool = False,
    config_dir: str | Path | Sequence[str | Path] | None = None,
    code: str | Path | Sequence[str | Path] | None = None,
    data_path: str | Path | None = None,
    cache_dir: str | Path | None = None,
    results_dir: str | Path = "results",
    overrides: str | Sequence[str] | None = None,
) -> Run:
    """Ask a finished run to find a span of its validation text, and return the run.

        print(pe_bench.probe(run, lengths=[512, 2048], with_="yarn"))

    run, with_, overrides: as of `evaluate`. lengths: of windows in tokens, from 128; 1, 2, 4 and 16 times the
    training length if None. depths: evenly spaced places of the span, 5 if None. windows: at each length and
    depth, 64 if None. task: ask a checkpoint prompts of RULER instead: niah_multikey_3, vt or fwe. All other
    arguments are the options of `pe-bench probe`. Finished scores are reused.

    `print` shows the table of the command, and `scores` has a row for each length, depth and control.

    Raises `UserError` (a `ValueError`) before anything is scored where there is no such run or an option
    cannot work, `RunError` where scoring fails.
    """
    options = dict(locals())
    return _score(options.pop("run"), {**options, "probe": read_probe(options)})


def results(
    results_dir: str | Path = "results",
    runs: str | Sequence[str] | None = None,
    *,
    where: str | Sequence[str] | None = None,
    by: str | None = None,
    best: str | None = None,
    baseline: str | None = None,
    margin: float | None = None,
    protocol: str | None = None,
    slice: str | None = None,  # noqa: A002  (the option's name)
) -> pandas.DataFrame:
    """Return the results of all runs as a data frame: a row for each line of the report and each length.

        pe_bench.results(where=["seed<3", "length=128,512"], baseline="rope")

    The columns are those of `pe-bench report --csv`: bits_per_byte is the level, and change, change_low,
    change_high and verdict compare it with that at the training length on the same text. Seeds are averaged.
    `anchor` is true in the lines of models that cost no training, such as (trigram).

    runs: encodings, names or their beginnings, if not all. where: conditions that all hold. by: a key whose
    values have lines of their own. best: a key of which each encoding keeps its best value. baseline: an
    encoding to compare the others with. margin: bits per byte by which a level that holds may change.
    slice: recall, novel or key, the targets that all numbers are of (docs/measuring.md).

    Raises `UserError` (a `ValueError`) where nothing was scored or a value cannot work, and `RunError` where
    all results are damaged.
    """
    from pe_bench.report.export import to_frame

    selection = replace(read_selection(where, by, None, baseline, margin, best, slice), numbers_only=True)
    report = read_report(Path(results_dir), runs, protocol, selection, everything=True)
    require_levels(report)
    say_problems(report)
    return to_frame(report.tables)


def read_selection(
    where: str | Sequence[str] | None,
    by: str | None,
    sort: str | None,
    baseline: str | None,
    margin: float | None,
    best: str | None = None,
    slice_: str | None = None,
) -> Selection:
    """Return the options as a selection. Raises `UserError` for values that are not possible."""
    from pe_bench.report.groups import check_sort
    from pe_bench.report.selection import Selection, check_best, parse_by

    by, best = check_type(by, str | None, "by"), check_type(best, str | None, "best")
    keys = parse_by(by) if by is not None else ()
    margin = check_type(plain_value(margin), float | None, "margin")
    if sort is not None:
        check_sort(sort)
    if margin is not None:
        check_margin(margin, "--margin")
    if best is not None:
        check_best(best, keys)
    return Selection(
        where=tuple(map(parse_condition, listed(where))),
        by=keys,
        best=best,
        sort=sort,
        baseline=check_type(baseline, str | None, "baseline"),
        margin=margin,
        slice=ALL if slice_ is None else check_type(slice_, Slice, "--slice"),
    )


def read_report(
    results_dir: Path,
    names: str | Sequence[str] | None,
    protocol: str | None,
    selection: Selection,
    *,
    everything: bool,
) -> Report:
    """Return the tables of the named runs, of a selection or of everything, or those with the newest run.

    Raises `UserError` where there is none.
    """
    from pe_bench.report.build import build_report

    if protocol is not None:
        protocol = check_type(protocol, Protocol, "--protocol")
    require_results_folder(results_dir)
    runs = [run.name for run in find_runs(listed(names), results_dir)] or None
    newest_only = not (everything or runs or selection.where)
    return build_report(results_dir, runs, protocol, selection, newest_only=newest_only)


def require_levels(report: Report) -> None:
    """Raise `UserError` for runs that were only probed."""
    message = "these runs were only probed and have no levels: say pe-bench report --probe to see the probes"
    require(bool(report.tables), message)


def say_problems(report: Report) -> None:
    """Print the problems that tables show as notes and a data frame has no place for."""
    for problem in report.problems:
        say(f"warning: {problem}")
    runs = dict.fromkeys(run for table in report.tables for line in table.lines for run in line.runs)
    for folder in map(report.folder_of, runs):
        lengths = lengths_without_scores(folder.path, folder.rows)
        if lengths:
            say(f"warning: {folder.path.name}: {explain_lost_scores(folder.path, lengths)}")


def is_checkpoint(name: object) -> bool:
    return isinstance(name, str) and name.startswith(PREFIX)


def read_probe(options: Mapping[str, Any]) -> Probe:
    """Return the probe that the options of `probe` ask for. Raises `UserError`."""
    from pe_bench.scoring.needles import DEFAULT_DEPTHS, DEFAULT_WINDOWS, Probe

    lengths = _lengths(options["lengths"])
    depths, windows = (plain_value(options[name]) for name in ("depths", "windows"))
    found = Probe(
        None if lengths is None else check_type(lengths, list[int], "lengths"),
        DEFAULT_DEPTHS if depths is None else check_type(depths, int, "depths"),
        DEFAULT_WINDOWS if windows is None else check_type(windows, int, "windows"),
        options["task"],
    )
    found.check()
    message = f"depths={depths} has no effect on prompts: leave it out"
    require(options["task"] is None or depths is None, message)
    return found


def _score(run: Run | str | Path, options: Mapping[str, Any]) -> Run:
    """Score the run or the checkpoint that an argument of a call names. Raises `UserError`, `RunError`."""
    if is_checkpoint(run):
        for name in ("key_tokens_of", "code"):
            require(not options.get(name), f"{name} has no effect on a checkpoint: leave it out")
        score = checkpoint_score(str(run), options)
    else:
        require(not options["overrides"], "overrides are for a checkpoint (hf:FOLDER): a run keeps its data")
        require(not options["plain"], "plain is for a checkpoint (hf:FOLDER): leave it out")
        task = options.get("task")
        require(task is None, f"task={task} is for a checkpoint (hf:FOLDER): probe {run} without it")
        results_dir = Path(options["results_dir"])
        path = run.path if isinstance(run, Run) else find_run(str(run), results_dir)
        results_dir = path.parent.parent if path.parent.name == "runs" else results_dir
        score = run_score(path, {**options, "results_dir": results_dir})
    with interruptible():
        return score()


def score_runs(runs: Sequence[Path], options: Mapping[str, Any]) -> tuple[list[Run], list[str]]:
    """Score several runs; return those that were scored, and a line for each that failed.

    All are checked before the first is scored. Raises `UserError`, and what the scoring of a single run does.
    """
    if "depths" in options:
        options = {**options, "probe": read_probe(options)}
    _refuse_tasks(runs, options)
    scores = []
    for run in runs:
        with _named_in_error(run, runs):
            scores.append(run_score(run, options))
    if len(scores) == 1:
        scored = [scores[0]()]
        return scored, [run.failure for run in scored if run.failure]
    scored, failures = [], []
    for number, (path, score) in enumerate(zip(runs, scores, strict=True), 1):
        say(f"run {number} of {len(runs)}: {path.name}")
        try:
            run = score()
        except (RunError, UserError) as error:
            say(f"warning: {path.name} could not be scored: {error}")
            failures.append(f"{path.name}: {error}")
            continue
        scored.append(run)
        failures += filter(None, [run.failure])
    return scored, failures


def run_score(
    run: Path,
    options: Mapping[str, Any],
    evaluation: EvalConfig | None = None,
    waits: Callable[[str], None] | None = None,
) -> Score:
    """Return what scores a run with the options of `evaluate`. Raises `UserError` where they cannot work.

    evaluation: the section that the options change; the run's own if None. waits: is called with a message
    where another process works on the run, which is then waited for.
    """
    from pe_bench.experiment import score_run, trusted
    from pe_bench.scoring.other_encodings import find_others, read_with
    from pe_bench.scoring.plans import make_plans

    _refuse_tasks([run], options)
    code = [Path(file) for file in listed(options.get("code"))]
    for path in code:
        require(path.is_file(), f"--code {path} is not a file")
    search, force = [*map(Path, listed(options.get("config_dir")))], options.get("force", False)
    requested = read_with(listed(options.get("with_")), search, force=force, has_code=bool(code))
    results_dir, probe = Path(options["results_dir"]), options.get("probe")
    judge = options.get("key_tokens_of")
    judge = judge.path if isinstance(judge, Run) else judge and find_run(str(judge), results_dir)
    config = trusted(_changed(read_config(run), options, evaluation), code, may_differ=force)
    others = find_others(requested, run.name, config, search, force=force)
    planner = make_plans if probe is None else probe.plans

    def score() -> Run:
        rows = score_run(run, config, results_dir, others, judge, planner, waits=waits)
        return Run(run, rows, config.report.margin, _lengths(options.get("lengths")) or ())

    return score


def checkpoint_score(name: str, options: Mapping[str, Any]) -> Score:
    """Return what scores hf:FOLDER or hf:OWNER/NAME, and write nothing. Raises `UserError`."""
    from pe_bench.checkpoints.load import checkpoint_config
    from pe_bench.experiment import load, require_replaceable, score_trained
    from pe_bench.scoring.other_encodings import find_others, read_with
    from pe_bench.scoring.plans import make_plans

    check_folder(options["results_dir"], "--results-dir", is_written=True)
    data_path, probe = options["data_path"], options.get("probe")
    path = [f"data.path={quote(str(data_path))}"] if data_path is not None else []
    search, force = [*map(Path, listed(options["config_dir"]))], options["force"]
    requested = read_with(listed(options["with_"]), search, force=force)
    config = checkpoint_config(
        name,
        [*listed(options["overrides"]), *path],
        _changes(options),
        _machine(options),
        Path(options["results_dir"]),
        plain=options["plain"],
        prompts=None if probe is None else probe.prompts,
    )
    job, plans = load(config, make_plans if probe is None else probe.plans)
    if requested:
        require_replaceable(job)
    others = find_others(requested, job.folder.name, job.config, search, force=force)

    def score() -> Run:
        rows = score_trained(job, plans, Path(options["results_dir"]), others)
        return Run(job.folder, rows, job.config.report.margin, _lengths(options["lengths"]) or ())

    return score


def _changes(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of `eval` among options."""
    changes = {name: plain_value(options.get(name)) for name in OF_EVAL}
    # A probe has lengths of its own.
    return changes | {"lengths": None if "probe" in options else _lengths(options.get("lengths"))}


def _machine(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: plain_value(options.get(name)) for name in OF_MACHINE}


def _changed(trained: Config, options: Mapping[str, Any], evaluation: EvalConfig | None) -> Config:
    """Return the run's configuration with the changes that options ask for, checked like any other."""
    changes = _changes(options)
    trained = trained if evaluation is None else replace(trained, eval=evaluation)
    # A run may come from a stranger: where tokens are cached is for its reader to say.
    values = {**to_plain(trained), "cache_dir": None, **without_none(_machine(options))}
    if changes["protocol"] not in (None, "paired"):
        values["eval"]["controls"] = "auto"  # the run's own are of another protocol
    values["eval"].update(without_none(changes))
    if options.get("data_path") is not None:
        values["data"]["path"] = str(options["data_path"])
    config = parse_config(values)
    warn_unused([config.eval], [f"eval.{name}" for name, value in changes.items() if value is not None])
    return config


def _refuse_tasks(runs: Sequence[Path], options: Mapping[str, Any]) -> None:
    """Raise `UserError` for runs of a task where a probe needs text."""
    if "probe" not in options:
        return
    tasks = {run.name: config.task["name"] for run in runs if (config := read_config(run)).task}
    if tasks:
        condition = shlex.quote(f"data!={','.join(sorted({*tasks.values()}))}")
        others = f", or leave it out with --where {condition}" if len(runs) > 1 else ""
        run, task = next(iter(tasks.items()))
        raise UserError(
            f"a probe needs text, and {run} answers task={task}: score it with pe-bench eval{others}"
        )


@contextmanager
def _named_in_error(run: Path, runs: Sequence[Path]) -> Iterator[None]:
    """Name the run in a `UserError` where it is one of several."""
    try:
        yield
    except UserError as error:
        if len(runs) == 1:
            raise
        without = shlex.quote(f"encoding!={encoding_in(run.name)}")
        raise UserError(f"{run.name}: {error}; or leave it out with --where {without}") from error


def _lengths(lengths: int | Sequence[int] | None) -> list[int] | None:
    """Return lengths, or a single one, as a list."""
    values = plain_value(lengths)
    return values if isinstance(values, list | None) else [values]


def listed(values: str | Path | Sequence[Any] | None) -> list[Any]:
    """Return values, or a single one, as a list; None stands for no value."""
    if values is None:
        return []
    return [values] if isinstance(values, str | Path) else [*values]


def _overrides(key: str, value: Any) -> Iterator[str]:
    """Write a value as overrides in Hydra's grammar: one, or one for each key of a group."""
    if isinstance(value, Mapping):
        require(
            bool(value), f"{key}={{}} names no key and changes nothing: leave it out, or name a key in it"
        )
        for name, inner in value.items():
            yield from _overrides(f"{key}.{name}", inner)
    else:
        yield f"{key}={quote(plain_value(value))}"


def plain_value(value: Any) -> Any:
    """Return a value as YAML has it: paths as text, numbers and arrays of NumPy as Python's.

    Raise `UserError` for what is neither a text, a number nor a list of these.
    """
    if isinstance(value, str | bool | None):
        return value
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value)
    is_list = isinstance(value, Iterable) and not isinstance(value, Mapping | bytes)
    require(is_list, f"{value!r} is no value of a key: give a text, a number or a list")
    return [plain_value(inner) for inner in value]
