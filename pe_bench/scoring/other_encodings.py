"""Trained weights under another encoding: what `eval --with` names.

NAME.yaml is composed over the run's own model, training and data configuration. Every option that it shares
with the trained encoding takes the trained value unless it is given.

A modifier acts on top of the run's own encoding, any other name replaces its base, and the run's modifiers
stay. A scaling whose factor is not given makes two curves. With `factor=auto` it is that of each window:
another model at each length, as one who tunes it for that length would have. With `factor=fixed` it is one
number at every length, the training length included, as in a model that serves texts of all lengths: the
longest length over the training length. The longest is `eval.max_length`, or what is scored where that is
longer, for nobody sets a model up for shorter texts than it gets. The number is in the label, so that rows of
two factors are never taken for one curve.

An encoding works on weights of the encodings that its class names in `compatible_with`. Where the class stays
the same, only the options that it names in `changeable_after_training` may differ; of an option that holds
another encoding the same is true of that one. Modifiers that the run was trained with stay. If they are
compatible with the base themselves, the weights mean what they mean without them; any other modifier makes
them weights of another model, about which nothing is known.
"""

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
import yaml

from pe_bench.config.compose import compose
from pe_bench.config.groups import config_dir, find_name, names_in
from pe_bench.config.overrides import Override, in_full, parse_override, quote, values_of
from pe_bench.config.parse import to_plain
from pe_bench.config.schema import Config, EvalConfig
from pe_bench.encodings.load import find_class, is_built_in
from pe_bench.encodings.spec import NOT_OPTIONS, EncodingSpec, PartSpec, is_part
from pe_bench.errors import UserError, require
from pe_bench.system.terminal import say
from pe_bench.values import shown

# A list may hold spaces, and so may a mapping, with mappings in it.
MAPPING = r"\{(?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*\}"
AUTO, FIXED = "auto", "fixed"
# Each stage of training has its own.
OF_STAGE = ("length", "steps", "tokens", "batch_tokens", "warmup_steps", "from", "beside", "only")
MAX_NUMBERS = 8  # of an option, that a label spells
SECTIONS = ("model", "data", "tokenizer", "train")
PART = re.compile(rf"(?:\[[^\]]*\]|{MAPPING}|\S)+")


# An encoding as it was typed, its base, modifiers and options; without a base it is the run's own.
Requested = tuple[str, str | None, list[str], list[str]]


class OtherEncoding(NamedTuple):
    """An encoding under which trained weights are scored: its name in tables, and its configuration."""

    label: str
    encoding: EncodingSpec
    forced: bool  # although it is not compatible with what was trained


def read_with(
    texts: Sequence[str], search: Sequence[Path] = (), *, force: bool = False, has_code: bool = False
) -> list[Requested]:
    """Read `eval --with`: `yarn,rope_ntk`, `yarn factor=4`, `logn` or `yarn+logn`. Raises `UserError`.

    search: folders with the user's own YAML. force, has_code: the options `--force` and `--code` are given.
    """
    require(bool(texts) or not search, "--config-dir is for the encodings of --with: name one")
    is_of_use = bool(texts) or has_code
    require(is_of_use or not force, "--force is for the encodings of --with and for --code: name one")
    return [_read(name, options, search) for text in texts for name, options in _names_and_options(text)]


def _names_and_options(text: str) -> list[tuple[str, list[str]]]:
    parts = PART.findall(text)
    if not any("=" in part for part in parts):
        names = [name.strip() for name in text.split(",")]
        require(
            all(len(name.split()) == 1 for name in names),
            f"--with '{text}': name encodings with commas between, or one with its options, "
            "such as --with 'yarn factor=4'",
        )
        return [(name, []) for name in names]
    name, *options = parts
    require("=" not in name, f"--with '{text}': the name of an encoding comes first, and then {name}")
    require(
        "," not in name,
        f"--with '{text}': commas are for names without options; repeat --with for each encoding",
    )
    for part in options:
        require("=" in part, f"--with '{text}': '{part}' is no option; say KEY=VALUE, such as factor=4")
    return [(name, options)]


