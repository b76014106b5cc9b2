"""Later stages: runs that go on from a trained run with another encoding, by `extend` or `train.from`.

LongRoPE2 (Shang et al. 2025, arXiv:2502.20082) searches the factors of LongRoPE for each trained model, by
the perplexity of tokens that only far context predicts; here these are the targets of the slice `recall`.
They lie in further target blocks, and share no target with the blocks that a run is scored on.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from pe_bench.config.compose import choose_encoding, resolve_encoding
from pe_bench.config.parse import to_plain
from pe_bench.config.schema import MIN_PAIRED_LENGTH, Config, EvalConfig, quarter_of
from pe_bench.data.packed import Split, load_data
from pe_bench.encodings.spec import EncodingSpec, PartSpec, is_part
from pe_bench.errors import RunError, require
from pe_bench.runs.folder import RunFolder
from pe_bench.runs.job import Job, identity, run_name
from pe_bench.runs.scores import RECALL
from pe_bench.scoring.other_encodings import (
    Requested,
    declared_option,
    full_options,
    label_with_short_lists,
    with_shared_options,
)
from pe_bench.scoring.protocols import paired_plan
from pe_bench.scoring.scorer import Scorer
from pe_bench.scoring.slices import text_slices
from pe_bench.scoring.targets import TargetBlocks, target_blocks

# The sections that a later stage takes over, beside `precision` and `report.margin`.
INHERITED_SECTIONS = ("model", "data", "tokenizer", "train")
# Keys of `train` that each stage has for itself.
STAGE_KEYS = ("length", "steps", "tokens", "batch_tokens", "warmup_steps", "from", "beside", "source", "only")
SEARCH_BLOCKS = 16
SEARCH_ROUNDS = 40  # rounds of a search after the first guesses
SEARCH_SPREAD = 0.15  # the spread of the logarithm of a value, from one round to the next


def with_factor(requested: Requested, factor: float, search: Sequence[Path]) -> Requested:
    """Return a requested encoding with a factor, if it takes a factor and none is given."""
    option = option_to_give(requested, search, "window_factor")
    if not option:
        return requested
    return requested.giving(option, float(f"{factor:g}"))


def option_to_give(requested: Requested, search: Sequence[Path], attribute: str) -> str:
    """Return the option that a part of a requested encoding has and the request does not give; else empty.

    attribute: the class attribute that names the option, such as `window_factor`.
    """
    chosen = choose_encoding(requested.base or "nope", requested.modifiers, search)
    spec = EncodingSpec(chosen, tuple(search))
    typed = {key.rpartition(".")[2] for key in requested.options}
    for part in (spec.base, *spec.modifiers.values()):
        option = declared_option(part, attribute)
        if option and option not in typed:
            return option
    return ""


def stage_encoding(
    requested: Requested, trained: Config, config: Config, given: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the values of a requested encoding in the configuration `config` of a later stage of `trained`.

    given: values by keys such as `encoding.base`, which replace values of the request. Raises `UserError`.
    """
    name = requested.base or trained.encoding["name"]
    chosen = choose_encoding(name, [*modifiers_of(trained), *requested.modifiers], trained.search)
    config = replace(config, search=trained.search)
    return resolve_encoding(chosen, {**full_options(requested, chosen), **(given or {})}, config)


def check_stage_encoding(requested: Requested, trained: Config) -> None:
    """Raise `UserError` for a requested encoding with an unknown option, or an option of the wrong type."""
    spec = EncodingSpec(stage_encoding(requested, trained, trained), trained.search)
    spec.with_examples().identity()  # reads all options


def modifiers_of(trained: Config) -> list[str]:
    """Return the names of the modifiers of a trained run's encoding."""
    return [*(trained.encoding.get("modifiers") or {})]


def encoding_label(config: Config) -> str:
    """Return the label of a configuration's encoding: its name with the options that were chosen."""
    return label_with_short_lists(EncodingSpec(config.encoding, config.search))


def encoding_overrides(trained: Config) -> list[str]:
    """Return the overrides that choose the encoding of a trained run."""
    modifiers = ",".join(modifiers_of(trained))
    return [f"encoding={trained.encoding['name']}", f"modifier=[{modifiers}]"]


