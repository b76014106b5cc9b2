"""`extend`: a trained model at longer texts, without and with a little more training, in one table.

It scores the unchanged runs and each scaling of them with `evaluate`, trains them further with each scaling
in a sweep of `train`, and makes the table of all these runs.
"""

import json
import math
import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from pe_bench.commands.evaluate import Evaluation, prepare, require_text, score_each
from pe_bench.commands.extend_hf import extend_hf
from pe_bench.commands.job import load_trained, trusted
from pe_bench.commands.sweep.run import launch
from pe_bench.config.arguments import value_texts
from pe_bench.config.overrides import parse_override, quote
from pe_bench.config.parse import parse_config, to_plain, unused_keys
from pe_bench.config.schema import Config
from pe_bench.config.sweeps import PlannedJob, SortedOverrides, check_launcher, plan_jobs, sort_by_use
from pe_bench.errors import RunError, UserError, first_line, require
from pe_bench.hf.load import hf_model_config
from pe_bench.render.grid import printed_text
from pe_bench.report.build import build_tables, run_tables
from pe_bench.report.columns import show
from pe_bench.report.groups import Selection
from pe_bench.report.records import Table
from pe_bench.runs.find import Condition, find_runs, is_hf_name, without_tries
from pe_bench.runs.folder import RunFolder, locked, read_config
from pe_bench.runs.rows import Row
from pe_bench.runs.typed import suggested_eval_command
from pe_bench.runs.untrusted import read_json
from pe_bench.scoring.other_encodings import Requested, find_others, read_with
from pe_bench.scoring.stages import (
    check_stage_encoding,
    encoding_label,
    encoding_overrides,
    inherited_values,
    load_blocks_to_search_on,
    option_to_give,
    search_option,
    stage_encoding,
    stretched_lengths,
    with_factor,
)
from pe_bench.system.files import write_text
from pe_bench.system.signals import world_size
from pe_bench.system.terminal import say
from pe_bench.values import check_type

DEFAULT_SCALINGS = ("yarn", "rope_ntk", "rope_pi")
SEARCHED_FILE = "searched.json"
# The beginnings of keys that all runs must share.
SHARED_SECTIONS = ("encoding.", "model.", "data.", "tokenizer.", "train.")
# Keys that the command chooses itself for the further training, each with what to do instead.
INSTEAD_OF_KEYS = {
    "encoding": "say --with",
    "modifier": "say --with +NAME",
    "train.length": "say --to",
    "train.steps": "say --tokens",
    "train.tokens": "say --tokens",
    **dict.fromkeys(
        ("train.from", "train.beside"), "it goes on from the runs that you name, so leave it out"
    ),
    "train.only": "say pe-bench train train.from=RUN train.only=encoding",
    "results_dir": "say --results-dir",
    **dict.fromkeys(("model", "data", "task", "tokenizer"), "a run keeps its own, so leave it out"),
}
# Keys of `eval` that may differ between the lines of a table: they change no score of its targets.
FREE_EVAL_KEYS = ("controls", "per_position", "batch_tokens")
SHARE_OF_LEARNING_RATE = 0.2  # a share of the first stage's learning rate


@dataclass(frozen=True)
class Extended:
    """Runs at longer texts: `print` shows their table, and `plot` draws their levels by length."""

    runs: list[Path]  # the folders of the given runs, then of the runs that were trained for the table
    tables: list[Table]

    def __str__(self) -> str:
        return printed_text(partial(show, self.tables))

    def plot(self, path: str | Path) -> None:
        """Draw levels by length to a PNG, SVG or PDF file.

        If runs were trained further, lines under an encoding without further training are dashed.
        """
        from pe_bench.report.draw import plot_tables

        plot_tables(self.tables, Path(path))


