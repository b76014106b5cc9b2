"""The run whose weights training starts from, or beside which a run stands in tables, and what it hands on.

A family of runs has its first stage in common: its model, data, length and budget. All of it is scored on the
targets of that stage.
"""

from dataclasses import dataclass, replace
from pathlib import Path

from pe_bench.config.schema import Config, EvalConfig
from pe_bench.errors import require
from pe_bench.runs.find import CONDITION, find_run, find_runs, parse_condition
from pe_bench.runs.folder import FirstStage, read_config, read_result
from pe_bench.runs.job import hashed


@dataclass(frozen=True)
class Source:
    """A finished run that another goes on from or stands beside; label: its line in tables."""

    run: Path
    config: Config
    label: str
    setting: str
    first: FirstStage

    def stage(self, words: str, config: Config, setting: str) -> tuple[str, FirstStage, str]:
        """Return the label, the first stage and the setting of a run with this source.

        words, setting: of its own stage. All seeds get the same results.
        """
        train, tokens = config.train, _in_short(config.train.total_steps * config.train.batch_tokens)
        at = f"at {train.length} " if train.length != self.config.train.length or train.beside else ""
        only = "its encoding alone " if train.only else ""
        norm = "with qk_norm " if config.model.qk_norm and not self.config.model.qk_norm else ""
        goes_on = f"{self.label}, then {words} {norm}{only}{at}({tokens})"
        label = goes_on if train.from_run else f"{words}, trained {at}({tokens})"
        longest = max(train.length, self.first.longest if train.from_run else 0)
        return label, replace(self.first, longest=longest), hashed([self.label, self.setting, setting])


def find_source(config: Config, data_hash: str) -> Source:
    """Return the source of a run that has one. Raises `UserError` where there is no such run."""
    train, word = config.train, str(config.train.from_run or config.train.beside)
    key = "train.from" if train.from_run else "train.beside"
    if all(CONDITION.fullmatch(part) for part in word.split(",")) and not Path(word).exists():
        run = _run_that_meets(word, key, config, data_hash)
    else:
        run = find_run(word, Path(config.results_dir))
    trained, result = read_config(run), read_result(run) or {}
    message = f"{key}={word} is a checkpoint, and training goes on from runs alone"
    require(trained.checkpoint is None, message)
    length, setting = trained.train.length, str(result.get("setting"))
    first = FirstStage.read(result) or FirstStage(
        run.name, length, trained.train.total_steps, setting, length
    )
    return Source(run, trained, str(result.get("encoding")), setting, first)


def after_source(config: Config, source: Source) -> Config:
    """Return a configuration that names its source, and takes over how it is scored unless that was chosen.

    The name's hash says what the source is, wherever it lies.
    """
    train, name = config.train, source.run.name
    train = replace(train, from_run=name) if train.from_run else replace(train, beside=name)
    scores = replace(source.config.eval, first_length=source.first.length)
    defaults = EvalConfig()
    chosen = {key: value for key, value in vars(config.eval).items() if value != getattr(defaults, key)}
    return replace(config, train=train, eval=replace(scores, **chosen))


def _run_that_meets(word: str, key: str, config: Config, data_hash: str) -> Path:
    """Return the only run with the seed, the data and the model of `config` that meets conditions."""
    where = [parse_condition(part) for part in word.split(",")]
    runs = [
        run
        for run in find_runs([], Path(config.results_dir), where)
        if (read_result(run) or {}).get("data_hash") == data_hash and _is_alike(read_config(run), config)
    ]
    what = f"seed={config.seed} on this data with this model"
    require(bool(runs), f"{key}={word}: no finished run with {what} meets it: train one, or name a run")
    names = ", ".join(sorted(run.name for run in runs))
    require(len(runs) == 1, f"{key}={word}: several runs with {what} meet it ({names}): add a condition")
    return runs[0]


def _is_alike(source: Config, config: Config) -> bool:
    """Return whether two runs have one seed and one model, except for QK-norm, which a stage may change."""
    models = (replace(one.model, qk_norm=False) for one in (source, config))
    return source.seed == config.seed and len({*models}) == 1


def _in_short(count: int) -> str:
    """Return a number of tokens as `128k` or `1.15M`."""
    for size, unit in ((1_000_000, "M"), (1_000, "k")):
        if count >= size:
            return f"{count / size:.3g}{unit}"
    return str(count)
