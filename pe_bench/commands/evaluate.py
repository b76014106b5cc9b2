"""`eval` and `probe`: score runs and Hugging Face models, and return runs with the rows that were scored."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import torch

from pe_bench.commands.job import (
    all_scored_rows,
    at_work,
    load,
    refuse_writing_into_text,
    score_encodings,
    trusted,
    with_weights,
    write_description,
    write_result,
)
from pe_bench.config.groups import check_search
from pe_bench.config.parse import parse_config, to_plain, warn_unused
from pe_bench.config.schema import MACHINE_KEYS, Config, EvalConfig
from pe_bench.encodings.spec import EncodingSpec
from pe_bench.errors import RunError, UserError, require
from pe_bench.hf.load import hf_model_config
from pe_bench.render.grid import printed_text
from pe_bench.runs import folder as runs
from pe_bench.runs.find import find_run, is_hf_name
from pe_bench.runs.folder import RunFolder, read_config
from pe_bench.runs.job import Job
from pe_bench.runs.rows import (
    COLUMNS,
    FLOAT_COLUMNS,
    NULLABLE_INTEGER_COLUMNS,
    PROBE,
    Row,
    describe_failures,
)
from pe_bench.runs.scores import keep_slices
from pe_bench.scoring.anchors import score_missing_anchors
from pe_bench.scoring.needles import DEFAULT_DEPTHS, MIN_PROBE_LENGTH, Probe
from pe_bench.scoring.other_encodings import (
    OtherEncoding,
    Requested,
    find_others,
    models_under,
    read_with,
    require_replaceable,
)
from pe_bench.scoring.plans import Planner, make_plans
from pe_bench.scoring.protocols import Plan
from pe_bench.scoring.slices import KEY_TOKENS_OPTION, key_slices
from pe_bench.system import machine
from pe_bench.system.cost import count, print_cost_once
from pe_bench.system.terminal import say
from pe_bench.training import checkpoint
from pe_bench.values import (
    AtLeast1,
    AtLeast2,
    ProbeDepths,
    check_folder,
    check_texts,
    check_type,
    listed,
    listed_lengths,
    plain_value,
    without_none,
)

if TYPE_CHECKING:
    import pandas

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class Run(RunFolder):
    """A finished run. `print(run)` shows the table that the command prints.

    path: its folder, by which a later process finds it. config: its configuration, as nested dictionaries.
    validation_loss: the last validation loss of its training, in nats per token.
    """

    def __init__(self, path: Path, scored: Sequence[Row], margin: float, lengths: Sequence[int] = ()) -> None:
        """path: the run's folder. scored: the rows that this command scored. margin: the margin for verdicts.

        lengths: the lengths that the command was asked for; empty if it chose them itself.
        """
        super().__init__(path)
        self.given_path = path
        self.scored = list(scored)
        self.margin = margin
        self.lengths = tuple(lengths)

    def findable(self) -> Self:
        """Make the path absolute, so that another working folder does not lose the run; return the run."""
        self.path = self.path.absolute()
        return self

    @property
    def shown_path(self) -> Path:
        """Return the run's folder for messages: as it was given, unless the working folder has changed."""
        return self.given_path if self.given_path.absolute() == self.path.absolute() else self.path

    @property
    def name(self) -> str:
        """The encoding, the seed and a hash of everything that changes the weights."""
        return self.path.name

    @property
    def scores(self) -> "pandas.DataFrame":
        """Return the scores of the call: a row for each, with the columns of results.csv."""
        import pandas

        rows = [vars(row) for row in self.scored]
        frame = pandas.DataFrame(rows, columns=list(COLUMNS))
        kinds = dict.fromkeys(NULLABLE_INTEGER_COLUMNS, "Int64") | dict.fromkeys(FLOAT_COLUMNS, "float64")
        return frame.astype(kinds)

    @property
    def failure(self) -> str:
        """Return a message on the scores at which a custom encoding's code failed; empty without failures."""
        return describe_failures(self.scored)

    def __repr__(self) -> str:
        failed = f", failure={self.failure!r}" if self.failure else ""
        return f"Run({str(self.shown_path)!r}{failed})"

    def __str__(self) -> str:
        from pe_bench.report.build import probes_of_rows, run_tables
        from pe_bench.report.columns import show
        from pe_bench.report.probes import show_probes

        if any(row.protocol == PROBE for row in self.scored):  # then all rows are of probes
            return printed_text(partial(show_probes, probes_of_rows(self.scored, lambda name: self)))
        tables = run_tables(self.scored, self.shown_path, self.margin, self.lengths)
        return printed_text(partial(show, tables))


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """The options of a call of `evaluate`. None keeps the value of the run's configuration."""

    lengths: list[int] | None = None  # tokens
    with_: tuple[Requested, ...] = ()  # other encodings under which the weights are scored
    # Keys of `eval`.
    protocol: str | None = None
    max_length: int | None = None
    targets: int | None = None
    stride: int | None = None
    controls: str | None = None  # the lengths that get controls: auto, offset, all or none
    per_position: bool | None = None
    precision: str | None = None
    half: str | None = None
    # Keys of the machine.
    device: str | None = None
    threads: int | str | None = None
    cache_dir: str | None = None
    force: bool = False  # score encodings that are not compatible, and label them
    plain: bool = False  # keep a Hugging Face model's own attention
    reference: int | None = None  # the length from which a Hugging Face model is measured, in tokens
    key_tokens_of: Path | str | None = None  # the run that chooses key targets, or its name
    config_dir: tuple[Path, ...] = ()  # folders with encodings
    code: tuple[Path, ...] = ()  # trusted files
    data_path: str | None = None  # the data's present location
    results_dir: Path = Path("results")
    overrides: tuple[str, ...] = ()  # KEY=VALUE for a Hugging Face model

    @classmethod
    def read(cls, **arguments: Any) -> Self:
        """Convert and check the arguments of a call of `api`. Raises `UserError`."""
        check_texts("results_dir", arguments["results_dir"])
        values = {name: plain_value(value) for name, value in arguments.items()}
        for name in ("force", "plain"):
            values[name] = check_type(values.get(name, False), bool, name)
        folders = tuple(map(Path, listed(values["config_dir"])))
        check_search(folders)
        values["config_dir"] = folders
        values["code"] = tuple(map(Path, listed(values["code"])))
        values["results_dir"] = Path(values["results_dir"])
        values["with_"] = tuple(read_with(listed(values["with_"]), folders))
        values["overrides"] = tuple(listed(values.get("overrides")))
        if values["lengths"] is not None:
            values["lengths"] = listed_lengths(values["lengths"])
        judge = values.get("key_tokens_of")
        if judge is not None:
            values["key_tokens_of"] = judge.path if isinstance(judge, Run) else str(judge)
        return cls(**values)

    @property
    def probe(self) -> Probe | None:
        """Return the probe of a call of `probe`, else None."""
        return None

    @property
    def eval_values(self) -> dict[str, Any]:
        """Return the values that this call gives for keys of the section `eval`, by key."""
        names = [name for name in EvalConfig.__match_args__ if hasattr(self, name)]
        return without_none({name: getattr(self, name) for name in names})

    @property
    def machine(self) -> dict[str, Any]:
        """Return the values that this call gives for keys of the machine, such as device, by key."""
        return without_none({name: getattr(self, name) for name in MACHINE_KEYS})

    @property
    def run_options(self) -> dict[str, Any]:
        """Return the values of the options that no Hugging Face model takes, by name; None if not given."""
        return {"key_tokens_of": self.key_tokens_of, "code": self.code or None}

    @property
    def hf_model_options(self) -> dict[str, Any]:
        """Return the values of the options that only Hugging Face models have, by name; None if not given."""
        return {"overrides": self.overrides or None, "plain": self.plain or None, "reference": self.reference}

    def judge(self) -> Path | None:
        """Return the folder of the run that chooses key targets; None without one.

        Raises `UserError` if no run has its name.
        """
        if isinstance(self.key_tokens_of, str):
            return find_run(self.key_tokens_of, self.results_dir)
        return self.key_tokens_of


