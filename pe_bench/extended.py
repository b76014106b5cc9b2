"""`extend`: a trained model at longer texts, without and with a little more training, in one table.

It scores the unchanged runs and each scaling of them as `evaluate` does, goes on from them with each as a
sweep of `train` does, and reads the table of the family.
"""

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import yaml

from pe_bench.config.compose import compose_config
from pe_bench.config.overrides import parse_override, quote, values_of
from pe_bench.config.schema import MACHINE_KEYS, Config
from pe_bench.errors import RunError, UserError, first_line, require
from pe_bench.experiment import load_trained, trusted
from pe_bench.extend_checkpoint import extend_checkpoint
from pe_bench.report.build import build_tables, run_tables
from pe_bench.report.columns import show
from pe_bench.report.groups import Selection
from pe_bench.report.records import Table
from pe_bench.runs.find import find_runs, is_checkpoint, without_tries
from pe_bench.runs.folder import RunFolder, read_config
from pe_bench.runs.untrusted import read_json
from pe_bench.scored import Options, prepare, score_each
from pe_bench.scoring.other_encodings import Requested, find_others, read_with
from pe_bench.scoring.stages import (
    option_to_give,
    own_overrides,
    search_option,
    stage_overrides,
    with_factor,
)
from pe_bench.sweep.run import launch
from pe_bench.system.files import write_text
from pe_bench.system.grid import text_of
from pe_bench.system.signals import world_size
from pe_bench.system.terminal import say
from pe_bench.values import check_type

DEFAULT = ("yarn", "rope_ntk", "rope_pi")
SEARCHED = "searched.json"
OF_RUN = ("encoding.", "model.", "data.", "tokenizer.", "train.")  # keys in which runs may not differ
SHARE_OF_RATE = 0.2  # of the first stage's learning rate


@dataclass(frozen=True)
class Extended:
    """A family of runs: `print` shows its table, and `plot` draws its losses by length."""

    runs: list[Path]
    tables: list[Table]

    def __str__(self) -> str:
        return text_of(partial(show, self.tables))

    def plot(self, path: str | Path) -> None:
        """Draw loss by length to a PNG, SVG or PDF file; beside trained lines, untrained ones are dashed."""
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
) -> Extended:
    """Do as `api.extend` does. Raises `UserError`, `RunError`."""
    requested = read_with(with_ or [",".join(DEFAULT)])
    require(tokens is not None or not long, "--long trains with as many tokens as both stages: give --tokens")
    if any(map(is_checkpoint, runs)):
        require(to.endswith("x"), f"--to {to} of a checkpoint: say how many times longer, such as 4x")
        require(len(runs) == 1, f"give one checkpoint at a time, not {', '.join(runs)}")
        require(not long, "--long trains a run from the start, and a checkpoint has no such: leave it out")
        require(train_layers is None or tokens is not None, "--train-layers has no effect without --tokens")
        overrides = [*overrides, *([] if text is None else [f"data.path={quote(str(text))}"])]
        if tokens is not None:
            done = extend_checkpoint(runs[0], _times(to), requested, tokens, train_layers, overrides, results)
            return Extended(*done)
        message = "torchrun starts the processes of one training: give --tokens, or start this without it"
        require(world_size() == 1, message)
        texts = [with_factor(each, _times(to), None) for each in requested]
        run = prepare(runs[0], {"with_": texts, "overrides": [*overrides], "results_dir": results})()
        return Extended([run.path], run_tables(run.scored, run.path, run.margin))
    message = "--text and --train-layers are for hf:FOLDER: a run goes on with its own text and all layers"
    require(text is None and train_layers is None, message)
    message = "torchrun starts the processes of one training: start pe-bench extend without it"
    require(world_size() == 1, message)
    paths = find_runs(runs, results)
    # A later stage has the name of its encoding, too.
    paths = without_tries([path for path in paths if RunFolder(path).first_stage is None] or paths)
    config, is_trained = read_config(paths[0]), tokens is not None
    _check(paths, config, overrides, is_trained=is_trained)
    first = config.train.length
    length = round(_times(to) * (first if to.endswith("x") else 1))
    require(length > first, f"--to {to} is not longer than train.length={first}: say 4x, or more tokens")
    requested = [_searched(each, paths[0], config, length) for each in requested]
    parsed = [each for each in map(parse_override, overrides) if each.key in MACHINE_KEYS]
    options = {"results_dir": results, **{each.key: yaml.safe_load(each.value or "") for each in parsed}}
    scored = _score(paths, length, requested, options, is_trained=is_trained)
    jobs = [(stage_overrides(each, config), "from", tokens) for each in requested if tokens]
    if tokens and long:
        message = f"--long counts the tokens of one stage, and {paths[0].name} has more: leave it out"
        require(config.train.from_run is None, message)
        total = config.train.total_steps * config.train.batch_tokens + tokens
        jobs.append((own_overrides(config), "beside", total))
    sources = [*paths]
    for encoding, key, count in jobs:
        job = [
            *encoding,
            *_stage(config, key, sources, length, count or 0),
            f"results_dir={quote(str(results))}",
        ]
        summary = launch([*job, *overrides], config.search, overrides)
        summary.end()
        paths += dict.fromkeys(Path(state.run) for state in summary.states if state.run is not None)
    # Encodings that were scored before get no line: their targets may be others.
    labels = scored | {row.encoding for path in paths for row in RunFolder(path).rows}
    selection = Selection(labels=frozenset(labels))
    names = [path.name for path in paths]
    return Extended(paths, build_tables(results, names, config.eval.protocol, selection))