def inherited_values(trained: Config) -> dict[str, Any]:
    """Return the values of a trained run by their keys, without the keys that each stage has for itself."""
    plain = to_plain(trained)
    values_by_key: dict[str, Any] = {"precision": trained.precision, "report.margin": trained.report.margin}
    for section in INHERITED_SECTIONS:
        values_by_key |= {f"{section}.{key}": value for key, value in plain[section].items()}
    for key in STAGE_KEYS:
        del values_by_key[f"train.{key}"]
    spec = EncodingSpec(trained.encoding, trained.search)
    for part in (spec.base, *spec.modifiers.values()):
        values_by_key |= {f"{part.key}.{name}": value for name, value in part.chosen_options().items()}
    return values_by_key


def stretched_lengths(
    evaluation: EvalConfig, train_length: int, length: int, chosen: Sequence[int] = ()
) -> list[int]:
    """Return the lengths at which a model that is stretched to `length` tokens is scored.

    These are the chosen lengths, or else the lengths of the configuration up to twice `length`; the training
    length and `length`; and a quarter of each of these two, because a gain from a quarter to its length shows
    that the model reads so far. The quarter of the training length is left out if use of context is not
    judged.
    """
    own = evaluation.resolved_lengths(train_length)
    near = chosen or [each for each in own if each <= 2 * length]
    quarter_of_stretched = max(quarter_of(length), MIN_PAIRED_LENGTH)
    lengths = {*near, train_length, quarter_of_stretched, length}
    quarter = quarter_of(train_length)
    is_judged = evaluation.protocol == "paired" and evaluation.controls != "none"
    if is_judged and quarter >= MIN_PAIRED_LENGTH:
        lengths.add(quarter)
    return sorted(lengths)


def later_stage_encoding(spec: EncodingSpec, trained: Config, length: int) -> EncodingSpec:
    """Return the encoding `spec` with the values that it has in a later stage, trained at `length` tokens.

    Options with default values have the trained values instead, the training length too, because the weights
    know that length. A factor that is not given is the new length over the trained one. No option is taken
    from a user's own encoding: its run may be a stranger's, and reading its options would run its code.
    """
    before = EncodingSpec(trained.encoding)

    def continued_values(part: PartSpec, earlier: PartSpec | None) -> dict[str, Any]:
        values = dict(part.values)
        chosen = part.chosen_options()
        if "train_length" in values and "train_length" not in chosen:
            values["train_length"] = trained.train.length
        if earlier is None or not earlier.is_built_in:
            return values
        part = PartSpec(values, part.search, part.key)
        options = {name: value for name, value in earlier.values.items() if not is_part(value)}
        given = {f"{part.key}.{name}" for name in chosen}
        return with_shared_options(part, PartSpec(options), given)

    values = continued_values(spec.base, before.base)
    option = declared_option(spec.base, "window_factor")
    if option and values[option] is None:
        values[option] = max(1.0, length / values["train_length"])
    modifiers = {}
    for name, part in spec.modifiers.items():
        modifiers[name] = continued_values(part, before.modifiers.get(name))
    return EncodingSpec({**values, "modifiers": modifiers}, spec.search)


def trained_name(run: Path, trained: Config, result: Mapping[str, Any]) -> str:
    """Return the name that a finished run was trained under, even if its folder was renamed.

    result: its result.json. A user's own encoding is not loaded, because its run may be a stranger's. A run
    of such an encoding has its folder's name if the name has the form of a run's name.
    """
    spec = EncodingSpec(trained.encoding)
    facts = trained, str(result.get("data_hash")), str(result.get("train_dtype"))
    if all(part.is_built_in for part in spec.parts):
        return run_name(trained, identity(*facts, spec.identity()))
    name = run_name(trained, identity(*facts, [_without_code_files(trained.encoding)]))
    begin, _, _ = name.rpartition("-")
    if re.fullmatch(rf"{re.escape(begin)}-[0-9a-f]{{8}}", run.name) is None:
        return name
    folder = RunFolder(run)
    return run.name if folder.rows and folder.original_name == run.name else name