@dataclass(frozen=True, kw_only=True)
class Probing(Evaluation):
    """The options of a call of `probe`. Raises `UserError` for values that no probe has."""

    depths: int | None = None  # the number of depths
    windows: int | None = None  # the number of windows at each length and depth
    task: str | None = None  # the kind of a Hugging Face model's prompts

    def __post_init__(self) -> None:
        _ = self.probe  # a mistake is found before anything is scored

    @property
    def probe(self) -> Probe:
        message = f"depths={self.depths} has no effect on prompts: leave it out"
        require(self.task is None or self.depths is None, message)
        lengths = self.lengths
        if lengths is not None:
            lengths = check_type(lengths, list[int], "lengths")
            shortest = min(lengths)
            message = f"length {shortest} is too short for a probe: choose {MIN_PROBE_LENGTH} tokens or more"
            require(shortest >= MIN_PROBE_LENGTH, message)
        depths = DEFAULT_DEPTHS if self.depths is None else self.depths
        depths = check_type(depths, ProbeDepths, "depths")
        windows = self.windows
        if windows is not None:
            windows = check_type(windows, AtLeast1, "windows")
        return Probe(lengths, depths, windows, self.task)

    @property
    def eval_values(self) -> dict[str, Any]:
        """Return the values of an `Evaluation` without `lengths`: a probe has lengths of its own."""
        changes = super().eval_values
        changes.pop("lengths", None)
        return changes

    @property
    def hf_model_options(self) -> dict[str, Any]:
        return {**super().hf_model_options, "task": self.task}


