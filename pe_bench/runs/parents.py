"""A run's parent: the run from whose weights it starts (`train.from`), or beside which it is shown.

A run that is only shown beside its parent (`train.beside`) is trained from the start. All runs that descend
from one first stage are scored on the targets of this stage, and share its model, data, length and training
tokens.
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
from pe_bench.runs.folder import FirstStage, RunFolder, flat, read_config, read_result
from pe_bench.runs.job import hashed
from pe_bench.runs.untrusted import read_json
from pe_bench.values import check_type

PARENT_FILE = "source.json"  # the facts of its parent in a run's folder, because the parent may be deleted
TEXT_FIELDS = ("label", "setting", "trained_as", "data_hash")  # fields of `Parent` that are kept as they are


@dataclass(frozen=True)
class Parent:
    """A finished run that is the parent of another run."""

    run: Path
    config: Config
    label: str  # the label in tables
    setting: str  # as in `Job`
    first: FirstStage  # the first stage that it descends from, or its own stage
    trained_as: str  # the name when it was trained; its folder may have been renamed
    data_hash: str  # the hash of the text that it was trained on
    missing: str = ""  # why its folder was not found, if its facts come from a child's folder

    def to_plain(self) -> dict[str, Any]:
        """Return the facts that a child keeps, as plain values."""
        facts = {name: getattr(self, name) for name in TEXT_FIELDS}
        plain = {"run": str(self.run.resolve()), "config": to_plain(self.config)}
        return {**plain, **facts, "first_stage": asdict(self.first)}

    def stage(self, encoding_label: str, config: Config, setting: str) -> tuple[str, FirstStage, str]:
        """Return the label, the first stage and the setting of a child, the same for all seeds.

        encoding_label: the label of the child's own encoding. config, setting: the child's configuration, and
        its setting as if it had no parent.
        """
        train = config.train
        tokens = _short_count(train.total_steps * train.batch_tokens)
        has_own_length = train.length != self.config.train.length
        at = f"at {train.length} " if has_own_length or train.beside else ""
        longest = train.length
        label = f"{encoding_label}, trained {at}({tokens})"
        if train.from_run:
            only = "its encoding alone " if train.only else ""
            has_new_norm = config.model.qk_norm and not self.config.model.qk_norm
            norm = "with qk_norm " if has_new_norm else ""
            label = f"{self.label}, then {encoding_label} {norm}{only}{at}({tokens})"
            longest = max(longest, self.first.longest)
        first = replace(self.first, longest=longest)
        return label, first, hashed([self.label, self.setting, setting])


def find_parent(
    config: Config, data_hash: str, trained_name: Callable[[Path, Config, Mapping[str, Any]], str]
) -> Parent:
    """Return the parent that a configuration names.

    The parent may be a deleted run, whose facts its children in the same results keep. Raises `UserError`
    unless a run, or a single deleted run, fits. trained_name: returns a run's name when it was trained, from
    its folder, configuration and result.
    """
    word = str(config.train.from_run or config.train.beside)
    key = "train.from" if config.train.from_run else "train.beside"
    try:
        if _is_condition(word):
            run = _find_run_by_conditions(word, key, config, data_hash)
        else:
            run = find_run(word, Path(config.results_dir))
    except UserError as error:
        kept = {parent.trained_as: parent for parent in _deleted_parents(word, config, data_hash)}
        if len(kept) != 1:
            raise
        return replace(*kept.values(), missing=first_line(error))
    trained = read_config(run)
    result = read_result(run) or {}
    message = f"{key}={word} is a Hugging Face model, and training goes on from runs alone"
    require(trained.hf_model is None, message)
    length = trained.train.length
    setting = str(result.get("setting"))
    own_stage = FirstStage(RunFolder(run).original_name, length, trained.train.total_steps, setting, length)
    first = FirstStage.read(result) or own_stage
    return Parent(
        run=run,
        config=trained,
        label=str(result.get("encoding")),
        setting=setting,
        first=first,
        trained_as=trained_name(run, trained, result),
        data_hash=str(result.get("data_hash")),
    )


def _is_condition(word: str) -> bool:
    has_form = all(CONDITION.fullmatch(part) for part in word.split(","))
    return has_form and not Path(word).exists()


def _deleted_parents(word: str, config: Config, data_hash: str) -> Iterator[Parent]:
    """Yield the deleted parents of existing runs that a name, path or condition selects."""
    path = Path(word)
    conditions: list[Condition] = []
    if _is_condition(word):
        conditions = [parse_condition(part) for part in word.split(",")]
    runs = Path(config.results_dir) / "runs"
    for file in sorted(runs.glob(f"*/{PARENT_FILE}")):
        parent = _read_kept(file)
        if parent is None or parent.run.exists():
            continue
        if conditions:
            is_alike = parent.data_hash == data_hash and _is_alike(parent.config, config)
            is_meant = is_alike and all(_parent_meets(one, parent) for one in conditions)
        elif len(path.parts) > 1:
            is_meant = parent.run == path.resolve()
        else:
            is_meant = word in (parent.run.name, parent.trained_as)
        if is_meant:
            yield parent


def _read_kept(file: Path) -> Parent | None:
    """Read the facts of a run's parent; None for a damaged file."""
    with suppress(RunError, UserError, OSError, ValueError, TypeError, AttributeError, KeyError):
        plain = read_json(file)
        first = FirstStage.read(plain)
        texts = {name: check_type(plain[name], str, name) for name in TEXT_FIELDS}
        if first is not None:
            run = Path(str(plain["run"]))
            return Parent(run, parse_config(plain["config"]), first=first, **texts)
    return None


