"""`extend hf:...` with `--tokens`: a Hugging Face model trained a little further at longer texts.

Each scaling gets a folder that transformers reads, with the trained weights, and with the scaling in its
config.json. The table has the model unchanged, under each scaling without training, and trained with each
scaling, on validation documents of the text.
"""

import math
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from glob import escape
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from pe_bench.commands.evaluate import Evaluation, prepare
from pe_bench.commands.job import refuse_writing_into_text
from pe_bench.config.arguments import value_texts, without_keys
from pe_bench.config.compose import compose
from pe_bench.config.parse import parse_config
from pe_bench.config.schema import HF_SECTION, MIN_PAIRED_LENGTH, Config, DataConfig, quarter_of
from pe_bench.data.batches import TrainingWindows
from pe_bench.data.packed import Data, load_data, summary
from pe_bench.errors import RunError, require
from pe_bench.hf.export import require_rescaled, rescaled_config, write_weights
from pe_bench.hf.load import hf_model_config
from pe_bench.hf.opened import Opened, open_hf_model
from pe_bench.hf.source import Source, load_config, read_source
from pe_bench.hf.training import FurtherTraining, Settings, train_further, trained_parameters
from pe_bench.report.build import build_tables
from pe_bench.report.groups import Selection
from pe_bench.report.records import Table
from pe_bench.runs.find import HF_PREFIX, Condition
from pe_bench.runs.folder import locked, record_error
from pe_bench.runs.job import hashed
from pe_bench.scoring.other_encodings import OtherEncoding, Requested, find_others
from pe_bench.scoring.stages import stretched_lengths, with_factor
from pe_bench.system import machine
from pe_bench.system.cost import PACE_SECONDS, count, expect, print_cost_once
from pe_bench.system.files import TEMPORARY_PREFIX, remove_leftovers, replace_folder, write_json
from pe_bench.system.signals import world_size
from pe_bench.system.terminal import progress_bar, say
from pe_bench.training.group import Group, join_processes
from pe_bench.training.trainer import Step, show_progress

# Part of the identity of a trained folder: raised when the same settings give other weights than before.
TRAINING_VERSION = 1
BATCH_TOKENS = 16_384  # the tokens in a step, or one longer window
# Chen et al. 2023 (arXiv:2306.15595) and Peng et al. 2023 (YaRN, arXiv:2309.00071) train Llama 7B further at
# this rate, without weight decay, after 20 steps of warm-up; it is a fifth of a final rate of 1e-4.
LEARNING_RATE, WARMUP_STEPS = 2e-5, 20
CHECKPOINT_EVERY = 10  # steps, each of which may take minutes
VALIDATION_KEY = "data.validation_fraction"
TRAINING_KEYS = (
    *("train.lr", "train.final_lr", "train.warmup_steps", "train.weight_decay", "train.betas", "train.clip"),
    *("train.batch_tokens", "train.micro_batches", "train.checkpoint_every", "train.timeout"),
    *("seed", "precision"),
)
LESS_MEMORY_ADVICE = "--train-layers N, train.micro_batches=N, or a shorter --to"


@dataclass(frozen=True)
class Stage:
    """A further training of a Hugging Face model with one scaling."""

    source: Source
    config: Config
    other: OtherEncoding  # the scaling
    settings: Settings
    values: dict[str, Any]  # config.json of the result
    facts: dict[str, Any]  # the facts that decide the trained weights
    target: Path  # the folder of the result

    @property
    def workplace(self) -> Path:
        """Return the folder of an unfinished training, with its checkpoints."""
        return self.target.with_name(f"{self.target.name}.training")


def extend_hf(
    text: str,
    to: float,
    requested: Sequence[Requested],
    tokens: int,
    train_layers: int | None,
    overrides: Sequence[str],
    scores: Evaluation,
) -> tuple[list[Path], list[Table]]:
    """Train a model further with each scaling; return the folders of the scored runs, and their tables.

    text: hf:FOLDER or hf:OWNER/NAME. to: the longer length over the training length. tokens: how many tokens
    to train on. train_layers: number of the last layers to train; None for all. overrides: settings of the
    data, the training and the machine. scores: the lengths, the number of targets, and the folders of the
    text and of results. In processes of torchrun after the first, both lists are empty.
    """
    for_scores = without_keys(overrides, TRAINING_KEYS)
    for_training = [each for each in overrides if each not in for_scores]
    keys = value_texts(for_scores)
    message = "the further training needs text: say --text DIR, of text files"
    has_text = scores.data_path is not None or "data" in keys or "data.path" in keys
    require(has_text, message)
    if VALIDATION_KEY not in keys and "data.validation_path" not in keys:
        for_scores.append(f"{VALIDATION_KEY}={DataConfig.validation_fraction}")
    config = hf_model_config(text, for_scores, {}, {}, scores.results_dir, data_path=scores.data_path)
    refuse_writing_into_text(config)
    length = round(to * config.trained_length)
    settings = _settings(config, for_training, length, tokens, train_layers)
    stretched = [with_factor(each, to, ()) for each in requested]
    stages = _stages(config, settings, stretched)
    with print_cost_once(lambda left: count(left, "further training"), len(stages)) as cost:
        for number, stage in enumerate(stages, 1):
            is_first = _train_stage(stage)
            cost.ended = number
            if not is_first:
                return [], []
    return _score_all(text, stages, stretched, replace(scores, overrides=tuple(for_scores)))


