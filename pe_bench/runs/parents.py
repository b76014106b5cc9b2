"""The run whose weights training starts from, or beside which a run stands in tables, and what it hands on.

A family of runs has its first stage in common: its model, data, length and budget. All of it is scored on the
targets of that stage.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from pe_bench.config.parse import parse_config, to_plain
from pe_bench.config.schema import Config, EvalConfig
from pe_bench.errors import RunError, UserError, first_line, require
from pe_bench.runs.find import CONDITION, Condition, find_run, find_runs, parse_condition
from pe_bench.runs.folder import FirstStage, flat, read_config, read_result
from pe_bench.runs.job import hashed
from pe_bench.runs.untrusted import read_json
from pe_bench.values import check_type

KEPT = "source.json"  # of a run that has a source: what it needs of that run, which may be deleted later
TEXTS = ("label", "setting", "trained_as", "data_hash")  # fields of a source that are kept as they are


@dataclass(frozen=True)
class Source:
    """A finished run that another goes on from or stands beside.

    label: its line in tables. trained_as: the name that it was trained under, which says what it is; its
    folder may have another. missing: why it was not found, where a run of its own keeps these facts.
    """

    run: Path
    config: Config
    label: str
    setting: str
    first: FirstStage
    trained_as: str
    data_hash: str
    missing: str = ""

    def to_plain(self) -> dict[str, Any]:
        """Return what `kept_sources` reads."""
        facts = {name: getattr(self, name) for name in TEXTS}
        plain = {"run": str(self.run.resolve()), "config": to_plain(self.config), **facts}
        return {**plain, "first_stage": asdict(self.first)}

    def stage(self, words: str, config: Config, setting: str) -> tuple[str, FirstStage, str]:
        """Return the label, the first stage and the setting of a run with this source.

        words, setting: of its own stage. All seeds get the same results.
        """
        train = config.train
        tokens = _in_short(train.total_steps * train.batch_tokens)
        at = f"at {train.length} " if train.length != self.config.train.length or train.beside else ""
        only = "its encoding alone " if train.only else ""
        norm = "with qk_norm " if config.model.qk_norm and not self.config.model.qk_norm else ""
        goes_on = f"{self.label}, then {words} {norm}{only}{at}({tokens})"
        label = goes_on if train.from_run else f"{words}, trained {at}({tokens})"
        longest = max(train.length, self.first.longest if train.from_run else 0)
        return label, replace(self.first, longest=longest), hashed([self.label, self.setting, setting])


def find_source(
    config: Config, data_hash: str, trained_name: Callable[[Path, Config, Mapping[str, Any]], str]
) -> Source:
    """Return the source of a run that has one. Raises `UserError` where there is no such run.

    A source that was deleted is the one that a run of these results keeps, if only one fits. trained_name:
    returns the name that a run was trained under, from its folder, its configuration and its result.json.
    """
    word = str(config.train.from_run or config.train.beside)
    key = "train.from" if config.train.from_run else "train.beside"
    try:
        if _is_condition(word):
            run = _run_that_meets(word, key, config, data_hash)
        else:
            run = find_run(word, Path(config.results_dir))
    except UserError as error:
        kept = {source.trained_as: source for source in _kept_sources(word, config, data_hash)}
        if len(kept) != 1:
            raise
        return replace(*kept.values(), missing=first_line(error))
    trained = read_config(run)
    result = read_result(run) or {}
    message = f"{key}={word} is a checkpoint, and training goes on from runs alone"
    require(trained.checkpoint is None, message)
    length = trained.train.length
    setting = str(result.get("setting"))
    first = FirstStage.read(result) or FirstStage(
        run.name, length, trained.train.total_steps, setting, length
    )
    return Source(
        run=run,
        config=trained,
        label=str(result.get("encoding")),
        setting=setting,
        first=first,
        trained_as=trained_name(run, trained, result),
        data_hash=str(result.get("data_hash")),
    )


def _is_condition(word: str) -> bool:
    return all(CONDITION.fullmatch(part) for part in word.split(",")) and not Path(word).exists()


def _kept_sources(word: str, config: Config, data_hash: str) -> Iterator[Source]:
    """Yield the deleted sources that runs keep and that a word stands for."""
    path = Path(word)
    where = [parse_condition(part) for part in word.split(",")] if _is_condition(word) else []
    for file in sorted((Path(config.results_dir) / "runs").glob(f"*/{KEPT}")):
        source = _read_kept(file)
        if source is None or source.run.exists():
            continue
        if where:
            is_alike = source.data_hash == data_hash and _is_alike(source.config, config)
            is_meant = is_alike and all(_holds(one, source) for one in where)
        elif len(path.parts) > 1:
            is_meant = source.run == path.resolve()
        else:
            is_meant = word in (source.run.name, source.trained_as)
        if is_meant:
            yield source


def _read_kept(file: Path) -> Source | None:
    """Return the source that a run keeps; None where the file is damaged."""
    with suppress(RunError, UserError, OSError, ValueError, TypeError, AttributeError, KeyError):
        plain = read_json(file)
        first = FirstStage.read(plain)
        texts = {name: check_type(plain[name], str, name) for name in TEXTS}
        if first is not None:
            return Source(Path(str(plain["run"])), parse_config(plain["config"]), first=first, **texts)
    return None


def _holds(condition: Condition, source: Source) -> bool:
    """Return whether a deleted source meets a condition, as far as its configuration says."""
    values = {**flat(to_plain(source.config)), "encoding": source.label, "data": source.config.data.name}
    return condition.key in values and condition.holds(values[condition.key])


def after_source(config: Config, source: Source) -> Config:
    """Return a configuration that names its source, and takes over how it is scored unless that was chosen.

    The name that the source was trained under has a hash of what it is, and identifies it wherever it lies.
    """
    name = source.run.name
    key = "from_run" if config.train.from_run else "beside"
    trained_as = source.trained_as if source.trained_as != name else None
    train = replace(config.train, source=trained_as, **{key: name})
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