def _parent_meets(condition: Condition, parent: Parent) -> bool:
    """Return whether a deleted parent meets a condition.

    False for a condition on anything but its configuration.
    """
    values = flat(to_plain(parent.config))
    values |= {"encoding": parent.label, "data": parent.config.data.name}
    return condition.key in values and condition.holds(values[condition.key])


def with_parent(config: Config, parent: Parent) -> Config:
    """Return a child's configuration with the parent's names, and its `eval` values in place of defaults.

    A value that the child's command gives stays, even if it equals the default. The parent's name when it was
    trained contains its identity, so it is known in any folder.
    """
    name = parent.run.name
    key = "from_run" if config.train.from_run else "beside"
    trained_as = parent.trained_as if parent.trained_as != name else None
    train = replace(config.train, source=trained_as, **{key: name})
    defaults = vars(EvalConfig())
    chosen: dict[str, Any] = {}
    for option, value in vars(config.eval).items():
        if value != defaults[option] or f"eval.{option}" in config.given:
            chosen[option] = value
    chosen["first_length"] = config.eval.first_length or parent.first.length
    return replace(config, train=train, eval=replace(parent.config.eval, **chosen))


def _find_run_by_conditions(conditions: str, key: str, config: Config, data_hash: str) -> Path:
    """Return the only run with the seed, the data and the model of `config` that meets the conditions.

    conditions: separated by commas. key: the key that has them, such as `train.from`, for messages. Raises
    `UserError` unless exactly one run fits.
    """
    where = [parse_condition(part) for part in conditions.split(",")]
    runs: list[Path] = []
    for run in find_runs([], Path(config.results_dir), where):
        result = read_result(run) or {}
        if result.get("data_hash") == data_hash and _is_alike(read_config(run), config):
            runs.append(run)
    typed = f"{key}={conditions}"
    what = f"seed={config.seed} on this data with this model"
    message = f"{typed}: no finished run with {what} meets these conditions"
    require(bool(runs), f"{message}: train one, or name a run")
    names = ", ".join(sorted(run.name for run in runs))
    message = f"{typed}: several runs with {what} meet these conditions ({names})"
    require(len(runs) == 1, f"{message}: add a condition")
    return runs[0]


def _is_alike(parent: Config, config: Config) -> bool:
    """Return whether two runs have the same seed and model, except for QK-norm, which a stage may change."""
    one = replace(parent.model, qk_norm=False)
    other = replace(config.model, qk_norm=False)
    return parent.seed == config.seed and one == other


def _short_count(count: int) -> str:
    """Return a number of tokens with three digits, as `128k` or `1.15M`."""
    if count < 1_000:
        return str(count)
    if count < 999_500:
        return f"{count / 1_000:.3g}k"
    millions = count / 1_000_000
    return f"{millions:.3g}M" if count < 999_500_000 else f"{millions:.0f}M"