def _without_code_files(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return an encoding's values with `class: my.py:Mine` cut to `class: Mine`, also in nested encodings."""
    plain_values: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            plain_values[key] = _without_code_files(value)
        elif key == "class":
            plain_values[key] = str(value).rpartition(":")[2]
        else:
            plain_values[key] = value
    return plain_values


def stage_label(spec: EncodingSpec, trained: Config | None) -> str:
    """Return the label of a later stage's encoding without options of the trained encoding: `yarn x4`.

    trained: the configuration of the parent run; None without a parent."""
    if trained is not None and PartSpec(trained.encoding).is_built_in:
        shared = PartSpec(trained.encoding).options
        alike = [name for name, value in spec.base.options.items() if shared.get(name) == value]
        derived = [*(spec.values.get("derived") or []), *alike, "train_length"]
        spec = EncodingSpec({**spec.values, "derived": derived}, spec.search)
    label = label_with_short_lists(spec)
    option = declared_option(spec.base, "window_factor")
    factor = spec.values.get(option)
    return label if factor is None else label.replace(f"{option}={factor}", f"x{factor:g}")


def blocks_to_search_on(config: Config, split: Split, data_hash: str, length: int) -> TargetBlocks:
    """Return target blocks on which a run is not scored, from the same half of the documents."""
    evaluation = config.eval
    trained = config.train.length
    longest = max(length, trained, evaluation.resolved_max_length(trained))
    size = evaluation.resolved_target_tokens(trained)
    count = evaluation.targets + SEARCH_BLOCKS
    blocks = target_blocks(split, longest, size, count, evaluation.seed, data_hash, evaluation.half)
    return blocks.chosen(blocks.turn >= evaluation.targets)


def load_blocks_to_search_on(config: Config, option: str, length: int) -> TargetBlocks:
    """Return the target blocks to search an option on, without a model. Raise `UserError` without blocks."""
    data = load_data(config)
    blocks = blocks_to_search_on(config, data.validation, data.hash, length)
    message = f"eval.targets={config.eval.targets} leaves no text to search {option} on: give {option}"
    require(len(blocks) > 0, message)
    return blocks


def search_option(
    job: Job, requested: Requested, option: str, length: int, blocks: TargetBlocks
) -> Sequence[float]:
    """Return the value of a searched option with the least loss at a length, of recall targets if any.

    The search begins with the best guess of the option's class, and changes the best value at random, from a
    fixed seed, `SEARCH_ROUNDS` times. job: with trained weights. blocks: from `load_blocks_to_search_on`.
    Raises `RunError` if a value cannot be scored, or if no loss is finite.
    """
    config = job.config
    split = job.data.validation
    composed = EncodingSpec(stage_encoding(requested, config, config), config.search)
    # An option without a value has an example until the search.
    spec = later_stage_encoding(composed.with_examples(), config, length)
    parts = (spec.base, *spec.modifiers.values())
    part = next(part for part in parts if part.encoding_class.searched == option)
    recall = text_slices(split, blocks, config.first_length)[RECALL]
    plan = paired_plan(blocks, length)

    def loss_with(value: Sequence[float]) -> float:
        changed = spec.changed(lambda each: {option: list(value)} if each.key == part.key else {})
        built = changed.build(job.model.n_layers, job.data.vocabulary).to(job.device)
        model = job.model.with_encoding(built).eval()
        [(_, result)] = Scorer(model, split, config.eval).scores([plan])
        if result.status != "ok":
            raise RunError(f"{option} cannot be searched at {length} tokens: {result.reason}")
        scored = result.nll[recall] if recall.any() else result.nll
        loss = float(scored.mean())
        return math.inf if math.isnan(loss) else loss  # no number is less than NaN, which would stay the best

    random = np.random.default_rng(0)
    guesses = part.encoding_class.guesses(part.options, length)
    losses = {tuple(guess): loss_with(guess) for guess in guesses}
    for _ in range(SEARCH_ROUNDS):
        best = np.array(min(losses, key=losses.__getitem__))
        steps = SEARCH_SPREAD * random.standard_normal(len(best))
        is_changed = random.random(len(best)) < 0.5
        changed = best * np.exp(steps * is_changed)
        rising = np.maximum.accumulate(np.round(changed, 2).clip(min=1))
        value = tuple(rising.tolist())
        if value not in losses:
            losses[value] = loss_with(value)
    found = min(losses, key=losses.__getitem__)
    if math.isinf(losses[found]):
        raise RunError(f"{option} cannot be searched at {length} tokens: no tried value has a finite loss")
    return found
