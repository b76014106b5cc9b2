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

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from pe_bench.config.compose import compose
from pe_bench.config.groups import names_in
from pe_bench.config.options import in_full
from pe_bench.config.override import parse_override, quote
from pe_bench.config.parse import to_plain
from pe_bench.config.schema import Config, EvalConfig
from pe_bench.encodings.identity import encoding_identity, encoding_label, with_code_hashes
from pe_bench.encodings.load import NOT_OPTIONS, build_encoding, find_class, options_of
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
    encoding: dict[str, Any]
    forced: bool  # although it is not compatible with what was trained


def read_with(texts: Sequence[str], folders: Sequence[Path] = (), force: bool = False) -> WithOption:
    """Read `eval --with`, `--config-dir` and `--force`. Raises `UserError`."""
    for folder in folders:
        require(folder.is_dir(), f"--config-dir {folder} is not a folder")
    require(bool(texts) or not folders, "--config-dir is for the encodings of --with: name one")
    require(bool(texts) or not force, "--force is for the encodings of --with: name one")
    return WithOption(tuple(read_requested(texts, list(map(str, folders)))), tuple(folders), force)


def find_others(request: WithOption, run: str, trained: Config) -> list[OtherEncoding]:
    """Return the requested encodings, each once and without the run's own.

    `trained` is the run's configuration with the lengths to score; its classes are trusted already. Raises
    `UserError` for what cannot be scored, and without `force` for what is not compatible.
    """
    found: dict[str, OtherEncoding] = {}
    for requested in request.encodings:
        try:
            encodings = list(_encodings(requested, trained, request.search))
            own = [encoding for encoding in encodings if _is_own(encoding, trained, request.search)]
            # A curve that only a bare name implies is not asked of a run that has the encoding already.
            for encoding in own if own and not requested.options else encodings:
                if encoding in own:
                    say(f"--with {requested.text}: {run} was trained with it and is scored with it anyway")
                    continue
                other = _other(encoding, trained, request.search, request.force)
                found.setdefault(other.label, other)
        except UserError as error:
            raise UserError(f"--with {requested.text}, {run}: {error}") from error
    return list(found.values())


def _other(encoding: dict[str, Any], trained: Config, search: Sequence[Path], force: bool) -> OtherEncoding:
    reason = incompatibility(trained.encoding, encoding, search)
    if reason is not None and not force:
        raise UserError(f"{reason} (--force scores it all the same, and labels the rows)")
    label = _label(encoding, search)
    if label == encoding_label(trained.encoding, search):
        raise UserError(
            f"its rows would be called {label}, as the run's own are, though it is another: give it another "
            "name in its YAML file"
        )
    _require_fit(label, encoding, trained, search)
    return OtherEncoding(label, encoding, forced=reason is not None)


def _is_own(encoding: dict[str, Any], trained: Config, search: Sequence[Path]) -> bool:
    return encoding_identity(encoding, search) == encoding_identity(trained.encoding, search)


def _label(encoding: dict[str, Any], search: Sequence[Path]) -> str:
    """As of a trained encoding, and `factor=auto` where the factor is that of each window."""
    option = find_class(encoding["class"], search).window_factor
    name, _, options = encoding_label(encoding, search).partition(" ")
    is_auto = option is not None and encoding.get(option) is None
    return " ".join(part for part in (name, f"{option}={AUTO}" if is_auto else "", options) if part)


def _encodings(
    requested: RequestedEncoding, trained: Config, search: Sequence[Path]
) -> Iterator[dict[str, Any]]:
    """Yield the configuration of a requested encoding, or two where its factor is not given."""
    directories = list(map(str, search))
    overrides = [
        f"encoding={requested.base or 'nope'}",
        f"modifier=[{','.join(requested.modifiers)}]",
        *_overrides_of(trained),
    ]
    bare = compose(overrides, directories)["encoding"]
    if not requested.base:
        bare = {"modifiers": bare["modifiers"]}
    option = find_class(bare["class"], search).window_factor if requested.base else None
    given = dict(_full_option(requested, bare, override) for override in requested.options)
    kind = given.get(f"encoding.{option}") if option else None
    chosen = [f"{key}={value}" for key, value in given.items() if kind not in (AUTO, FIXED) or value != kind]
    composed = compose([*overrides, *chosen], directories)["encoding"]
    encoding = with_code_hashes(_combine(trained.encoding, composed, requested, set(given), search), search)
    if requested.base not in (None, *names_in("encoding", [])):
        # A file of the user's may change: what it derives is spelt in the label, as what it says is.
        encoding = {**encoding, "derived": []}
    if option is None:
        yield encoding
        return
    encoding = {option: encoding[option], **encoding}  # the first that a label says
    if encoding[option] is not None or kind != FIXED:
        yield encoding
    if encoding[option] is None and kind in (None, FIXED):
        yield {**encoding, option: fixed_factor(trained.eval, trained.train.length)}


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


def _overrides_of(trained: Config) -> list[str]:
    """The run's own configuration as overrides of Hydra's, but for its encoding."""
    values = to_plain(trained)
    return [
        f"++{section}.{key}={quote(value)}" for section in SECTIONS for key, value in values[section].items()
    ] + [f"seed={trained.seed}"]


def _combine(
    trained: dict[str, Any],
    composed: dict[str, Any],
    requested: RequestedEncoding,
    given: set[str],
    search: Sequence[Path],
) -> dict[str, Any]:
    """Put what was composed in the place of what was trained, with the trained values of shared options."""
    kept = trained.get("modifiers") or {}
    base = _with_trained_values(composed, trained, "encoding", given, search) if requested.base else trained
    added = {
        name: _with_trained_values(part, kept[name], f"encoding.modifiers.{name}", given, search)
        if name in kept
        else part
        for name, part in (composed.get("modifiers") or {}).items()
    }
    return {**base, "modifiers": {**kept, **added}}


def _with_trained_values(
    part: dict[str, Any], trained: dict[str, Any], place: str, given: set[str], search: Sequence[Path]
) -> dict[str, Any]:
    before = {**trained, **find_class(trained["class"], search).implied(options_of(trained, search))}
    shared = {
        name: before[name]
        for name in part
        if name in before and name not in NOT_OPTIONS and f"{place}.{name}" not in given
    }
    was_derived = trained.get("derived") or []
    derived = [name for name in part.get("derived") or [] if name not in shared or name in was_derived]
    return {**part, **shared, "derived": derived}


def _require_fit(label: str, encoding: dict[str, Any], trained: Config, search: Sequence[Path]) -> None:
    """Parameters of the same names and shapes. Raises `UserError` also where options make no encoding."""
    wanted, saved = (_shapes(one, trained, search) for one in (encoding, trained.encoding))
    for name in sorted(wanted.keys() | saved.keys()):
        if wanted.get(name) != saved.get(name):
            raise UserError(
                f"weights trained with {encoding_label(trained.encoding, search)} do not fit {label}: "
                f"{name} is {saved.get(name, 'missing')} there and {wanted.get(name, 'missing')} here; "
                "train it, from these weights with train.from"
            )


def _shapes(encoding: dict[str, Any], trained: Config, search: Sequence[Path]) -> dict[str, list[int]]:
    with torch.random.fork_rng(devices=[]):
        built = build_encoding(encoding, trained.model.n_layers, search)
    return {name: list(tensor.shape) for name, tensor in built.state_dict().items()}