class LoadedModel(NamedTuple):
    """A finished run or a Hugging Face model with its plans."""

    job: Job
    plans: Sequence[Plan]
    trained: checkpoint.Checkpoint | None = None  # a run's weights; a Hugging Face model has them already


@dataclass(frozen=True)
class PreparedScoring:
    """A run or a Hugging Face model that is ready to be scored."""

    folder: Path  # the folder of the run
    config: Config  # its own, with the changes of the call
    planner: Planner  # makes the plans of its scores
    others: Sequence[OtherEncoding]  # encodings under which its weights are scored too
    results_dir: Path
    judge: Path | None = None  # the run that chooses key targets
    lengths: Sequence[int] = ()  # the lengths that the call named
    # A Hugging Face model is loaded to be checked. Runs are not: many may be ready at once.
    loaded: LoadedModel | None = None
    waits: Callable[[str], None] | None = None  # called with a message if another process works on the run

    def score(self) -> Run:
        """Compute the missing scores, and return the run with all rows. Raises `UserError`, `RunError`."""
        if self.loaded is not None:  # a Hugging Face model, whose scores begin a folder of results
            refuse_writing_into_text(self.config)
        loaded = self.loaded or load_finished(self.folder, self.config, self.planner)
        with print_cost_once(_scoring_text):
            rows = score_finished(loaded, self.results_dir, self.others, self.judge, self.waits)
        return Run(self.folder, rows, self.config.report.margin, self.lengths)


def score(run: Run | str | Path, request: Evaluation) -> Run:
    """Score a run or a Hugging Face model, and return it with its rows. Raises `UserError`, `RunError`.

    run: a run, its path or name, or the hf: name of a model.
    """
    if is_hf_name(run):
        return prepare(str(run), request).score()
    named = run.shown_path if isinstance(run, Run) else None
    path = named or find_run(str(run), request.results_dir)
    if path.parent.name == "runs":
        request = replace(request, results_dir=path.parent.parent)
    return prepare(path, request).score()