def _read(typed: str, options: list[str], search: Sequence[Path]) -> Requested:
    text, modifiers = " ".join([typed, *options]), names_in("modifier", search)
    try:
        names = [
            name if name in modifiers else find_name("encoding", name, search)
            for name in typed.removeprefix("+").split("+")
        ]
    except UserError as error:
        raise UserError(f"--with: {error}") from error
    base = names.pop(0) if names[0] not in modifiers and not typed.startswith("+") else None
    for name in names:
        require(
            name in modifiers,
            f"--with {text}: {name} is no modifier, and only one encoding can be the base: "
            f"{', '.join(modifiers)} go on top of another",
        )
    return text, base, names, options


def find_others(
    requested: Sequence[Requested],
    run: str,
    trained: Config,
    search: Sequence[Path] = (),
    *,
    force: bool = False,
) -> list[OtherEncoding]:
    """Return the requested encodings, each once and without the run's own.

    `trained` is the run's configuration with the lengths to score; its classes are trusted already. Raises
    `UserError` for what cannot be scored, and without `force` for what is not compatible.
    """
    encodings_by_label: dict[str, OtherEncoding] = {}
    trained_with = EncodingSpec(trained.encoding, tuple(search))
    for text, base, modifiers, options in requested:
        try:
            encodings = list(_encodings(base, modifiers, options, trained, trained_with))
            same = [encoding for encoding in encodings if encoding.identity() == trained_with.identity()]
            # A bare name stands for two curves; skip the second if the run already has this encoding.
            for encoding in same if same and not options else encodings:
                if encoding in same:
                    say(f"--with {text}: {run} was trained with it, so it is scored with it anyway")
                    continue
                other = _other(encoding, trained_with, trained.model.n_layers, force)
                encodings_by_label.setdefault(other.label, other)
        except UserError as error:
            raise UserError(f"--with {text}, {run}: {error}") from error
    return list(encodings_by_label.values())


def incompatibility(trained: EncodingSpec, encoding: EncodingSpec) -> str | None:
    """Return why weights trained with one encoding may not be scored with the other; None if they may."""
    return next(_incompatibilities(trained, encoding), None)


def _incompatibilities(trained: EncodingSpec, encoding: EncodingSpec) -> Iterator[str]:
    base, kept = trained.base.name, trained.modifiers
    added = [part for name, part in encoding.modifiers.items() if name not in kept]
    replaced = [encoding.base] if _has_other_class(trained.base, encoding.base) else []
    for name, before, part in [
        (base, trained.base, encoding.base),
        *(
            (name, modifier, encoding.modifiers[name])
            for name, modifier in kept.items()
            if name in encoding.modifiers
        ),
    ]:
        if not _has_other_class(before, part):
            yield from _changed_options(name, before, part)
    for name in kept.keys() - encoding.modifiers.keys():
        yield f"this run was trained with {name}, which stays"
    for part in replaced + added:
        compatible = part.encoding_class.compatible_with
        if base not in compatible:
            yield f"{_works_on(part.name, compatible)}; this run used {base} {_alternatives(base)}"
        for name, modifier in kept.items():
            if base not in modifier.encoding_class.compatible_with:
                yield (
                    f"this run was trained with {base} and {name}, and on such weights only {name}'s options "
                    f"may change {_changeable(modifier)}"
                )


def _has_other_class(before: PartSpec, part: PartSpec) -> bool:
    return part.values["class"] != before.values["class"]


def _changed_options(name: str, before: PartSpec, part: PartSpec) -> Iterator[str]:
    held, holds = before.nested, part.nested
    for option, value in part.options.items():
        old = before.options.get(option)
        if value == old or option in part.encoding_class.changeable_after_training:
            continue
        if option in held and option in holds:
            for reason in _incompatibilities(held[option], holds[option]):
                yield f"{option}: {reason}"
        else:
            yield (
                f"this run was trained with {name} {option}={shown(old)}, and {option} "
                f"cannot change to {shown(value)} after training {_changeable(part)}"
            )


def _changeable(part: PartSpec) -> str:
    names = sorted(part.encoding_class.changeable_after_training)
    return f"(changeable: {', '.join(names) or 'none'})"


def _works_on(name: str, compatible: frozenset[str]) -> str:
    if not compatible:
        return f"{name} works on no other encoding's weights"
    *names, last = sorted(compatible)
    return f"{name} works on weights trained with {', '.join(names)}{' or ' if names else ''}{last}"