def extend_runs(
    runs: Sequence[str],
    to: str,
    with_: Sequence[str],
    *,
    tokens: int | None,
    long: bool,
    overrides: Sequence[str],
    results: Path,
    text: Path | None = None,
    train_layers: int | None = None,
    lengths: Sequence[int] = (),
    targets: int | None = None,
) -> Extended:
    """Extend runs, or one Hugging Face model; the arguments are those of `api.extend`.

    Raises `UserError`, `RunError`.
    """
    require(bool(runs), "no run is named: give seeds of one encoding, such as rope, or hf:FOLDER")
    requested = read_with(with_ or [",".join(DEFAULT_SCALINGS)])
    require(tokens is not None or not long, "--long trains with as many tokens as both stages: give --tokens")
    if any(map(is_hf_name, runs)):
        require(to.endswith("x"), f"--to {to} of a Hugging Face model: say how many times longer, such as 4x")
        names = ", ".join(runs)
        require(len(runs) == 1, f"give one Hugging Face model at a time, not {names}")
        require(not long, "--long trains a run from the start, which no Hugging Face model has: leave it out")
        require(train_layers is None or tokens is not None, "--train-layers has no effect without --tokens")
        refuse_scored_keys(value_texts(overrides))
        data_path = None if text is None else str(text)
        if tokens is not None:
            scores = Evaluation(
                lengths=[*lengths] or None, targets=targets, data_path=data_path, results_dir=results
            )
            done = extend_hf(runs[0], _number_in_to(to), requested, tokens, train_layers, overrides, scores)
            return Extended(*done)
        message = "torchrun starts the processes of one training: give --tokens, or start this without it"
        require(world_size() == 1, message)
        stretched = tuple(with_factor(each, _number_in_to(to), ()) for each in requested)
        request = Evaluation(
            lengths=[*lengths] or None,
            with_=stretched,
            targets=targets,
            overrides=tuple(overrides),
            data_path=data_path,
            results_dir=results,
        )
        run = prepare(runs[0], _with_lengths(runs[0], request, _number_in_to(to))).score()
        return Extended([run.path], run_tables(run.scored, run.path, run.margin))
    message = "--text and --train-layers are for hf:FOLDER: a run goes on with its own text and all layers"
    require(text is None and train_layers is None, message)
    message = "torchrun starts the processes of one training: start pe-bench extend without it"
    require(world_size() == 1, message)
    paths = find_runs(runs, results)
    # The name of an encoding also finds later stages.
    first_stages = [path for path in paths if RunFolder(path).first_stage is None]
    paths = without_tries(first_stages or paths)
    config = read_config(paths[0])
    typed = sort_by_use(overrides)
    first = config.train.length
    unit = first if to.endswith("x") else 1
    length = round(_number_in_to(to) * unit)
    require(length > first, f"--to {to} is not longer than train.length={first}: say 4x, or more tokens")
    message = f"--long counts the tokens of one stage, and {paths[0].name} has more: leave it out"
    require(config.train.from_run is None or not long, message)
    given = _checked_values(paths, config, length, typed, is_trained=tokens is not None)
    request = Evaluation(
        targets=targets,
        results_dir=results,
        threads=given.get("threads"),
        device=given.get("device"),
        cache_dir=given.get("cache_dir"),
    )
    _check_encodings(requested, paths[0], config, length, is_trained=tokens is not None)
    # A search must not use text that is scored later.
    most_targets = max(config.eval.targets, targets or 0)
    # The run may come from a stranger, whose cache folder is not used.
    values = {**to_plain(config), "cache_dir": None, **request.machine}
    values["eval"]["targets"] = most_targets
    to_search = parse_config(values)
    requested = [_with_searched_values(each, paths[0], to_search, length) for each in requested]
    chosen = stretched_lengths(config.eval, first, length, lengths)
    request = replace(request, lengths=chosen)
    scored = _score_untrained(paths, length, requested, request, is_trained=tokens is not None)
    if tokens is not None:
        stages = StageJobs(paths, config, length, request, typed.job_overrides)
        jobs = stages.continuing(requested, tokens)
        if long:
            jobs += stages.from_the_start(tokens)
        summary = launch(jobs, typed.launcher_overrides)
        summary.end()
        trained = [state.run for state in summary.states if state.run is not None]
        paths += dict.fromkeys(map(Path, trained))
    # Scores of earlier calls, of other encodings or other targets, are in no table.
    labels = {row.scored_with for row in scored}
    for path in paths:
        labels |= {row.encoding for row in RunFolder(path).rows}
    hashes = tuple(sorted({row.target_hash for row in scored}))
    has_targets = Condition("target_hash", "=", hashes)
    selection = Selection(labels=frozenset(labels), where=(has_targets,), lengths=tuple(chosen))
    names = [path.name for path in paths]
    tables = build_tables(results, names, config.eval.protocol, selection)
    # A narrow table keeps the lengths that the command names, or else the longest ones.
    return Extended(paths, [replace(table, chosen=tuple(lengths)) for table in tables])


