"""Runs that go on from a trained run with another encoding: `extend`, and `train.from`.

LongRoPE2 (Shang et al. 2025, arXiv:2502.20082) searches the factors of LongRoPE for each trained model, by
the perplexity of tokens that only far context can tell; here these are the targets of the slice `recall`.
They lie in blocks that follow those that a run is scored on, and share no target with them.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from pe_bench.config.compose import choose_encoding, resolve_encoding
from pe_bench.config.parse import to_plain
from pe_bench.config.schema import MIN_PAIRED_LENGTH, Config, EvalConfig, quarter_of
from pe_bench.data.packed import Split
from pe_bench.encodings.spec import EncodingSpec, PartSpec, is_part
from pe_bench.errors import RunError, require
from pe_bench.runs.folder import RunFolder
from pe_bench.runs.job import Job, identity, run_name
from pe_bench.runs.scores import RECALL
from pe_bench.scoring.other_encodings import (
    Requested,
    declared,
    full_options,
    with_shared_options,
    with_short_lists,
)
from pe_bench.scoring.protocols import paired_plan
from pe_bench.scoring.scorer import Scorer
from pe_bench.scoring.slices import text_slices
from pe_bench.scoring.targets import TargetBlocks, target_blocks

SECTIONS = ("model", "data", "tokenizer", "train")  # the sections that a later stage takes over
# Each stage of training has its own.
OF_STAGE = ("length", "steps", "tokens", "batch_tokens", "warmup_steps", "from", "beside", "source", "only")
BLOCKS = 16
ROUNDS = 40  # after the first guesses
SPREAD = 0.15  # the spread of the logarithm of a value, from one round to the next


def with_factor(requested: Requested, factor: float, search: Sequence[Path]) -> Requested:
    """Return a requested encoding with a factor, where it takes one and none is given."""
    option = option_to_give(requested, search, "window_factor")
    if not option:
        return requested
    return requested.giving(option, float(f"{factor:g}"))


def option_to_give(requested: Requested, search: Sequence[Path], kind: str) -> str:
    """Return the option of this kind that an encoding's classes declare, and that is not given."""
    spec = EncodingSpec(choose_encoding(requested.base or "nope", requested.modifiers, search), tuple(search))
    options = [declared(part, kind) for part in (spec.base, *spec.modifiers.values())]
    typed = {key.rpartition(".")[2] for key in requested.options}
    return next((option for option in options if option and option not in typed), "")


