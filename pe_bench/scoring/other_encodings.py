"""Trained weights under another encoding: what `eval --with` names.

NAME.yaml is composed over the run's own model, training and data configuration. Every option that it shares
with the trained encoding takes the trained value unless it is given. The classes declare which
encodings are compatible (`compatible_with`, `changeable_after_training`).

A modifier acts on top of the run's own encoding, any other name replaces its base, and the run's modifiers
stay. A scaling whose factor is not given makes two curves. With `factor=auto` it is that of each window:
another model at each length, as one who tunes it for that length would have. With `factor=fixed` it is one
number at every length, the training length included, as in a model that serves texts of all lengths: the
longest length over the training length. The longest is `eval.max_length`, or what is scored where that is
longer, for nobody sets a model up for shorter texts than it gets. The number is in the label, so that rows of
two factors are never taken for one curve.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from pe_bench.config.compose import compose
from pe_bench.config.groups import names_in
from pe_bench.config.nested import values_of
from pe_bench.config.options import in_full
from pe_bench.config.override import Override, parse_override, quote
from pe_bench.config.parse import to_plain
from pe_bench.config.schema import Config, EvalConfig
from pe_bench.encodings.spec import NOT_OPTIONS, EncodingSpec, PartSpec
from pe_bench.errors import UserError, require
from pe_bench.scoring.compatibility import incompatibility
from pe_bench.scoring.with_option import RequestedEncoding, read_requested
from pe_bench.system.terminal import say

AUTO, FIXED = "auto", "fixed"
SECTIONS = ("model", "data", "tokenizer", "train")


@dataclass(frozen=True)
class WithOption:
    """The encodings requested by --with; `search` are folders with the user's own YAML."""

    encodings: tuple[RequestedEncoding, ...] = ()
    search: tuple[Path, ...] = ()
    force: bool = False  # score incompatible encodings as well


@dataclass(frozen=True)
class OtherEncoding:
    """An encoding under which trained weights are scored: its name in tables, and its configuration."""

    label: str
    encoding: EncodingSpec
    forced: bool  # although it is not compatible with what was trained


def read_with(
    texts: Sequence[str], search: Sequence[Path] = (), force: bool = False, *, has_code: bool = False
) -> WithOption:
    """Read `eval --with`, `--config-dir` and `--force`, which `--code` takes too. Raises `UserError`."""
    require(bool(texts) or not search, "--config-dir is for the encodings of --with: name one")
    is_of_use = bool(texts) or has_code
    require(is_of_use or not force, "--force is for the encodings of --with and for --code: name one")
    return WithOption(tuple(read_requested(texts, search)), tuple(search), force)


def find_others(request: WithOption, run: str, trained: Config) -> list[OtherEncoding]:
    """Return the requested encodings, each once and without the run's own.

    `trained` is the run's configuration with the lengths to score; its classes are trusted already. Raises
    `UserError` for what cannot be scored, and without `force` for what is not compatible.
    """
    found: dict[str, OtherEncoding] = {}
    own = EncodingSpec(trained.encoding, request.search)
    for requested in request.encodings:
        try:
            encodings = list(_encodings(requested, trained, own))
            same = [encoding for encoding in encodings if encoding.identity() == own.identity()]
            # A bare name stands for two curves; skip the second if the run already has this encoding.
            for encoding in same if same and not requested.options else encodings:
                if encoding in same:
                    say(f"--with {requested.text}: {run} was trained with it, so it is scored with it anyway")
                    continue
                other = _other(encoding, own, trained.model.n_layers, request.force)
                found.setdefault(other.label, other)
        except UserError as error:
            raise UserError(f"--with {requested.text}, {run}: {error}") from error
    return list(found.values())


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
    name, _, options = encoding.label.partition(" ")
    is_auto = option is not None and encoding.values.get(option) is None
    return " ".join(part for part in (name, f"{option}={AUTO}" if is_auto else "", options) if part)


def _encodings(requested: RequestedEncoding, trained: Config, own: EncodingSpec) -> Iterator[EncodingSpec]:
    """Yield the encoding that is requested, or two where its factor is not given."""
    overrides = [
        f"encoding={requested.base or 'nope'}",
        f"modifier=[{','.join(requested.modifiers)}]",
        *_overrides_of(trained),
    ]
    bare = compose(overrides, own.search)["encoding"]
    if not requested.base:
        bare = {"modifiers": bare["modifiers"]}
    option = PartSpec(bare, own.search).encoding_class.window_factor if requested.base else None
    given = dict(_full_option(requested, bare, override) for override in requested.options)
    kind = given.get(f"encoding.{option}") if option else None
    chosen = [f"{key}={value}" for key, value in given.items() if kind not in (AUTO, FIXED) or value != kind]
    composed = EncodingSpec(compose([*overrides, *chosen], own.search)["encoding"], own.search)
    encoding = _replace_trained(composed, own, requested, _given_keys(given)).with_code_hashes().values
    if requested.base not in (None, *names_in("encoding", [])):
        # A file of the user's may change: what it derives is spelt in the label, as what it says is.
        encoding = {**encoding, "derived": []}
    if option is None:
        yield EncodingSpec(encoding, own.search)
        return
    encoding = {option: encoding[option], **encoding}  # the first that a label says
    if encoding[option] is not None or kind != FIXED:
        yield EncodingSpec(encoding, own.search)
    if encoding[option] is None and kind in (None, FIXED):
        factor = fixed_factor(trained.eval, trained.train.length)
        yield EncodingSpec({**encoding, option: factor}, own.search)