def _checked_values(
    runs: Sequence[Path], config: Config, length: int, typed: SortedOverrides, *, is_trained: bool
) -> Mapping[str, Any]:
    """Return the values of the overrides of the first job, by key.

    length: the windows of the further training, in tokens. is_trained: the runs are trained further. Raises
    `UserError` for runs that differ in more than the seed or were not trained on text, and for overrides
    that have no effect or change only the scores of the further training.
    """
    names = ", ".join(run.name for run in runs)
    if is_trained:
        check_launcher(typed.launcher_overrides)
    message = f"{names}: extend takes runs that were trained on text, not tasks or Hugging Face models"
    require(config.hf_model is None and config.task is None, message)
    folders = [*map(RunFolder, runs)]
    for folder in folders:
        message = f"{folder.path / 'eval.csv'} has no readable scores, by which extend compares runs"
        require(bool(folder.rows), f"{message}: make them with {suggested_eval_command(folder.path)}")
    differing = []
    for key in folders[0].flat_config:
        values = {str(folder.flat_config.get(key)) for folder in folders}
        if key.startswith(SHARED_SECTIONS) and len(values) > 1:
            differing.append(key)
    rows = chain.from_iterable(folder.rows for folder in folders)
    lines = {(row.setting, row.encoding) for row in rows}
    keys = ", ".join(differing[:3]) or "their code"
    require(len(lines) == 1, f"{names} differ in {keys}: name runs that differ only in the seed")
    for text in typed.job_overrides:
        key = parse_override(text).key
        # QK-norm and options of the encoding may change in a later stage; the tokenizer may not.
        instead = INSTEAD_OF_KEYS.get("tokenizer" if key.startswith("tokenizer.") else key)
        require(instead is None, f"{text} has no effect on further training: {instead}")
    values = inherited_values(config) | _shared_eval_values(config) | _length_and_batch(config, length)
    jobs = plan_jobs(typed.job_overrides, config.search, choice=encoding_overrides(config), values=values)
    refuse_scored_keys(jobs[0].given)
    for text in typed.run_overrides:
        message = f"{text} is for further training, and without --tokens there is none: give --tokens"
        require(is_trained, message)
    for job in jobs:
        _require_equal_scoring(job.config, config)
    return jobs[0].given


def refuse_scored_keys(keys: Container[str]) -> None:
    """Raise `UserError` for `eval.lengths` and `eval.targets`, which --lengths and --targets replace."""
    for option in ("lengths", "targets"):
        message = f"eval.{option} is not for all lines of the table: say --{option}, which is for all"
        require(f"eval.{option}" not in keys, message)


def _shared_eval_values(config: Config) -> dict[str, Any]:
    """Return the values of a run's section `eval`, by key, that all lines of its table need."""
    values = vars(config.eval).items()
    return {f"eval.{name}": value for name, value in values if name not in FREE_EVAL_KEYS}


def _require_equal_scoring(config: Config, trained: Config) -> None:
    """Raise `UserError` if the scores of a further training cannot be compared with those of its run.

    config: of the further training. trained: the run's configuration.
    """
    chosen = _shared_eval_values(config)
    unread = unused_keys(config).keys() & unused_keys(trained).keys()
    for key, value in _shared_eval_values(trained).items():
        if key in unread:
            continue
        message = f"{key}={quote(chosen[key])} would score only the further training: leave it out"
        require(chosen[key] == value, f"{message} (the runs have {key}={quote(value)})")