def score_each(runs: Sequence[Path], request: Evaluation) -> tuple[list[Run], list[str]]:
    """Score runs; return the scored runs, and a line for each failure.

    All runs are checked before the first is scored. Raises `UserError`; with a single run, also `RunError`.
    """
    if len(runs) == 1:
        run = prepare(runs[0], request).score()
        return [run], [run.failure] if run.failure else []
    prepared = [prepare(path, request) for path in runs]
    scored: list[Run] = []
    failures: list[str] = []
    with print_cost_once(_scoring_text, len(runs)) as cost:
        for number, (path, ready) in enumerate(zip(runs, prepared, strict=True), 1):
            say(f"run {number} of {len(runs)}: {path.name}")
            try:
                run = ready.score()
            except (RunError, UserError) as error:
                say(f"warning: {path.name} could not be scored: {error}")
                failures.append(f"{path.name}: {error}")
                continue
            finally:
                cost.ended = number
            scored.append(run)
            if run.failure:
                failures.append(run.failure)
    return scored, failures


def _scoring_text(n_runs: int) -> str:
    """Return the work for a line on its cost: `scoring 3 runs`."""
    return f"scoring {count(n_runs, 'run')}"


def prepare(
    run: str | Path,
    request: Evaluation,
    section: EvalConfig | None = None,
    waits: Callable[[str], None] | None = None,
    planner: Planner | None = None,
) -> PreparedScoring:
    """Check a request to score a run at a path, or a named Hugging Face model, and return what scores it.

    Raises `UserError`.

    section: for a run, the section `eval` that the request changes; None: the run's own. waits: called with
    a message before waiting for another process that works on the run. planner: plans the scores; None for
    the request's own planner.
    """
    if isinstance(run, Path):
        option_is_for = "a Hugging Face model (hf:FOLDER)"
        options = request.hf_model_options
    else:
        option_is_for = "a run"
        options = request.run_options
    for name, value in options.items():
        require(value is None, f"{name} is for {option_is_for}: leave it out")
    for path in request.code:
        require(path.is_file(), f"--code {path} is not a file")
    probe = request.probe
    if planner is None:
        planner = make_plans if probe is None else probe.plans
    judge = None
    loaded = None
    if isinstance(run, Path):
        judge = request.judge()
        folder = run
        config = _config_of_run(run, request, section)
        config = trusted(config, request.code, may_differ=request.force)
    else:
        check_folder(request.results_dir, "--results-dir", is_written=True)
        job, plans = load(_config_of_hf_model(run, request), planner)
        if request.with_:
            require_replaceable(job)
        folder = job.folder
        config = job.config
        loaded = LoadedModel(job, plans)
    others = find_others(request.with_, folder.name, config, request.config_dir, force=request.force)
    return PreparedScoring(
        folder,
        config,
        planner,
        others,
        request.results_dir,
        judge=judge,
        lengths=request.lengths or (),
        loaded=loaded,
        waits=waits,
    )


def _config_of_run(run: Path, request: Evaluation, section: EvalConfig | None) -> Config:
    """Return a run's configuration with the changes of a request, checked like any configuration.

    section: as in `prepare`. Raises `UserError`.
    """
    trained = read_config(run)
    task = trained.task["name"] if trained.task is not None else ""
    message = f"a probe needs text, and {run} answers task={task}: score it with pe-bench eval"
    require(not (request.probe and task), message)
    if section is not None:
        trained = replace(trained, eval=section)
    # A run may come from a stranger, whose cache folder is not used.
    values = {**to_plain(trained), "cache_dir": None, **request.machine}
    values["eval"].update(request.eval_values)
    if request.data_path is not None:
        values["data"]["path"] = request.data_path
    config = parse_config(values)
    warn_unused([config], [f"eval.{name}" for name in request.eval_values])
    return config


def _config_of_hf_model(name: str, request: Evaluation) -> Config:
    """Return the configuration to score a Hugging Face model, such as hf:FOLDER. Raises `UserError`."""
    reference = request.reference
    if reference is not None:
        reference = check_type(reference, AtLeast2, "--reference")
    return hf_model_config(
        name,
        request.overrides,
        request.eval_values,
        request.machine,
        request.results_dir,
        plain=request.plain,
        prompts=request.probe.prompts if request.probe else None,
        reference=reference,
        data_path=request.data_path,
    )


