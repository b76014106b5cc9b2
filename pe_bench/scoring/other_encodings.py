"""Trained weights under another encoding, as `eval --with` names it.

NAME.yaml is composed over the run's own model, training and data configuration. Every option that the named
encoding shares with the trained encoding takes the trained value unless it is given.

A modifier acts on top of the run's own encoding, any other name replaces its base, and the run's modifiers
stay. Without a given factor, or with `factor=auto`, a scaling has the factor of each window: another model at
each length, as if it were tuned for that length. With `factor=fixed`, the factor is one number at every
length, the training length included, as in a model that serves texts of all lengths: the longest length over
the training length. The longest length is `eval.max_length`, or the longest scored length if that is longer,
because nobody sets a model up for shorter texts than it gets. The number is in the label, so that rows of two
factors are never taken for one curve.

An encoding works on weights of the encodings that its class names in `compatible_with`. If the class stays
the same, only the options that it names in `changeable_after_training` may differ; for an option that holds
another encoding, the same rules hold for that encoding. Modifiers that the run was trained with stay. If they
are compatible with the base, weights mean the same without them; with any other modifier, the weights are of
another model, about which nothing is known.
"""

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from pe_bench.config.compose import choose_encoding, resolve_encoding
from pe_bench.config.groups import find_name, names_in
from pe_bench.config.overrides import full_key, read_option
from pe_bench.config.schema import Config, EvalConfig
from pe_bench.encodings.spec import NOT_OPTIONS, EncodingSpec, PartSpec
from pe_bench.errors import UserError, require
from pe_bench.model.checks import dry_run_training
from pe_bench.model.decoder import Decoder, LanguageModel
from pe_bench.runs.job import Job
from pe_bench.values import shown

BEFORE_AN_OPTION = re.compile(r"\s+(?=[\w.]+=)")  # a value may hold spaces
AUTO, FIXED = "auto", "fixed"
MAX_LABEL_NUMBERS = 8  # the most numbers of an option that a label spells


class Requested(NamedTuple):
    """An encoding that `--with` requests, such as `yarn+logn factor=4`, in its parts."""

    text: str  # as it is typed
    base: str | None  # the name of the encoding; None for the run's own
    modifiers: list[str]  # the names of modifiers
    options: dict[str, Any]  # the values of options, by the keys that are typed

    def giving(self, option: str, value: Any) -> "Requested":
        """Return the requested encoding with one more option."""
        text = f"{self.text} {option}={option_text(value)}"
        return self._replace(text=text, options={**self.options, option: value})


class OtherEncoding(NamedTuple):
    """An encoding under which trained weights are scored."""

    label: str  # the name in tables
    encoding: EncodingSpec
    forced: bool  # it is not compatible with the trained encoding


def read_with(texts: Sequence[str], search: Sequence[Path] = ()) -> list[Requested]:
    """Read `eval --with`: `yarn,rope_ntk`, `yarn factor=4`, `logn` or `yarn+logn`. Raises `UserError`.

    search: folders with the user's own YAML.
    """
    requested = []
    for text in texts:
        parts = [text] if "=" in text else text.split(",")
        requested += [_read_requested(part, search) for part in parts]
    return requested


def _read_requested(text: str, search: Sequence[Path]) -> Requested:
    """Read one encoding of `--with`, with its modifiers and options. Raises `UserError`."""
    name, *options = BEFORE_AN_OPTION.split(text.strip())
    message = f"--with '{text}': name encodings with commas between, or one with its options (yarn factor=4)"
    require(bool(name) and set(name).isdisjoint(" ,="), message)
    modifiers = names_in("modifier", search)
    parts = name.removeprefix("+").split("+")
    names = []
    for part in parts:
        names.append(part if part in modifiers else find_name("encoding", part, search))
    base = None
    if not name.startswith("+") and names[0] not in modifiers:
        base = names.pop(0)
    for part in names:
        message = f"--with {text}: {part} is no modifier, and only one encoding can be the base"
        require(part in modifiers, f"{message} ({', '.join(modifiers)} go on top of another)")
    try:
        values = dict(map(read_option, options))
    except UserError as error:
        raise UserError(f"--with {text}: {error}") from error
    for key in values:
        require(key not in NOT_OPTIONS, f"--with {text}: {key} is no option of an encoding: leave it out")
    return Requested(" ".join([name, *options]), base, names, values)


def option_text(value: Any) -> str:
    """Return a number or a list of numbers as text for OPTION=VALUE: 4.0 as `4`, a list as `[1,2]`."""
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list):
        return f"[{','.join(map(str, value))}]"
    return str(value)


def find_others(
    requested: Sequence[Requested],
    run: str,
    trained: Config,
    search: Sequence[Path] = (),
    *,
    force: bool | None = False,
) -> list[OtherEncoding]:
    """Return the requested encodings, each once and without the run's own.

    trained: the run's configuration with the lengths to score; its classes are trusted already. force: None
    for a command without --force. Raises `UserError` for an encoding that cannot be scored, and without
    `force` for an incompatible encoding.
    """
    others_by_label: dict[str, OtherEncoding] = {}
    trained_with = EncodingSpec(trained.encoding, tuple(search))
    for each in requested:
        try:
            encoding = _compose_requested(each, trained, trained_with)
            if encoding.identity() != trained_with.identity():
                checked = _checked_encoding(encoding, trained_with, trained.model.n_layers, force)
                others_by_label.setdefault(checked.label, checked)
        except UserError as error:
            raise UserError(f"--with {each.text}, {run}: {error}") from error
    return list(others_by_label.values())


