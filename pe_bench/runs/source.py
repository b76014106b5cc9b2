"""The run whose weights training starts from, or beside which a run stands in tables, and what it hands on.

A family of runs has its first stage in common: its model, data, length and budget. All of it is scored on the
targets of that stage.
"""

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from pe_bench.config.schema import Config, EvalConfig
from pe_bench.errors import UserError, require
from pe_bench.runs.find import CHECKPOINT, CONDITION, RunValues, find_run, one_a_run, parse_condition
from pe_bench.runs.folder import FirstStage, folders_in, read_config
from pe_bench.runs.gather import read_all, read_result, runs_folder


@dataclass(frozen=True)
class Source:
    """A finished run that another goes on from or stands beside; label: its line in tables."""

    run: Path
    config: Config
    label: str
    setting: str
    first: FirstStage

    @property
    def facts(self) -> list[str]:
        """Return what it has in common with its other seeds alone."""
        return [self.label, self.setting]

    def first_of(self, config: Config) -> FirstStage:
        """Return the first stage of a run that has this source."""
        lengths = (config.train.length, self.first.longest if config.train.from_run else 0)
        return replace(self.first, longest=max(lengths))

    def label_of(self, words: str, config: Config) -> str:
        """Return the line of a run that has this source, whose own stage is `words`."""
        train, tokens = config.train, config.train.total_steps * config.train.batch_tokens
        at = f"at {train.length} " if train.length != self.config.train.length or train.beside else ""
        only = "its encoding alone " if train.only else ""
        norm = "with qk_norm " if config.model.qk_norm and not self.config.model.qk_norm else ""
        stage = f"{words} {norm}{only}{at}({_in_short(tokens)})"
        return (
            f"{self.label}, then {stage}" if train.from_run else f"{words}, trained {at}({_in_short(tokens)})"
        )


def find_source(config: Config, data_hash: str) -> Source | None:
    """Return the source of a run; None where it has none. Raises `UserError` where there is no such run."""
    key, word = _named(config)
    if not word:
        return None
    message = f"{key}={word} is a checkpoint, and training goes on from runs alone"
    require(not word.startswith(CHECKPOINT), message)
    if all(CONDITION.fullmatch(part) for part in word.split(",")) and not Path(word).exists():
        run = _run_that_meets(word, key, config, data_hash)
    else:
        run = find_run(word, Path(config.results_dir))
    trained, result = read_config(run), read_result(run) or {}
    require(trained.checkpoint is None, message)
    length, steps = trained.train.length, trained.train.total_steps
    single = FirstStage(run.name, length, steps, str(result.get("setting")), longest=length)
    first = FirstStage.read(result) or single
    return Source(run, trained, str(result.get("encoding")), single.setting, first)


def after_source(config: Config, source: Source | None) -> Config:
    """Return a configuration that names its source, and takes over how it is scored unless that was chosen.

    The name's hash says what the source is, wherever it lies, also where it is gone.
    """
    _, word = _named(config)
    if not word:
        return config
    field = "from_run" if config.train.from_run else "beside"
    name = source.run.name if source is not None else Path(word).name
    config = replace(config, train=replace(config.train, **{field: name}))
    if source is None:
        return config
    return scored_as(config, replace(source.config.eval, first_length=source.first.length))


def scored_as(config: Config, scores: EvalConfig) -> Config:
    """Return the configuration with `scores` in place of the values of `eval` that are defaults."""
    chosen = {
        name: value for name, value in vars(config.eval).items() if value != getattr(EvalConfig(), name)
    }
    return replace(config, eval=replace(scores, **chosen))


def _named(config: Config) -> tuple[str, str | None]:
    from_run, beside = config.train.from_run, config.train.beside
    return ("train.from", from_run) if from_run else ("train.beside", beside)


def _run_that_meets(word: str, key: str, config: Config, data_hash: str) -> Path:
    """Return the only run with the seed, the data and the model of `config` that meets conditions."""
    results = Path(config.results_dir)
    folder = runs_folder(results)
    values = RunValues(folders_in(folder))
    rows = [row for row in one_a_run(read_all(results).rows) if row.data_hash == data_hash]
    sizes = _sizes(config)
    rows = [row for row in rows if row.seed == config.seed and row.model == config.model.name]
    try:
        rows = values.select(rows, [parse_condition(part) for part in word.split(",")]) if rows else []
    except UserError as error:
        raise UserError(f"{key}={word}, seed={config.seed}: {error}") from error
    runs = [folder / row.run for row in rows if _sizes(read_config(folder / row.run)) == sizes]
    what = f"seed={config.seed} on this data with this model"
    require(bool(runs), f"{key}={word}: no finished run with {what} meets it: train one, or name a run")
    names = ", ".join(sorted(run.name for run in runs))
    require(len(runs) == 1, f"{key}={word}: several runs with {what} meet it ({names}): add a condition")
    return runs[0]


def _sizes(config: Config) -> dict[str, Any]:
    """Return the model but for what a run can begin anew."""
    return {**asdict(config.model), "qk_norm": None}


def _in_short(count: int) -> str:
    """Return a number of tokens as `128k` or `1.15M`."""
    for size, unit in ((1_000_000, "M"), (1_000, "k")):
        if count >= size:
            return f"{count / size:.3g}{unit}"
    return str(count)