def _length_and_batch(config: Config, length: int) -> dict[str, int]:
    """Return the window length and the batch of a further training: about as many tokens as in the first."""
    windows = max(1, round(config.train.batch_tokens / length))
    return {"train.length": length, "train.batch_tokens": length * windows}


@dataclass(frozen=True)
class StageJobs:
    """Makes the jobs that train runs, which differ only in their seeds, at a longer length."""

    runs: Sequence[Path]
    config: Config  # the configuration of the first run
    length: int  # the length of the windows, in tokens
    request: Evaluation  # the request by which the unchanged runs are scored
    overrides: Sequence[str]  # the overrides of the command, for all stages

    def continuing(self, requested: Sequence[Requested], tokens: int) -> list[PlannedJob]:
        """Return jobs that go on from each run with each requested encoding; equal jobs count once.

        tokens: the training tokens of a job.
        """
        jobs: list[PlannedJob] = []
        own = self._jobs("train.from", tokens)
        for each in requested:
            for job in own:
                given = {key: value for key, value in job.given.items() if key.startswith("encoding.")}
                encoding = stage_encoding(each, self.config, job.config, given)
                config = replace(job.config, encoding=encoding)
                config.check()
                if all(config != other.config for other in jobs):  # `+logn` of rope is `rope+logn`
                    jobs.append(_with_encoding_in_label(replace(job, config=config)))
        return jobs

    def from_the_start(self, tokens: int) -> list[PlannedJob]:
        """Return jobs that train the model of each run from the start, on as many tokens as both stages.

        tokens: the tokens of the second stage. The runs are first stages.
        """
        train = self.config.train
        jobs = self._jobs("train.beside", train.total_steps * train.batch_tokens + tokens)
        return [_with_encoding_in_label(job) for job in jobs]

    def _jobs(self, key: str, tokens: int) -> list[PlannedJob]:
        """Return jobs with the runs' own encoding.

        key: the key that names a job's run, such as `train.from`. tokens: the training tokens of a job.
        """
        train = self.config.train
        values = {
            **inherited_values(self.config),
            **_length_and_batch(self.config, self.length),
            "results_dir": str(self.request.results_dir),
            "eval.lengths": self.request.lengths,
        }
        if self.request.targets is not None:
            values["eval.targets"] = self.request.targets
        if key == "train.from":
            # At the full rate, the first stage's learning is lost.
            values["train.lr"] = train.lr * SHARE_OF_LEARNING_RATE
        jobs = []
        for run in self.runs:
            trained = read_config(run)
            run_values = {**_shared_eval_values(trained), **values, key: run.name, "seed": trained.seed}
            choice = encoding_overrides(self.config)
            for job in plan_jobs(self.overrides, self.config.search, choice=choice, values=run_values):
                job = replace(job, config=self._with_tokens(job, tokens))
                differing = [*job.swept]
                if len(self.runs) > 1:
                    differing.insert(0, f"{key}={run.name}")
                jobs.append(replace(job, label=" ".join(differing)))
        return jobs

    def _with_tokens(self, job: PlannedJob, tokens: int) -> Config:
        """Return a job's configuration with the steps for these tokens; warmup keeps its share of steps."""
        first = self.config.train
        train = job.config.train
        steps = math.ceil(tokens / train.batch_tokens)
        warmup_steps = train.warmup_steps
        if "train.warmup_steps" not in job.given:
            warmup_steps = round(first.warmup_steps * steps / first.total_steps)
        config = replace(job.config, train=replace(train, steps=steps, warmup_steps=warmup_steps))
        config.check()
        return config


def _with_encoding_in_label(job: PlannedJob) -> PlannedJob:
    """Return a job with its encoding in its label."""
    label = f"encoding={encoding_label(job.config)} {job.label}"
    return replace(job, label=label.rstrip())