def stage_encoding(
    requested: Requested, trained: Config, config: Config, given: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return a requested encoding in the configuration of a run that goes on from a trained one.

    given: values by keys such as `encoding.base`, which come after those of the request. Raises `UserError`.
    """
    name = requested.base or trained.encoding["name"]
    chosen = choose_encoding(name, [*modifiers_of(trained), *requested.modifiers], trained.search)
    config = replace(config, search=trained.search)
    return resolve_encoding(chosen, {**full_options(requested, chosen), **(given or {})}, config)


def modifiers_of(trained: Config) -> list[str]:
    return [*(trained.encoding.get("modifiers") or {})]


def name_of(config: Config) -> str:
    """Return the name of a configuration's encoding with the options that were chosen."""
    return with_short_lists(EncodingSpec(config.encoding, config.search))


def own_choice(trained: Config) -> list[str]:
    """Return the overrides that choose the encoding of a trained run."""
    return [f"encoding={trained.encoding['name']}", f"modifier=[{','.join(modifiers_of(trained))}]"]


def own_values(trained: Config) -> dict[str, Any]:
    """Return the values of a trained run by their keys, without those that each stage has for itself."""
    plain = to_plain(trained)
    values: dict[str, Any] = {}
    for section in SECTIONS:
        values |= {f"{section}.{key}": value for key, value in plain[section].items()}
    for key in OF_STAGE:
        del values[f"train.{key}"]
    spec = EncodingSpec(trained.encoding, trained.search)
    for part in (spec.base, *spec.modifiers.values()):
        values |= {f"{part.key}.{name}": value for name, value in part.chosen_options().items()}
    return values


def stretched_lengths(
    evaluation: EvalConfig, train_length: int, length: int, chosen: Sequence[int] = ()
) -> list[int]:
    """Return the lengths to score of a model that is stretched to `length` tokens.

    These are the chosen lengths, or else the configuration's lengths up to twice `length`; and always the
    training length and `length`. Whether a model reads that far is judged by the gain from a quarter of each
    of these two lengths, so the quarters are scored too: a quarter of the training length only where use of
    context is judged.
    """
    own = evaluation.resolved_lengths(train_length)
    near = chosen or [each for each in own if each <= 2 * length]
    lengths = {*near, train_length, max(quarter_of(length), MIN_PAIRED_LENGTH), length}
    quarter = quarter_of(train_length)
    is_judged = evaluation.protocol == "paired" and evaluation.controls != "none"
    if is_judged and quarter >= MIN_PAIRED_LENGTH:
        lengths.add(quarter)
    return sorted(lengths)


def after_training(spec: EncodingSpec, trained: Config, length: int) -> EncodingSpec:
    """Return the encoding of a run that goes on from a trained one, at a length of its own.

    Options without a chosen value keep their trained values. `train_length` is the trained length, which the
    weights know. A factor without a value follows from the new length. No option is taken from an encoding of
    outside code: its run may be a stranger's, and reading its options would run its code.
    """
    before = EncodingSpec(trained.encoding)

    def continued(part: PartSpec, earlier: PartSpec | None) -> dict[str, Any]:
        values = dict(part.values)
        chosen = part.chosen_options()
        if "train_length" in values and "train_length" not in chosen:
            values["train_length"] = trained.train.length
        if earlier is None or not earlier.is_built_in:
            return values
        part = PartSpec(values, part.search, part.key)
        earlier = PartSpec({name: value for name, value in earlier.values.items() if not is_part(value)})
        return with_shared_options(part, earlier, {f"{part.key}.{name}" for name in chosen})

    values = continued(spec.base, before.base)
    option = declared(spec.base, "window_factor")
    if option and values[option] is None:
        values[option] = max(1.0, length / values["train_length"])
    modifiers = {name: continued(part, before.modifiers.get(name)) for name, part in spec.modifiers.items()}
    return EncodingSpec({**values, "modifiers": modifiers}, spec.search)


def trained_name(run: Path, trained: Config, result: Mapping[str, Any]) -> str:
    """Return the name that a finished run was trained under, whatever its folder is called now.

    result: its result.json. An encoding from outside is not loaded for this: its run may be a stranger's. A
    run of such an encoding has its folder's name if that is a name that training gives.
    """
    spec = EncodingSpec(trained.encoding)
    facts = trained, str(result.get("data_hash")), str(result.get("train_dtype"))
    if all(part.is_built_in for part in spec.parts):
        return run_name(trained, identity(*facts, spec.identity()))
    name = run_name(trained, identity(*facts, [_without_places(trained.encoding)]))
    begins = name.rpartition("-")[0]
    is_given = re.fullmatch(rf"{re.escape(begins)}-[0-9a-f]{{8}}", run.name) is not None
    return run.name if is_given and {row.run for row in RunFolder(run).rows} == {run.name} else name


def _without_places(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of an encoding with the names of classes in place of where their files lie."""
    plain: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            plain[key] = _without_places(value)
        elif key == "class":
            plain[key] = str(value).rpartition(":")[2]
        else:
            plain[key] = value
    return plain


def stage_label(spec: EncodingSpec, trained: Config | None) -> str:
    """Return the label of an encoding after another, without what they share: `yarn x4`."""
    if trained is not None and PartSpec(trained.encoding).is_built_in:
        shared = PartSpec(trained.encoding).options
        alike = [name for name, value in spec.base.options.items() if shared.get(name) == value]
        derived = [*(spec.values.get("derived") or []), *alike, "train_length"]
        spec = EncodingSpec({**spec.values, "derived": derived}, spec.search)
    label = with_short_lists(spec)
    option = declared(spec.base, "window_factor")
    factor = spec.values.get(option)
    return label if factor is None else label.replace(f"{option}={factor}", f"x{factor:g}")


def blocks_to_search_on(config: Config, split: Split, data_hash: str, length: int) -> TargetBlocks:
    """Return the blocks that follow those that a run is scored on, of the same half of the documents."""
    evaluation = config.eval
    trained = config.train.length
    longest = max(length, trained, evaluation.resolved_max_length(trained))
    size = evaluation.resolved_target_tokens(trained)
    count = evaluation.targets + BLOCKS
    blocks = target_blocks(split, longest, size, count, evaluation.seed, data_hash, evaluation.half)
    return blocks.chosen(blocks.turn >= evaluation.targets)


def search_option(job: Job, requested: Requested, option: str, length: int) -> Sequence[float]:
    """Return the value of an option with the least loss in windows of `length` tokens.

    The search begins with the best of the guesses of the class that has the option, and changes it at random,
    from a fixed seed, as long as that helps. job: a job with trained weights. Raises `RunError` where nothing
    can be scored.
    """
    config = job.config
    split = job.data.validation
    composed = EncodingSpec(stage_encoding(requested, config, config), config.search)
    # With an example of what has to be searched.
    spec = after_training(composed.with_examples(), config, length)
    parts = (spec.base, *spec.modifiers.values())
    part = next(part for part in parts if part.encoding_class.searched == option)
    blocks = blocks_to_search_on(config, split, job.data.hash, length)
    message = f"eval.targets={config.eval.targets} leaves no text to search {option} on: give {option}"
    require(len(blocks) > 0, message)
    recall = text_slices(split, blocks, config.first_length)[RECALL]
    plan = paired_plan(blocks, length)

    def loss(value: Sequence[float]) -> float:
        changed = spec.changed(lambda each: {option: list(value)} if each.key == part.key else {})
        built = changed.build(job.model.n_layers, job.data.vocabulary).to(job.device)
        model = job.model.with_encoding(built).eval()
        [(_, result)] = Scorer(model, split, config.eval).scores([plan])
        if result.status != "ok":
            raise RunError(f"{option} cannot be searched at {length} tokens: {result.reason}")
        return float(result.nll[recall].mean() if recall.any() else result.nll.mean())

    random = np.random.default_rng(0)
    losses = {tuple(guess): loss(guess) for guess in part.encoding_class.guesses(part.options, length)}
    for _ in range(ROUNDS):
        best = np.array(min(losses, key=losses.__getitem__))
        steps = SPREAD * random.standard_normal(len(best))
        is_changed = random.random(len(best)) < 0.5
        changed = best * np.exp(steps * is_changed)
        value = tuple(np.maximum.accumulate(np.round(changed, 2).clip(min=1)).tolist())
        if value not in losses:
            losses[value] = loss(value)
    return min(losses, key=losses.__getitem__)