def models_under(job: Job, replacements: Sequence[OtherEncoding]) -> list[LanguageModel]:
    """Return the job's model under other encodings, all built before any is scored. Raise `UserError`."""
    models = []
    for other in replacements:
        require_replaceable(job)
        encoding = other.encoding.build(job.model.n_layers, job.data.vocabulary)
        try:
            model = job.model.with_encoding(encoding)
        except UserError as error:
            raise UserError(f"{other.label} {error}") from error
        if isinstance(model, Decoder):
            dry_run_training(model, job.config, other.encoding)
        models.append(model.eval())
    return models


def require_replaceable(job: Job) -> None:
    """Raise `UserError` for a model whose encoding cannot be replaced."""
    why = job.model.why_encoding_stays
    require(not why, f"{job.config.model.name} {why}, so --with has nothing to replace: leave --with out")


# The weights that an encoding works on


def incompatibility(trained: EncodingSpec, encoding: EncodingSpec) -> str | None:
    """Return the reason why weights of one encoding may not be scored with the other; None if they may."""
    return next(_incompatibilities(trained, encoding), None)


def _incompatibilities(trained: EncodingSpec, encoding: EncodingSpec) -> Iterator[str]:
    """Yield the reasons why weights of one encoding may not be scored with the other."""
    base = trained.base.name
    kept = trained.modifiers
    pairs = [(base, trained.base, encoding.base)]
    new_parts: list[PartSpec] = []
    if _has_other_class(trained.base, encoding.base):
        new_parts.append(encoding.base)
    for name, part in encoding.modifiers.items():
        if name in kept:
            pairs.append((name, kept[name], part))
        else:
            new_parts.append(part)
    for name, before, part in pairs:
        if not _has_other_class(before, part):
            yield from _changed_options(name, before, part)
    for part in new_parts:
        compatible = part.encoding_class.compatible_with
        if base not in compatible:
            works_on = " or ".join(sorted(compatible)) or "no other encoding"
            yield f"{part.name} works on weights of {works_on}, and this run used {base}"
        for name, modifier in kept.items():
            if base not in modifier.encoding_class.compatible_with:
                yield f"this run was trained with {name}, whose weights work with {base} alone"


def _has_other_class(before: PartSpec, part: PartSpec) -> bool:
    return part.values["class"] != before.values["class"]


def _changed_options(name: str, before: PartSpec, part: PartSpec) -> Iterator[str]:
    """Yield a sentence for each option that differs and may not change after training."""
    for option, value in part.options.items():
        old = before.options.get(option)
        if value == old or option in part.encoding_class.changeable_after_training:
            continue
        if option in before.nested and option in part.nested:
            for reason in _incompatibilities(before.nested[option], part.nested[option]):
                yield f"{option}: {reason}"
        else:
            changeable = ", ".join(sorted(part.encoding_class.changeable_after_training)) or "none"
            trained = f"this run was trained with {name} {option}={shown(old)}"
            cannot = f"{option} cannot change to {shown(value)} after training (changeable: {changeable})"
            yield f"{trained}, and {cannot}"


def _checked_encoding(
    encoding: EncodingSpec, trained: EncodingSpec, n_layers: int, force: bool | None
) -> OtherEncoding:
    """Return the encoding as it is scored. Raises `UserError` for weights without meaning under it."""
    reason = incompatibility(trained, encoding)
    if reason is not None and not force:
        way_out = "" if force is None else " (--force scores it anyway and labels the rows)"
        raise UserError(f"{reason}{way_out}")
    label = _label_with_factor(encoding)
    message = f"its rows would be called {label} like the run's own: give it another name in its YAML file"
    require(label != trained.label, message)
    has_same_shapes = _shapes_of_tensors(encoding, n_layers) == _shapes_of_tensors(trained, n_layers)
    message = f"weights trained with {trained.label} do not fit {label}: train it, or go on with train.from"
    require(has_same_shapes, message)
    return OtherEncoding(label, encoding, forced=reason is not None)


def _shapes_of_tensors(encoding: EncodingSpec, n_layers: int) -> dict[str, list[int]]:
    """Return the shapes of an encoding's weights and buffers by their names."""
    with torch.random.fork_rng(devices=[]):
        weights = encoding.build(n_layers).state_dict()
    return {name: list(tensor.shape) for name, tensor in weights.items()}


def declared_option(part: PartSpec, attribute: str) -> str:
    """Return the option that the class attribute `attribute` names; empty if the part lacks the option."""
    option = getattr(part.encoding_class, attribute)
    return option if option in part.values else ""