def _check_encodings(
    requested: Sequence[Requested], run: Path, config: Config, length: int, *, is_trained: bool
) -> None:
    """Raise `UserError` for an encoding that cannot be scored or trained with, before anything is searched.

    run: the first run. config: its configuration. length: the windows of the further training, in tokens.
    is_trained: the runs are trained further.
    """
    for each in requested:
        if is_trained or option_to_give(each, config.search, "searched"):
            check_stage_encoding(each, config)
        else:
            stretched = with_factor(each, length / config.train.length, config.search)
            find_others([stretched], run.name, config, config.search, force=True)


def _with_searched_values(requested: Requested, run: Path, config: Config, length: int) -> Requested:
    """Return a requested encoding, with values found by search for the option that its class searches.

    Without such an option, the encoding is returned unchanged. run: the first run, in whose folder the values
    are kept; they are used for all seeds. config: its configuration, with the command's values of the machine
    and the number of scored targets, on which nothing is searched.
    """
    option = option_to_give(requested, config.search, "searched")
    if not option:
        return requested
    path = run / SEARCHED_FILE
    name = f"{requested.text} at {length} beyond {config.eval.targets} targets"
    kept = _read_searched(path)
    if name not in kept:
        require_text(config)
        blocks = load_blocks_to_search_on(config, option, length)
        say(f"{requested.text}: searching {option} for {run.name} at {length} tokens")
        trained = load_trained(run, trusted(config, ()))
        found = [*search_option(trained, requested, option, length, blocks)]
        with locked(run, waits=say):
            kept = _read_searched(path)  # another process may have written it during the search
            kept.setdefault(name, found)
            write_text(path, json.dumps(kept))
    return requested.giving(option, kept[name])


def _read_searched(path: Path) -> dict[str, list[float]]:
    """Return the numbers found for a run, by encoding, length and number of targets; empty without the file.

    Raises `RunError` for a damaged file.
    """
    if not path.exists():
        return {}
    try:
        kept = read_json(path)
        return {name: check_type(values, list[float], name) for name, values in kept.items()}
    except (OSError, ValueError) as error:
        message = f"{path} is damaged ({first_line(error)}): delete it, and extend searches again"
        raise RunError(message) from error


def _score_untrained(
    runs: Sequence[Path],
    length: int,
    requested: Sequence[Requested],
    request: Evaluation,
    *,
    is_trained: bool,
) -> list[Row]:
    """Score the runs unchanged and with each encoding at the lengths of the request; return all rows.

    is_trained: pass over encodings that cannot be scored without training. Raises `UserError`, `RunError`.
    """
    config = read_config(runs[0])
    scored_with: list[Requested] = []
    for each in requested:
        stretched = with_factor(each, length / config.train.length, config.search)
        try:
            find_others([stretched], runs[0].name, config, config.search, force=True)
            scored_with.append(stretched)
        except UserError as error:
            if not is_trained:
                raise
            say(f"{stretched.text} is not scored without training: {first_line(error)}")
    # The label of a line says where an encoding is not compatible.
    request = replace(request, with_=tuple(scored_with), force=bool(scored_with))
    scored, failures = score_each(runs, request)
    if failures:
        raise RunError(failures[0])
    return list(chain.from_iterable(run.scored for run in scored))


def _with_lengths(text: str, request: Evaluation, to: float) -> Evaluation:
    """Return the request for a Hugging Face model with lengths to score, unless an experiment sets them.

    text: hf:FOLDER or hf:OWNER/NAME. to: the longer length over the training length.
    """
    config = hf_model_config(
        text, request.overrides, {}, {}, request.results_dir, data_path=request.data_path
    )
    if request.lengths is None and config.eval.lengths is not None:
        return request  # an experiment has its lengths
    length = round(to * config.trained_length)
    lengths = stretched_lengths(config.eval, config.trained_length, length, request.lengths or ())
    return replace(request, lengths=lengths)


def _number_in_to(to: str) -> float:
    """Return the number in `--to`: 4 for `4x`, or 512 for `512` tokens. Raises `UserError`."""
    is_number = re.fullmatch(r"\d+(\.\d+)?x?", to) is not None
    times = float(to.removesuffix("x")) if is_number else 0.0
    require(times > 1, f"--to {to} is no length past training: say 4x, or a number of tokens such as 512")
    return times
