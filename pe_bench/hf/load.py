"""A Hugging Face model as a run: its configuration, and the model with its data and plans."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from pe_bench.config.arguments import in_sections, value_texts, without_keys
from pe_bench.config.compose import compose
from pe_bench.config.parse import parse_config, warn_unused
from pe_bench.config.schema import (
    BY_COMMAND,
    HF_IDENTITY_VERSION,
    HF_SECTION,
    MIN_PAIRED_LENGTH,
    Config,
    EvalConfig,
    largest_power_of_two,
    quarter_of,
)
from pe_bench.data.packed import load_data
from pe_bench.encodings.spec import EncodingSpec
from pe_bench.errors import UserError, require
from pe_bench.hf.opened import open_hf_model, train_length_of
from pe_bench.hf.source import (
    TOKENIZER,
    Source,
    begin_of_text,
    load_config,
    read_source,
)
from pe_bench.runs.job import Job
from pe_bench.runs.rows import TASK
from pe_bench.scoring.plans import Planner
from pe_bench.scoring.protocols import Plan
from pe_bench.scoring.targets import PART_DIVISOR
from pe_bench.system.machine import explain_out_of_memory, resolve_device, set_threads
from pe_bench.system.terminal import say
from pe_bench.values import without_none

# Keys of the scores, the text and the machine; all others describe a training.
SCORING_KEYS = ("data", "eval", "report", "device", "threads", "cache_dir")
TRAIN_LENGTH_KEY = "train.length"
LESS_MEMORY_IN_SCORING = "--precision bfloat16, shorter --lengths, or a smaller model"
# Of a Hugging Face model's targets, unless the command gives their number.
MAX_SCORED_TARGETS = 16_384
MAX_BLOCKS = 128
MAX_BLOCK_TOKENS = 4_096


def hf_model_config(
    text: str,
    overrides: Sequence[str],
    changes: dict[str, Any],
    machine: dict[str, Any],
    results_dir: Path,
    *,
    plain: bool = False,
    prompts: str | None = None,
    reference: int | None = None,
    data_path: str | None = None,
) -> Config:
    """Return the configuration of a Hugging Face model, without loading the model. Raises `UserError`.

    text: hf:FOLDER, hf:FILE or hf:OWNER/NAME. changes, machine: values for the section `eval`, and for keys
    such as `device`; None changes nothing. plain: keep transformers' own attention. prompts: the kind of
    prompts to score in place of text. reference: the length from which changes are measured; None for the
    training length. data_path: the path of the text; None if the overrides give it.
    """
    _check_keys(overrides, has_text=prompts is None)
    keys = list(value_texts(overrides))
    if data_path:
        keys.append("data.path")
    source = read_source(text)
    if "data.path" in keys and "data" not in keys:
        overrides = ["data=files", *overrides]
    values = compose([*overrides, "encoding=nope"])
    data, train = values["data"], values["train"]
    data["path"] = data_path or data["path"]
    train_length = train["length"]
    length_from = BY_COMMAND
    if TRAIN_LENGTH_KEY not in keys:
        train_length, length_from = _train_length(source)
    train |= {"length": reference or train_length, "steps": 0, "batch_tokens": reference or train_length}
    has_one_text = data["source"] == "files" and data["validation_path"] is None
    if has_one_text and "data.validation_fraction" not in keys:
        data["validation_fraction"] = 1.0  # no training: all of the text is scored
    if prompts is not None:
        values |= {"data": {"name": prompts, "source": "task"}, "task": {"name": prompts}}
        values["eval"]["protocol"] = TASK
    values["eval"].update(without_none(changes))
    values |= {**without_none(machine), "results_dir": str(results_dir)}
    values["tokenizer"] = {"kind": "file", "name": str(source.folder / TOKENIZER)}
    rounding = None
    if source.gguf is not None:
        rounding = source.gguf.rounding or None
    values[HF_SECTION] = {
        "source": source.address,
        "identity": source.identity(values["cache_dir"]),
        "identity_version": HF_IDENTITY_VERSION,
        "train_length_from": length_from,
        "revision": source.revision,
        "begin": _plain_tokens(begin_of_text(source)),
        "plain": plain,
        "train_length": None if train["length"] == train_length else train_length,
        "rounding": rounding,
    }
    given = [*keys, *(f"eval.{name}" for name in without_none(changes))]
    values["eval"].update(_target_blocks(values["eval"], train_length, given))
    config = parse_config(values)
    warn_unused([config], given)
    if reference is not None:
        config = _with_quarter(config, reference)
    if config.eval.max_length is not None or not config.eval.lengths:
        return config
    # 16 times the training length, as in a run, is more than most documents have.
    longest = max(config.train.length, *config.eval.lengths)
    return replace(config, eval=replace(config.eval, max_length=longest))


def _with_quarter(config: Config, reference: int) -> Config:
    """Return a configuration that also scores a quarter of the reference length.

    A gain beyond the reference is judged only if the model gains from the quarter to the reference.
    """
    lengths = config.eval.lengths
    quarter = quarter_of(reference)
    is_judged = config.eval.protocol == "paired" and config.eval.controls != "none"
    if not lengths or not is_judged or quarter < MIN_PAIRED_LENGTH:
        return config  # the usual lengths have the quarter
    return replace(config, eval=replace(config.eval, lengths=sorted({quarter, *lengths})))


def _target_blocks(
    section: Mapping[str, Any], train_length: int, typed_keys: Sequence[str]
) -> dict[str, Any]:
    """Return values for eval.target_tokens and eval.targets, those of the command if it gives them.

    A window scores at most an eighth of its length, so larger blocks would not be cheaper at the training
    length, and smaller blocks would feed more tokens for each target. Blocks are never smaller than a run's.

    section: `eval` of the configuration. typed_keys: the keys in the command.
    """
    size, count = section["target_tokens"], section["targets"]
    if not isinstance(size, int | None) or not isinstance(train_length, int):
        return {}  # the check of the whole configuration refuses these values
    if size is None:
        eighth = largest_power_of_two(min(MAX_BLOCK_TOKENS, max(1, train_length // PART_DIVISOR)))
        size = max(eighth, EvalConfig().resolved_target_tokens(train_length))
    if "eval.targets" not in typed_keys:
        count = max(1, min(MAX_BLOCKS, MAX_SCORED_TARGETS // max(1, size)))
    return {"target_tokens": size, "targets": count}


def with_one_length(
    texts: Sequence[str], overrides: Sequence[str], reference: int | None = None
) -> tuple[list[str], int | None]:
    """Return the overrides and the reference length with which models are scored on the same targets.

    texts: the models, such as hf:FOLDER. If their training lengths differ, the shortest decides the size of
    target blocks, and is the reference if none is given. Raises `UserError` for a model that is not found.
    """
    keys = value_texts(overrides)
    overrides = [*overrides]
    if TRAIN_LENGTH_KEY in keys:
        return overrides, reference
    lengths = {_train_length(read_source(text))[0] for text in texts}
    if len(lengths) < 2:
        return overrides, reference
    shortest = min(lengths)
    if reference is None:
        reference = shortest
        say(f"--reference {shortest}: all are measured from the shortest of their training lengths")
    if "eval.target_tokens" not in keys:
        blocks = _target_blocks({"target_tokens": None, "targets": 0}, shortest, [])
        overrides.append(f"eval.target_tokens={blocks['target_tokens']}")
    return overrides, reference


@explain_out_of_memory(LESS_MEMORY_IN_SCORING)
def load_hf_model(config: Config, planner: Planner) -> tuple[Job, list[Plan]]:
    """Load the model and the data of a configuration; return the job, and the plans that `planner` makes.

    Raises `UserError` if the model's files changed.
    """
    about = config.hf_model
    assert about is not None
    source = read_source(f"{about.source}@{about.revision}" if about.revision else about.source)
    again = f"score it as it is now with `pe-bench eval {about.source}`"
    versions = f"(version {about.identity_version}, now {HF_IDENTITY_VERSION})"
    older = f"{about.source} was scored under an older identity {versions}, and its scores may be others now"
    require(about.identity_version == HF_IDENTITY_VERSION, f"{older}: these are kept, and you can {again}")
    now = source.identity(config.cache_dir)
    message = f"{about.source} is not what this run scored (hash {now} now, {about.identity} then): {again}"
    require(now == about.identity, message)
    device = resolve_device(config.device)
    threads = set_threads(config.threads)
    data = load_data(config)
    plans = planner(config, config.eval, data)
    dtype = getattr(torch, config.eval.precision)
    length = config.trained_length
    opened = open_hf_model(
        source, load_config(source), length, about.first_token_ids, dtype, plain=about.plain
    )
    sizes = data.vocab_size, opened.model.vocab_size
    message = f"the tokenizer of {source.name} has {sizes[0]} tokens and its model {sizes[1]}: give a folder"
    require(sizes[0] <= sizes[1], f"{message} whose files are of one model")
    without = opened.model.without_attention
    layers = opened.size.n_layers - without - len(opened.model.fixed)
    unused = opened.unused_scaling or None
    about = replace(
        about,
        layers=layers,
        architecture=opened.architecture,
        without_attention=without,
        unused_scaling=unused,
    )
    config = replace(config, encoding=opened.encoding, model=opened.size, hf_model=about)
    measured_from = config.train.length
    facts = {HF_SECTION: about.identity, "length": measured_from, "data": data.hash, "plain": about.plain}
    if measured_from != length:
        facts["trained"] = length
    setting = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:8]
    name = opened.size.name
    label = EncodingSpec(config.encoding).label
    trained = f"{length:,} tokens ({about.train_length_from})"
    if measured_from != length:
        trained = f"{measured_from:,} tokens; trained at {trained}"
    say(f"{name}: {label}, measured from {trained}")
    if unused:
        say(f"{name}: its config.json names the scaling {unused}, and no layer turns so")
    if opened.nats is not None:
        moved = f"differs by {opened.nats:.1g} nats per token from its value in float32"
        say(f"{name}: in {config.eval.precision} the mean loss of a window {moved}")
    if opened.difference is None:
        say(f"{name}: keeps transformers' attention, without the window control and --with")
    else:
        say(f"{name}: logits equal transformers' own to {opened.difference:.1g} of the largest")
    folder = Path(config.results_dir) / "runs" / f"hf-{source.name}-{setting}"
    return Job(config, folder, setting, label, label, device, dtype, threads, data, opened.model), plans


def _plain_tokens(tokens: Sequence[int]) -> int | list[int] | None:
    """Return the first tokens of a text as a configuration has them: a list, a single number or None."""
    if len(tokens) > 1:
        return [*tokens]
    return tokens[0] if tokens else None


def _check_keys(overrides: Sequence[str], *, has_text: bool) -> None:
    """Raise `UserError` for a key that is not of the scores, the machine or, with `has_text`, the text."""
    usable = SCORING_KEYS
    brings = "its own model, encoding and tokenizer"
    if not has_text:
        usable = SCORING_KEYS[1:]
        brings += ", and with --task its own text"
    for text in without_keys(overrides, [TRAIN_LENGTH_KEY]):
        message = (
            f"{text} has no effect on a Hugging Face model, which brings {brings}: change {', '.join(usable)}"
        )
        require(bool(in_sections([text], usable)), f"{message} or {TRAIN_LENGTH_KEY}")


def _train_length(source: Source) -> tuple[int, str]:
    """Return the training length, and the key of the configuration that states it. Raises `UserError`."""
    stated = train_length_of(load_config(source))
    if stated is None:
        what = f"the configuration of {source.name} does not say at what length it was trained"
        raise UserError(f"{what}: say {TRAIN_LENGTH_KEY}=N, in tokens")
    return stated