def _alternatives(base: str) -> str:
    return f"(compatible: {', '.join(compatible_encodings(base)) or 'none'})"


@cache
def compatible_encodings(base: str) -> list[str]:
    """Return the names of pe-bench's own encodings and modifiers that work on weights of a base."""
    names = []
    for path in (
        path for group in ("encoding", "modifier") for path in (config_dir() / group).glob("*.yaml")
    ):
        specification = yaml.safe_load(path.read_text(encoding="utf-8")).get("class")
        if specification and base in find_class(specification).compatible_with:
            names.append(path.stem)
    return sorted(set(names))


def _other(encoding: EncodingSpec, trained: EncodingSpec, n_layers: int, force: bool) -> OtherEncoding:
    reason = incompatibility(trained, encoding)
    if reason is not None and not force:
        raise UserError(f"{reason} (--force scores it anyway and labels the rows)")
    label = _label(encoding)
    if label == trained.label:
        raise UserError(
            f"its rows would be called {label} like the run's own, but it is a different encoding: "
            "give it another name in its YAML file"
        )
    _require_fit(label, encoding, trained, n_layers)
    return OtherEncoding(label, encoding, forced=reason is not None)


def _label(encoding: EncodingSpec) -> str:
    """Return the label of a trained encoding, with `factor=auto` where the factor is that of each window."""
    option = encoding.base.encoding_class.window_factor
    name, _, options = _with_short_lists(encoding).partition(" ")
    is_auto = option is not None and encoding.values.get(option) is None
    return " ".join(part for part in (name, f"{option}={AUTO}" if is_auto else "", options) if part)


def _encodings(
    base: str | None,
    modifiers: Sequence[str],
    options: Sequence[str],
    trained: Config,
    trained_with: EncodingSpec,
) -> Iterator[EncodingSpec]:
    """Yield the encoding that is requested, or two where its factor is not given."""
    overrides = [f"encoding={base or 'nope'}", f"modifier=[{','.join(modifiers)}]", *_overrides_of(trained)]
    bare = compose(overrides, trained_with.search)["encoding"]
    if not base:
        bare = {"modifiers": bare["modifiers"]}
    option = PartSpec(bare, trained_with.search).encoding_class.window_factor if base else None
    values = dict(_full_option(base, modifiers, bare, text) for text in options)
    kind = values.get(f"encoding.{option}") if option else None
    chosen = [f"{key}={value}" for key, value in values.items() if kind not in (AUTO, FIXED) or value != kind]
    composed = EncodingSpec(
        compose([*overrides, *chosen], trained_with.search)["encoding"], trained_with.search
    )
    replaced = _replace_trained(composed, trained_with, _given_keys(values), has_base=base is not None)
    encoding = replaced.with_code_hashes().values
    if base not in (None, *names_in("encoding", [])):
        # A file of the user's may change: what it derives is spelt in the label, as what it says is.
        encoding = {**encoding, "derived": []}
    if option is None:
        yield EncodingSpec(encoding, trained_with.search)
        return
    encoding = {option: encoding[option], **encoding}  # the first that a label says
    if encoding[option] is not None or kind != FIXED:
        yield EncodingSpec(encoding, trained_with.search)
    if encoding[option] is None and kind in (None, FIXED):
        factor = fixed_factor(trained.eval, trained.train.length)
        yield EncodingSpec({**encoding, option: factor}, trained_with.search)


def fixed_factor(evaluation: EvalConfig, train_length: int) -> float:
    """Return how many times longer than in training the longest text to score is."""
    lengths = evaluation.resolved_lengths(train_length)
    return max(evaluation.resolved_max_length(train_length), *lengths, train_length) / train_length


def _full_option(
    base: str | None, modifiers: Sequence[str], bare: dict[str, Any], text: str
) -> tuple[str, str]:
    """`factor=4` as `encoding.factor` and 4; Hydra refuses an option that no part has."""
    name = base or modifiers[0]
    prefix = "encoding" if base else f"encoding.modifiers.{name}"
    option = parse_override(text)
    full = in_full(name, bare, option)
    key = option.key if option.section == "encoding" else f"{prefix}.{option.key}"
    return (full.key if full else key), option.value or ""