def _label_with_factor(encoding: EncodingSpec) -> str:
    """Return the label of an encoding, with `factor=auto` if each window has its own factor."""
    label = label_with_short_lists(encoding)
    option = declared_option(encoding.base, "window_factor")
    if not option or encoding.values[option] is not None:
        return label
    name, _, options = label.partition(" ")
    return f"{name} {option}={AUTO} {options}".rstrip()


def label_with_short_lists(spec: EncodingSpec) -> str:
    """Return the label of an encoding, with a hash in place of a long list of searched numbers."""
    option = declared_option(spec.base, "searched")
    value = spec.base.options.get(option) or ()
    if len(value) <= MAX_LABEL_NUMBERS:
        return spec.label
    short = hashlib.sha256(str(value).encode()).hexdigest()[:4]
    return spec.label.replace(f"{option}={value}", f"{option}@{short}")


# An encoding composed with the trained encoding


def _compose_requested(requested: Requested, trained: Config, trained_with: EncodingSpec) -> EncodingSpec:
    """Return the requested encoding, with the trained values of options that it shares."""
    base = requested.base
    search = trained_with.search
    train = replace(trained.train, length=trained.trained_length)
    config = replace(trained, train=train, search=search)
    chosen = choose_encoding(base or "nope", requested.modifiers, search)
    if base:
        option = declared_option(PartSpec(chosen, search), "window_factor")
        values = full_options(requested, chosen)
    else:
        option = ""
        values = full_options(requested, {"modifiers": chosen.get("modifiers")})
    kind = values.get(f"encoding.{option}")
    given = dict(values)
    if kind in (AUTO, FIXED):
        given = {key: value for key, value in values.items() if value != kind}
    composed = EncodingSpec(resolve_encoding(chosen, given, config), search)
    keys = _given_keys(values)
    encoding = dict(trained.encoding)
    if base:
        encoding = with_shared_options(composed.base, trained_with.base, keys)
    kept = trained_with.modifiers
    modifiers = {name: part.values for name, part in kept.items()}
    for name, part in composed.modifiers.items():
        modifiers[name] = part.values
        if name in kept:
            modifiers[name] = with_shared_options(part, kept[name], keys)
        elif name not in names_in("modifier"):
            modifiers[name] = {**part.values, "derived": []}  # as for a base below
    encoding["modifiers"] = modifiers
    encoding = EncodingSpec(encoding, search).with_code_hashes().values
    if base not in (None, *names_in("encoding")):
        # A file of the user may change, so the label spells derived options too.
        encoding = {**encoding, "derived": []}
    if option:
        encoding = {option: encoding[option], **encoding}  # the first option in a label
        if encoding[option] is None and kind == FIXED:
            encoding[option] = fixed_factor(trained.eval, trained.trained_length)
    return EncodingSpec(encoding, search)


def fixed_factor(evaluation: EvalConfig, train_length: int) -> float:
    """Return the longest length to score over the training length."""
    lengths = evaluation.resolved_lengths(train_length)
    longest = max(evaluation.resolved_max_length(train_length), *lengths, train_length)
    return longest / train_length


def full_options(requested: Requested, chosen: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a request by full keys: `factor=4` as `{"encoding.factor": 4}`.

    An option that no part has gets a key too, for the error later. chosen: the values of the requested
    encoding without the request's options.
    """
    name = requested.base or next(iter(requested.modifiers), "")
    prefix = "encoding" if requested.base else f"encoding.modifiers.{name}"
    options = {}
    for key, value in requested.options.items():
        otherwise = key if key.startswith("encoding.") else f"{prefix}.{key}"
        options[full_key(name, chosen, key) or otherwise] = value
    return options


def _given_keys(values: Mapping[str, Any]) -> set[str]:
    """Return the keys of options, and the keys within a mapping: `encoding.global={name: yarn}` has two."""
    keys = set(values)
    for key, value in values.items():
        if isinstance(value, Mapping):
            keys |= {f"{key}.{inner}" for inner in value}
    return keys


def with_shared_options(part: PartSpec, trained: PartSpec, keys: set[str]) -> dict[str, Any]:
    """Return a part's values, with the trained value of each option that both parts have.

    keys: full keys of the options that were given; these keep their values.
    """
    before = {**trained.values, **trained.encoding_class.implied(trained.options)}
    shared = {}
    for name in part.values:
        is_given = f"{part.key}.{name}" in keys
        if name in before and not is_given and name not in NOT_OPTIONS:
            shared[name] = before[name]
    for option, spec in part.nested.items():
        if option not in shared and option in trained.nested:
            nested = trained.nested[option]
            shared[option] = with_shared_options(spec.base, nested.base, keys)
            modifiers = nested.modifiers | spec.modifiers
            if modifiers:
                shared[option]["modifiers"] = {name: each.values for name, each in modifiers.items()}
    values = {**part.values, **shared}
    was_derived = trained.values.get("derived") or []
    now_chosen = shared.keys() - set(was_derived)
    derived = part.values.get("derived") or []
    values["derived"] = [name for name in derived if name not in now_chosen]
    chosen = list(part.values.get("chosen") or [])
    chosen += [name for name in trained.values.get("chosen") or [] if name in shared]
    if chosen:
        values["chosen"] = chosen
    return values
