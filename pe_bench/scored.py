"""A run with what a call scored of it, and how runs and checkpoints are scored, as by `eval` and `probe`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pe_bench.checkpoints.load import checkpoint_config
from pe_bench.config.overrides import quote
from pe_bench.config.parse import parse_config, to_plain, warn_unused
from pe_bench.config.schema import MACHINE_KEYS, Config, EvalConfig
from pe_bench.errors import RunError, UserError, require
from pe_bench.experiment import load, load_finished, score_finished, trusted
from pe_bench.runs.find import find_run, is_checkpoint
from pe_bench.runs.folder import RunFolder, read_config
from pe_bench.runs.rows import COLUMNS, MAYBE_WHOLE, PROBE, Row, describe_failures
from pe_bench.scoring.needles import DEFAULT_DEPTHS, Probe, ProbeDepths, ProbeLength
from pe_bench.scoring.other_encodings import find_others, read_with, require_replaceable
from pe_bench.scoring.plans import Planner, make_plans
from pe_bench.system.grid import text_of
from pe_bench.system.terminal import say
from pe_bench.values import AtLeast1, AtLeast2, check_folder, check_type, listed, plain_value, without_none

if TYPE_CHECKING:
    import pandas

OF_EVAL = ("protocol", "max_length", "targets", "stride", "controls", "per_position", "precision", "half")
OF_RUNS, OF_CHECKPOINTS = ("key_tokens_of", "code"), ("overrides", "plain", "task", "reference")
NOT_SET = (*OF_EVAL, *MACHINE_KEYS, *OF_RUNS, *OF_CHECKPOINTS, "lengths", "with_", "config_dir", "data_path")
DEFAULTS: dict[str, Any] = {**dict.fromkeys(NOT_SET), "force": False, "results_dir": "results"}

Options = Mapping[str, Any]  # of `evaluate` or `probe`, by the names of their arguments


class Run(RunFolder):
    """A finished run. `print(run)` shows the table that the command prints.

    path: its folder, which is all that a later process needs. config: its configuration, as nested
    dictionaries. validation_loss: the last one of its training, in nats per token.
    """

    def __init__(self, path: Path, scored: Sequence[Row], margin: float, lengths: Sequence[int] = ()) -> None:
        """scored: the rows that the call asked for. margin: of verdicts. lengths: those that it named."""
        super().__init__(path)
        self.scored, self.margin, self.lengths = list(scored), margin, tuple(lengths)

    @property
    def name(self) -> str:
        """The encoding, the seed and a hash of everything that changes the weights."""
        return self.path.name

    @property
    def scores(self) -> "pandas.DataFrame":
        """Return the scores that the call asked for: a row for each, with the columns of results.csv."""
        import pandas

        frame = pandas.DataFrame([vars(row) for row in self.scored], columns=list(COLUMNS))
        return frame.astype(dict.fromkeys(MAYBE_WHOLE, "Int64"))

    @property
    def failure(self) -> str:
        """Return which scores a custom encoding's code failed at, and the way out; empty where none did."""
        return describe_failures(self.scored)

    def __repr__(self) -> str:
        failed = f", failure={self.failure!r}" if self.failure else ""
        return f"Run({str(self.path)!r}{failed})"

    def __str__(self) -> str:
        from pe_bench.report.build import probes_of_rows, run_tables
        from pe_bench.report.columns import show
        from pe_bench.report.probes import show_probes

        if any(row.protocol == PROBE for row in self.scored):  # and then all are
            return text_of(partial(show_probes, probes_of_rows(self.scored, lambda name: self)))
        return text_of(partial(show, run_tables(self.scored, self.path, self.margin, self.lengths)))


def score(run: Run | str | Path, options: Options) -> Run:
    """Score the run or the checkpoint that an argument of a call names. Raises `UserError`, `RunError`."""
    if is_checkpoint(run):
        return prepare(str(run), options)()
    results_dir = Path(options["results_dir"])
    path = run.path if isinstance(run, Run) else find_run(str(run), results_dir)
    results_dir = path.parent.parent if path.parent.name == "runs" else results_dir
    return prepare(path, {**options, "results_dir": results_dir})()


def score_each(runs: Sequence[Path], options: Options) -> tuple[list[Run], list[str]]:
    """Score runs; return those that were scored, and a line for each that failed where there are several.

    All are checked before the first is scored. Raises `UserError`, and what the scoring of a single run does.
    """
    if len(runs) == 1:
        run = prepare(runs[0], options)()
        return [run], [run.failure] if run.failure else []
    prepared, scored, failures = [prepare(path, options) for path in runs], [], []
    for number, (path, score_it) in enumerate(zip(runs, prepared, strict=True), 1):
        say(f"run {number} of {len(runs)}: {path.name}")
        try:
            run = score_it()
        except (RunError, UserError) as error:
            say(f"warning: {path.name} could not be scored: {error}")
            failures.append(f"{path.name}: {error}")
            continue
        scored.append(run)
        failures += [run.failure] if run.failure else []
    return scored, failures