def _settings(
    config: Config, overrides: Sequence[str], length: int, tokens: int, layers: int | None
) -> Settings:
    """Return the settings of a training at a length. Raise `UserError` for values that do not fit."""
    given = value_texts(overrides)
    batch = length * max(1, BATCH_TOKENS // length)
    defaults = {
        "train.optimizer": "adamw",
        "train.length": length,
        "train.batch_tokens": batch,
        "train.processes": world_size(),
        "train.lr": LEARNING_RATE,
        "train.weight_decay": 0.0,
        "train.checkpoint_every": CHECKPOINT_EVERY,
    }
    texts = [f"{key}={value}" for key, value in defaults.items() if key not in given]
    chosen = parse_config(compose([*texts, *overrides, "encoding=nope"]))
    steps = math.ceil(tokens / chosen.train.batch_tokens)
    train = replace(chosen.train, steps=steps)
    if "train.warmup_steps" not in given:
        train = replace(train, warmup_steps=min(WARMUP_STEPS, steps // 4))
    device = machine.resolve_device(config.device)
    dtype = machine.resolve_precision(chosen.precision, device)
    if chosen.precision == "auto" and machine.multiplies_bfloat16(device):
        dtype = torch.bfloat16
    return Settings(train, chosen.seed, layers, dtype)


def _stages(config: Config, settings: Settings, requested: Sequence[Requested]) -> list[Stage]:
    """Return one further training for each requested scaling, in their order; equal trainings count once.

    Raises `UserError` for a scaling that transformers does not have.
    """
    about = config.hf_model
    assert about is not None
    data = load_data(config)
    TrainingWindows(data.train, settings.train.length, data.end_of_text)  # long enough for one
    source = read_source(f"{about.source}@{about.revision}" if about.revision else about.source)
    opened = _open_replaceable(config, source)
    trained_parameters(opened.model, settings.layers)
    config = replace(config, encoding=opened.encoding, model=opened.size)
    stages: dict[Path, Stage] = {}
    for each in requested:
        others = find_others([each], source.name, config, force=None)
        message = (
            f"--with {each.text} is not one encoding other than that of {source.name}: give one, such as yarn"
        )
        require(len(others) == 1, message)
        values = rescaled_config(source, opened, others[0].encoding, config.trained_length)
        facts = _facts_of_weights(config, settings, data, others[0])
        key = hashed(facts)
        scaling = others[0].encoding.base.name
        name = f"{source.name}-{scaling}-{settings.train.length}-{key}"
        target = Path(config.results_dir).resolve() / "models" / name
        stages.setdefault(target, Stage(source, config, others[0], settings, values, facts, target))
    return list(stages.values())


def _open_replaceable(config: Config, source: Source) -> Opened:
    """Open a model in float32. Raise `UserError` if its encoding cannot be replaced."""
    assert config.hf_model is not None
    first_ids = config.hf_model.first_token_ids
    length = config.trained_length
    opened = open_hf_model(source, load_config(source), length, first_ids, torch.float32, plain=False)
    why = opened.model.why_encoding_stays
    require(not why, f"{source.name} {why}, so --with has nothing to replace")
    return opened


def _facts_of_weights(config: Config, settings: Settings, data: Data, other: OtherEncoding) -> dict[str, Any]:
    """Return the facts that decide the weights of a training, as JSON has them."""
    assert config.hf_model is not None
    train = settings.train
    names = ("length", "batch_tokens", "lr", "final_lr", "warmup_steps", "weight_decay", "betas", "clip")
    return {
        "version": TRAINING_VERSION,
        HF_SECTION: config.hf_model.identity,
        "encoding": other.encoding.identity(),
        "train_length": config.trained_length,
        "steps": train.total_steps,
        **{name: getattr(train, name) for name in names},
        "layers": settings.layers,
        "precision": str(settings.dtype).removeprefix("torch."),
        "seed": settings.seed,
        "data": data.hash,
    }


def _train_stage(stage: Stage) -> bool:
    """Train a stage unless its folder exists, and write the folder.

    Returns whether this process is the first of the training's processes, which goes on alone.
    """
    config = stage.config
    train = stage.settings.train
    device = machine.resolve_device(config.device)
    threads = machine.set_threads(config.threads)
    with join_processes(device, train.timeout) as group:
        has_folder = group.is_first and stage.target.is_dir()
        if group.broadcast("done" if has_folder else ""):
            say(f"{stage.target} is already trained")
            if group.is_first:
                _delete_workplace(stage)
            return group.is_first
        with _at_work(stage, group), machine.explain_out_of_memory(LESS_MEMORY_ADVICE):
            opened = _open_replaceable(config, stage.source)
            data = load_data(config)
            say(summary(data, train.length))
            encoding = stage.other.encoding.build(opened.size.n_layers)
            model = opened.model.with_encoding(encoding).to(device)
            windows = TrainingWindows(data.train, train.length, data.end_of_text)
            training = FurtherTraining(model, stage.settings, windows, group)
            n_parameters = sum(parameter.numel() for parameter in training.trained.values())
            kind = str(stage.settings.dtype).removeprefix("torch.")
            steps = f"{count(train.total_steps, 'step')} of {train.batch_tokens:,} tokens at {train.length:,}"
            how = f"learning rate {train.lr:g}, products in {kind}"
            what = f"trains {n_parameters:,} parameters with {stage.other.label}"
            say(f"{stage.target.name}: {what}, {steps}, {how}")
            with progress_bar(stage.target.name, train.total_steps) as bar:

                def show_step(step: Step) -> None:
                    show_progress(bar, step, train.total_steps)
                    # The first step of a large model takes minutes: one is enough to know the cost.
                    if step.seconds >= PACE_SECONDS:
                        seconds = step.seconds / step.step * train.total_steps
                        expect(seconds, machine.cores_of(device, threads))

                train_further(training, stage.workplace, show_step)
            if group.is_first:
                model.to("cpu")
                about = {"source": stage.source.address, **stage.facts}
                about |= machine.environment(device, threads)
                _write_model(stage, opened, about)
    return group.is_first


@contextmanager
def _at_work(stage: Stage, group: Group) -> Iterator[None]:
    """Within the context, the first process of a training locks its folder and records an error there."""
    if not group.is_first:
        yield
        return
    workplace = stage.workplace
    workplace.mkdir(parents=True, exist_ok=True)
    with locked(workplace), record_error(workplace):
        remove_leftovers(workplace)
        _delete_unfinished_results(stage)
        yield


def _delete_unfinished_results(stage: Stage) -> None:
    """Delete the folders that killed processes were writing when they had trained a stage."""
    for leftover in stage.target.parent.glob(f"{TEMPORARY_PREFIX}*-{escape(stage.target.name)}"):
        shutil.rmtree(leftover)


def _delete_workplace(stage: Stage) -> None:
    """Delete what a process left that was killed after it had written the folder of a stage."""
    if stage.workplace.is_dir():
        with suppress(RunError), locked(stage.workplace):  # another process deletes it itself
            _delete_unfinished_results(stage)
            shutil.rmtree(stage.workplace)


def _write_model(stage: Stage, opened: Opened, about: dict[str, Any]) -> None:
    """Write the trained model to its folder, read it again, and delete the training's folder.

    about: the facts of the training, for training.json. Raises `RunError` if logits differ.
    """
    with replace_folder(stage.target) as folder:
        write_weights(folder, stage.source, opened.model.causal, stage.values)
        shutil.copyfile(stage.workplace / "train.csv", folder / "train.csv")
        write_json(folder / "training.json", about)
        written = Source(f"{HF_PREFIX}{folder}", folder)
        difference = require_rescaled(written, opened, stage.other.encoding, stage.config.trained_length)
    shutil.rmtree(stage.workplace)
    equal = f"its logits in transformers are equal to {difference:.1g} of the largest"
    say(f"{stage.source.name} trained further with {stage.other.label}: {stage.target}; {equal}")


def _score_all(
    text: str,
    stages: Sequence[Stage],
    requested: Sequence[Requested],
    request: Evaluation,
) -> tuple[list[Path], list[Table]]:
    """Score the model, unchanged and with each scaling, and the trained models; return runs and tables."""
    config = stages[0].config
    trained = config.trained_length
    length = stages[0].settings.train.length
    if request.lengths is not None:
        lengths = stretched_lengths(config.eval, trained, length, request.lengths)
        request = replace(request, lengths=lengths)
    elif config.eval.lengths is None:
        quarter = max(quarter_of(trained), MIN_PAIRED_LENGTH)
        request = replace(request, lengths=sorted({quarter, trained, length}))
    runs = [prepare(text, replace(request, with_=tuple(requested))).score()]
    for stage in stages:
        runs.append(prepare(f"{HF_PREFIX}{stage.target}", request).score())
    rows = list(chain.from_iterable(run.scored for run in runs))
    hashes = dict.fromkeys(row.target_hash for row in rows)
    labels = {row.scored_with for row in rows}
    where = (Condition("target_hash", "=", tuple(hashes)),)
    selection = Selection(where=where, by=("model",), labels=frozenset(labels))
    paths = [run.path for run in runs]
    names = [path.name for path in paths]
    return paths, build_tables(request.results_dir, names, config.eval.protocol, selection)