def _given_keys(values: Mapping[str, str]) -> set[str]:
    """Return the keys of options, and those within a mapping: `encoding.global={name: yarn}` has two."""
    keys = set(values)
    for key, text in values.items():
        for value in values_of(Override("", key, text)):
            keys |= {f"{key}.{inner}" for inner in value} if isinstance(value, Mapping) else set()
    return keys


def _overrides_of(trained: Config) -> list[str]:
    """The run's own configuration as overrides of Hydra's, but for its encoding."""
    values = to_plain(trained)
    return [
        f"++{section}.{key}={quote(value)}" for section in SECTIONS for key, value in values[section].items()
    ] + [f"seed={trained.seed}"]


def _replace_trained(
    composed: EncodingSpec, trained: EncodingSpec, keys: set[str], *, has_base: bool
) -> EncodingSpec:
    """Return the composed encoding; options that it shares with the trained one keep the trained values.

    keys: of the options that are given. has_base: it has a base of its own.
    """
    kept = trained.modifiers
    base = _with_shared_options(composed.base, trained.base, keys) if has_base else trained.values
    added = {
        name: _with_shared_options(part, kept[name], keys) if name in kept else part.values
        for name, part in composed.modifiers.items()
    }
    modifiers = {**{name: part.values for name, part in kept.items()}, **added}
    return EncodingSpec({**base, "modifiers": modifiers}, composed.search)


def _with_shared_options(part: PartSpec, trained: PartSpec, keys: set[str]) -> dict[str, Any]:
    """Return a part's values with the trained ones of options that both have and whose keys are not given."""
    before = {**trained.values, **trained.encoding_class.implied(trained.options)}
    shared = {
        name: before[name]
        for name in part.values
        if name in before and name not in NOT_OPTIONS and f"{part.key}.{name}" not in keys
    }
    for option, spec in part.nested.items():
        if option not in shared and option in trained.nested:
            shared[option] = _nested_with_shared_options(spec, trained.nested[option], keys)
    was_derived, derived = trained.values.get("derived") or [], part.values.get("derived") or []
    kept = [name for name in derived if name not in shared or name in was_derived]
    before_chosen = [name for name in trained.values.get("chosen") or [] if name in shared]
    chosen = [*(part.values.get("chosen") or []), *before_chosen]
    return {**part.values, **shared, "derived": kept, **({"chosen": chosen} if chosen else {})}


def _nested_with_shared_options(spec: EncodingSpec, trained: EncodingSpec, keys: set[str]) -> dict[str, Any]:
    kept = {name: part.values for name, part in (trained.modifiers | spec.modifiers).items()}
    return {
        **_with_shared_options(spec.base, trained.base, keys),
        **({"modifiers": kept} if kept else {}),
    }


def with_factor(requested: Requested, factor: float, trained: Config | None) -> str:
    """Return a requested encoding as it is typed, with a factor where it takes one and none is given."""
    text, base, _, options = requested
    search = trained.search if trained is not None else ()
    bare = compose([f"encoding={base}"], search)["encoding"] if base else {}
    option = PartSpec(bare, search).encoding_class.window_factor if base else None
    is_given = any(parse_override(each).key.rpartition(".")[2] == option for each in options)
    return text if option is None or is_given else f"{text} {option}={factor:g}"


def searched_option(requested: Requested, trained: Config) -> str:
    """Return the option that an encoding's method searches, and that is not given; empty for none."""
    _, base, _, options = requested
    if base is None:
        return ""
    bare = compose([f"encoding={base}"], trained.search)["encoding"]
    option = PartSpec(bare, trained.search).encoding_class.searched
    is_given = any(parse_override(each).key.rpartition(".")[2] == option for each in options)
    return "" if option is None or is_given else option


def stage_overrides(requested: Requested, trained: Config) -> list[str]:
    """Return the overrides of a run that goes on from a trained one with a requested encoding."""
    _, base, modifiers, options = requested
    name = base or trained.encoding["name"]
    parts: list[str] = [*(trained.encoding.get("modifiers") or {}), *modifiers]
    chosen = [f"encoding={name}", f"modifier=[{','.join(dict.fromkeys(parts))}]"]
    of_stage = tuple(f"++train.{key}=" for key in OF_STAGE)
    kept = [text for text in _overrides_of(trained) if not text.startswith((*of_stage, "seed="))]
    overrides = [*kept, *chosen]
    bare = compose(overrides, trained.search)["encoding"]
    typed = dict(_full_option(base, modifiers, bare, text) for text in options)
    return [*overrides, *(f"{key}={value}" for key, value in typed.items())]