def prepare(
    run: str | Path,
    options: Options,
    evaluation: EvalConfig | None = None,
    waits: Callable[[str], None] | None = None,
) -> Callable[[], Run]:
    """Return what scores a run at a path, or a checkpoint. Raises `UserError` where options cannot work.

    evaluation: the section that the options change; the run's own if None. waits: is called with a message
    where another process works on the run, which is then waited for.
    """
    options = {**DEFAULTS, **options}
    for name in OF_RUNS if is_checkpoint(run) else OF_CHECKPOINTS:
        what = "a run" if name in OF_RUNS else "a checkpoint (hf:FOLDER)"
        require(not options[name], f"{name} is for {what}: leave it out")
    lengths, probe, results_dir = _lengths(options), read_probe(options), Path(options["results_dir"])
    changes = _chosen(options, OF_EVAL) | ({} if probe or lengths is None else {"lengths": lengths})
    search, force = [*map(Path, listed(options["config_dir"]))], options["force"]
    code = [Path(file) for file in listed(options["code"])]
    for path in code:
        require(path.is_file(), f"--code {path} is not a file")
    requested = read_with(listed(options["with_"]), search)
    planner = make_plans if probe is None else probe.plans
    judge = options["key_tokens_of"]
    if isinstance(run, str):
        check_folder(results_dir, "--results-dir", is_written=True)
        job, plans = load(_config_of_checkpoint(run, options, changes, probe), planner)
        if requested:
            require_replaceable(job)
        folder, config = job.folder, job.config
        score_under = partial(score_finished, job, plans, None)
    else:
        judge = judge.path if isinstance(judge, Run) else judge and find_run(str(judge), results_dir)
        config = _config_of_run(run, options, changes, evaluation, is_probe=probe is not None)
        folder, config = run, trusted(config, code, may_differ=force)
        score_under = partial(_score_finished, run, config, planner)
    under = find_others(requested, folder.name, config, search, force=force)
    scoring = (results_dir, under, judge, waits)
    return lambda: Run(folder, score_under(*scoring), config.report.margin, lengths or ())


def _score_finished(run: Path, config: Config, planner: Planner, *options: Any) -> list[Row]:
    return score_finished(*load_finished(run, config, planner), *options)


def read_probe(options: Options) -> Probe | None:
    """Return the probe that the options of `probe` ask for; None for those of `evaluate`."""
    if "depths" not in options:
        return None
    lengths, depths, windows = (plain_value(options[name]) for name in ("lengths", "depths", "windows"))
    task = options["task"]
    require(task is None or depths is None, f"depths={depths} has no effect on prompts: leave it out")
    return Probe(
        None if lengths is None else check_type(_lengths(options), list[ProbeLength], "lengths"),
        DEFAULT_DEPTHS if depths is None else check_type(depths, ProbeDepths, "depths"),
        None if windows is None else check_type(windows, AtLeast1, "windows"),
        task,
    )


def _lengths(options: Options) -> list[int] | None:
    """Return the lengths, or a single one, as a list."""
    lengths = plain_value(options["lengths"])
    return lengths if isinstance(lengths, list | None) else [lengths]


def _reference(options: Options) -> int | None:
    reference = plain_value(options["reference"])
    return None if reference is None else check_type(reference, AtLeast2, "--reference")


def _chosen(options: Options, names: Sequence[str]) -> dict[str, Any]:
    return without_none({name: plain_value(options[name]) for name in names})


def _config_of_run(
    run: Path, options: Options, changes: dict[str, Any], evaluation: EvalConfig | None, *, is_probe: bool
) -> Config:
    """Return a run's configuration with the changes that options ask for, checked like any other."""
    trained = read_config(run)
    task = trained.task["name"] if trained.task is not None else ""
    message = f"a probe needs text, and {run} answers task={task}: score it with pe-bench eval"
    require(not (is_probe and task), message)
    trained = trained if evaluation is None else replace(trained, eval=evaluation)
    # A run may come from a stranger: where tokens are cached is for its reader to say.
    values = {**to_plain(trained), "cache_dir": None, **_chosen(options, MACHINE_KEYS)}
    values["eval"].update(changes)
    if options["data_path"] is not None:
        values["data"]["path"] = str(options["data_path"])
    config = parse_config(values)
    warn_unused([config], [f"eval.{name}" for name in changes])
    return config


def _config_of_checkpoint(
    name: str, options: Options, changes: dict[str, Any], probe: Probe | None
) -> Config:
    data_path = options["data_path"]
    return checkpoint_config(
        name,
        [*listed(options["overrides"]), *([f"data.path={quote(str(data_path))}"] if data_path else [])],
        changes,
        _chosen(options, MACHINE_KEYS),
        Path(options["results_dir"]),
        plain=bool(options["plain"]),
        prompts=None if probe is None else probe.prompts,
        reference=_reference(options),
    )