def fixed_factor(evaluation: EvalConfig, train_length: int) -> float:
    """Return how many times longer than in training the longest text to score is."""
    lengths = evaluation.resolved_lengths(train_length)
    return max(evaluation.resolved_max_length(train_length), *lengths, train_length) / train_length


def _full_option(requested: RequestedEncoding, bare: dict[str, Any], text: str) -> tuple[str, str]:
    """`factor=4` as `encoding.factor` and 4; Hydra refuses an option that no part has."""
    name = requested.base or requested.modifiers[0]
    place = "encoding" if requested.base else f"encoding.modifiers.{name}"
    option = parse_override(text)
    full = in_full(name, bare, option)
    key = option.key if option.section == "encoding" else f"{place}.{option.key}"
    return (full.key if full else key), option.value or ""


def _given_keys(given: Mapping[str, str]) -> set[str]:
    """Return the keys of options, and those within a mapping: `encoding.global={name: yarn}` has two."""
    found = set(given)
    for key, text in given.items():
        for value in values_of(Override("", key, text)):
            found |= {f"{key}.{inner}" for inner in value} if isinstance(value, Mapping) else set()
    return found


def _overrides_of(trained: Config) -> list[str]:
    """The run's own configuration as overrides of Hydra's, but for its encoding."""
    values = to_plain(trained)
    return [
        f"++{section}.{key}={quote(value)}" for section in SECTIONS for key, value in values[section].items()
    ] + [f"seed={trained.seed}"]


def _replace_trained(
    composed: EncodingSpec, trained: EncodingSpec, requested: RequestedEncoding, given: set[str]
) -> EncodingSpec:
    """Return the composed encoding; options that it shares with the trained one keep the trained values."""
    kept = trained.modifiers
    base = _with_shared_options(composed.base, trained.base, given) if requested.base else trained.values
    added = {
        name: _with_shared_options(part, kept[name], given) if name in kept else part.values
        for name, part in composed.modifiers.items()
    }
    modifiers = {**{name: part.values for name, part in kept.items()}, **added}
    return EncodingSpec({**base, "modifiers": modifiers}, composed.search)


def _with_shared_options(part: PartSpec, trained: PartSpec, given: set[str]) -> dict[str, Any]:
    """Return a part's values with the trained ones of options that both have and that are not `given`."""
    before = {**trained.values, **trained.encoding_class.implied(trained.options)}
    shared = {
        name: before[name]
        for name in part.values
        if name in before and name not in NOT_OPTIONS and f"{part.key}.{name}" not in given
    }
    for option, spec in part.nested.items():
        if option not in shared and option in trained.nested:
            shared[option] = _nested_with_shared_options(spec, trained.nested[option], given)
    was_derived, derived = trained.values.get("derived") or [], part.values.get("derived") or []
    kept = [name for name in derived if name not in shared or name in was_derived]
    return {**part.values, **shared, "derived": kept}


def _nested_with_shared_options(spec: EncodingSpec, trained: EncodingSpec, given: set[str]) -> dict[str, Any]:
    kept = {name: part.values for name, part in (trained.modifiers | spec.modifiers).items()}
    return {
        **_with_shared_options(spec.base, trained.base, given),
        **({"modifiers": kept} if kept else {}),
    }


def _require_fit(label: str, encoding: EncodingSpec, trained: EncodingSpec, n_layers: int) -> None:
    """Parameters of the same names and shapes. Raises `UserError` also where options make no encoding."""
    wanted, saved = _shapes(encoding, n_layers), _shapes(trained, n_layers)
    for name in sorted(wanted.keys() | saved.keys()):
        if wanted.get(name) != saved.get(name):
            raise UserError(
                f"weights trained with {trained.label} do not fit {label}: "
                f"{name} is {saved.get(name, 'missing')} there and {wanted.get(name, 'missing')} here; "
                "train it, from these weights with train.from"
            )


def _shapes(encoding: EncodingSpec, n_layers: int) -> dict[str, list[int]]:
    with torch.random.fork_rng(devices=[]):
        built = encoding.build(n_layers)
    return {name: list(tensor.shape) for name, tensor in built.state_dict().items()}