def _check(runs: Sequence[Path], config: Config, overrides: Sequence[str], *, is_trained: bool) -> None:
    """Raise `UserError` for runs that differ in more than the seed, and for overrides that no job has."""
    names = ", ".join(run.name for run in runs)
    message = f"{names}: extend takes runs that were trained on text, and no checkpoint and no task"
    require(config.checkpoint is None and config.task is None, message)
    folders = [*map(RunFolder, runs)]
    keys = [key for key in folders[0].flat_config if key.startswith(OF_RUN)]
    keys = [key for key in keys if len({str(each.flat_config.get(key)) for each in folders}) > 1]
    message = (
        f"{names} differ in {', '.join(keys[:3]) or 'their code'}: name runs that differ only in the seed"
    )
    require(len({(row.setting, row.encoding) for each in folders for row in each.rows}) == 1, message)
    typed = [each for each in map(parse_override, overrides) if "hydra" not in each.key]
    single = [each for each in typed if len(values_of(each)) < 2]
    compose_config([*own_overrides(config), *map(str, single)], config.search)
    for each in typed:
        message = f"{each} is for further training, and without --tokens there is none: give --tokens"
        require(is_trained or each.key in MACHINE_KEYS, message)


def _stage(config: Config, key: str, sources: Sequence[Path], length: int, tokens: int) -> list[str]:
    """Return the overrides of a sweep that goes on from each of these runs, or stands beside them."""
    train = config.train
    batch = length * max(1, round(train.batch_tokens / length))
    steps = math.ceil(tokens / batch)
    warmup = round(train.warmup_steps * steps / train.total_steps)
    changes = {"length": length, "steps": steps, "batch_tokens": batch, "warmup_steps": warmup}
    # At the full rate, what was learned before is lost.
    changes |= {"lr": train.lr * SHARE_OF_RATE} if key == "from" else {}
    names = ",".join(quote(source.name) for source in sources)
    # A renamed run's name does not have its seed.
    seeds = [(source.name, read_config(source).seed) for source in sources]
    known = "".join(f',"{name}",{seed}' for name, seed in seeds if f"-s{seed}-" not in name)
    return [
        *(f"++train.{name}={value}" for name, value in changes.items()),
        f"++train.{key}={names}",
        f"seed='${{seed_of:${{train.{key}}}{known}}}'",
    ]


def _searched(requested: Requested, run: Path, config: Config, length: int) -> Requested:
    """Return an encoding with what its method searches for the first run, which stands for the other seeds.

    It is kept in the run's folder, so that it is searched once.
    """
    option = option_to_give(requested, config, "searched")
    path, name = run / SEARCHED, f"{requested.text} at {length}"
    if not option:
        return requested
    kept = _read_searched(path)
    if name not in kept:
        say(f"{requested.text}: searching {option} for {run.name} at {length} tokens")
        trained = load_trained(run, trusted(config, ()))
        kept[name] = [*search_option(trained, requested, option, length)]
        write_text(path, json.dumps(kept))
    return read_with([f"{requested.text} {option}=[{','.join(map(str, kept[name]))}]"])[0]


def _read_searched(path: Path) -> dict[str, list[float]]:
    """Return the numbers that were found for a run, by what they were searched for; none without the file.

    Raise `RunError` for a damaged file.
    """
    if not path.exists():
        return {}
    try:
        kept = read_json(path)
        return {name: check_type(values, list[float], name) for name, values in kept.items()}
    except (OSError, ValueError) as error:
        message = f"{path} is damaged ({first_line(error)}): delete it, and extend searches again"
        raise RunError(message) from error


def _score(
    runs: Sequence[Path], length: int, requested: Sequence[Requested], options: Options, *, is_trained: bool
) -> set[str]:
    """Score the runs unchanged and with each encoding; return the labels of all that were scored.

    With `is_trained`, pass over encodings that do not fit.
    """
    config, texts = read_config(runs[0]), []
    for each in requested:
        text = with_factor(each, length / config.train.length, config)
        try:
            find_others(read_with([text]), runs[0].name, config, config.search, force=True)
            texts.append(text)
        except UserError as error:
            if not is_trained:
                raise
            say(f"{text} is not scored without training: {first_line(error)}")
    lengths = sorted({*config.eval.resolved_lengths(config.train.length), length, length // 4})
    # The label of a line says where an encoding is not compatible.
    options = {**options, "with_": texts, "lengths": lengths, "force": bool(texts)}
    scored, failures = score_each(runs, options)
    if failures:
        raise RunError(failures[0])
    return {row.scored_with for run in scored for row in run.scored}


def _times(to: str) -> float:
    number = float(to.removesuffix("x")) if re.fullmatch(r"\d+(\.\d+)?x?", to) else 0.0
    require(number > 1, f"--to {to} is no length past training: say 4x, or a number of tokens such as 512")
    return number