def load_finished(run: Path, config: Config, planner: Planner = make_plans) -> LoadedModel:
    """Load a finished run to score at the lengths of its `config`. Raises `UserError`, `RunError`."""
    result = runs.read_result(run) or {}
    require_text(config)
    job, plans = load(config, planner, run)
    if config.hf_model is not None:
        return LoadedModel(replace(job, folder=run), plans)
    trained = checkpoint.require_trained(run, config.train.total_steps)
    trained_hash = result.get("data_hash")
    if trained_hash != job.data.hash:
        hashes = f"(hash {job.data.hash} now, {trained_hash} then)"
        say(
            f"warning: data={config.data.name} is not what {run.name} was trained on {hashes}: "
            "these rows get a table of their own"
        )
    # The label and the setting are those of the training, wherever it is scored.
    label = str(result.get("encoding", job.label))
    dtype = str(result.get("train_dtype"))
    scored_with = EncodingSpec(job.config.encoding)
    is_same = EncodingSpec(config.encoding).identity() == scored_with.identity()
    job = replace(
        job,
        label=label,
        setting=str(result.get("setting", job.setting)),
        first=runs.FirstStage.read(result),
        scored_with=label if is_same else job.scored_with,
        dtype=DTYPES.get(dtype, job.dtype),
    )
    return LoadedModel(job, plans, trained)


def require_text(config: Config) -> None:
    """Raise `UserError`, with a way out, for a finished run whose files of text are gone."""
    path = config.data.path
    if config.task is not None or config.data.source != "files" or path is None:
        return
    way_out = "eval, probe and explain take its new place as --data-path DIR (data_path= in Python)"
    require(Path(path).exists(), f"data.path={path} does not exist: if the text moved, {way_out}")


def score_finished(
    loaded: LoadedModel,
    results_dir: Path,
    replacements: Sequence[OtherEncoding] = (),
    judge: Path | None = None,
    waits: Callable[[str], None] | None = None,
) -> list[Row]:
    """Score a loaded model, then its weights under `replacements`; return the rows.

    The rows of a run in `results_dir` are added to its results.csv. A scored Hugging Face model becomes a
    finished run. A run that cannot be written needs to have all scores. judge: the run whose scores choose
    the key targets; if the loaded model is this run, it is not scored on the key targets, because they would
    flatter it. waits: called with a message before this waits for another process; with None, such a process
    is an error. Raises `UserError`, `RunError`.
    """
    job, plans, trained = loaded
    run = job.folder
    if judge is not None and judge.resolve() == run.resolve():
        reason = "targets that it chose would flatter it, so it is not scored on them"
        say(f"{run.name} is the judge of {KEY_TOKENS_OPTION}: {reason}")
        judge = None
    message = f"{run.name} is a Hugging Face model, and {KEY_TOKENS_OPTION} is for runs: leave it out"
    require(judge is None or trained is not None, message)
    judged = {}
    if judge is not None:
        judged = key_slices(judge, plans, job.config.train.length)
    if trained is None:
        models_under(job, replacements)  # so that an error in the last comes before anything is written
    try:
        with at_work(job, waits, machine.LESS_MEMORY_IN_SCORING):
            if trained is None:
                write_description(job)
            else:
                job = with_weights(job, trained)
            rows = score_encodings(job, plans, replacements)
            if trained is None:
                write_result(job, None)
            if judge is not None:
                keep_slices(run, judged, judge.name)
            result = runs.read_result(run) or {}
            if result.get("data_hash") == job.data.hash:
                score_missing_anchors(job, plans, rows)
    except runs.ReadOnlyError:
        scored = all_scored_rows(job, plans, replacements)
        if trained is None or judge is not None or scored is None:
            raise
        return scored
    if run.resolve().parent == (results_dir / "runs").resolve():
        runs.gather_and_warn(results_dir)
    return rows