def stage_spec(requested: Requested, trained: Config, length: int) -> EncodingSpec:
    """Return a requested encoding after training, with an example of what has to be searched."""
    composed = compose(stage_overrides(requested, trained), trained.search)["encoding"]
    return after_training(EncodingSpec(composed, trained.search).with_examples(), trained, length)


def own_overrides(trained: Config) -> list[str]:
    """Return the overrides of a run with the encoding of a trained one."""
    spec = EncodingSpec(trained.encoding, trained.search)
    options = [
        f"{part.key}.{name}={quote(value)}"
        for part in (spec.base, *spec.modifiers.values())
        for name, value in part.chosen_options().items()
    ]
    return [*stage_overrides(("", None, [], []), trained), *options]


def after_training(spec: EncodingSpec, trained: Config, length: int) -> EncodingSpec:
    """Return the encoding of a run that goes on from a trained one, at a length of its own.

    What does not differ from the defaults is as it was trained, the training length too: it is the one that
    the weights know. A factor that is not given is that of the new length. Of an encoding from outside
    nothing is taken: its run may be a stranger's, and to read its options would be to run its code.
    """
    before = EncodingSpec(trained.encoding)

    def continued(part: PartSpec, earlier: PartSpec | None) -> dict[str, Any]:
        values, chosen = dict(part.values), part.chosen_options()
        if "train_length" in values and "train_length" not in chosen:
            values["train_length"] = trained.train.length
        if earlier is None or not earlier.is_built_in:
            return values
        part = PartSpec(values, part.search, part.key)
        earlier = PartSpec({name: value for name, value in earlier.values.items() if not is_part(value)})
        return _with_shared_options(part, earlier, {f"{part.key}.{name}" for name in chosen})

    values = continued(spec.base, before.base)
    option = spec.base.encoding_class.window_factor
    if option is not None and values.get(option) is None:
        values[option] = max(1.0, length / values["train_length"])
    modifiers = {name: continued(part, before.modifiers.get(name)) for name, part in spec.modifiers.items()}
    return EncodingSpec({**values, "modifiers": modifiers}, spec.search)


def stage_label(spec: EncodingSpec, trained: Config | None) -> str:
    """Return the label of an encoding after another, without what they share: `yarn x4`."""
    if trained is not None and is_built_in(str(trained.encoding["class"])):
        shared = PartSpec(trained.encoding).options
        alike = [name for name, value in spec.base.options.items() if shared.get(name) == value]
        derived = [*(spec.values.get("derived") or []), *alike, "train_length"]
        spec = EncodingSpec({**spec.values, "derived": derived}, spec.search)
    option, label = spec.base.encoding_class.window_factor, _with_short_lists(spec)
    factor = spec.values.get(option) if option else None
    return label if factor is None else label.replace(f"{option}={factor}", f"x{factor:g}")


def _with_short_lists(spec: EncodingSpec) -> str:
    """Return the label with a hash in place of many numbers that were searched, which would fill it."""
    option = spec.base.encoding_class.searched
    value = spec.base.options.get(option) if option else None
    short = hashlib.sha256(str(value).encode()).hexdigest()[:4]
    return (
        spec.label
        if len(value or ()) <= MAX_NUMBERS
        else spec.label.replace(f"{option}={value}", f"{option}@{short}")
    )


def _require_fit(label: str, encoding: EncodingSpec, trained: EncodingSpec, n_layers: int) -> None:
    """Parameters of the same names and shapes. Raises `UserError` also where options make no encoding."""
    here, there = _shapes(encoding, n_layers), _shapes(trained, n_layers)
    for name in sorted(here.keys() | there.keys()):
        require(
            here.get(name) == there.get(name),
            f"weights trained with {trained.label} do not fit {label}: "
            f"{name} is {there.get(name, 'missing')} there and {here.get(name, 'missing')} here; "
            "train it, from these weights with train.from",
        )


def _shapes(encoding: EncodingSpec, n_layers: int) -> dict[str, list[int]]:
    with torch.random.fork_rng(devices=[]):
        built = encoding.build(n_layers)
    return {name: list(tensor.shape) for name, tensor in built.state_dict().items()}
