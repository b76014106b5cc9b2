"""From a configuration's words to an encoding: `class: module:Class`, a file, or an entry point."""

import hashlib
import importlib
import inspect
import os
import re
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import SourceFileLoader
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, get_args, get_type_hints

from pe_bench.encodings.base import Claim, LayerEncoding, Layers, PositionalEncoding
from pe_bench.encodings.compose import Composition
from pe_bench.errors import UserError
from pe_bench.values import check_type, unknown

# Nothing else is imported because a run's directory names it: no path, no other package.
BUILT_IN = re.compile(r"pe_bench\.encodings\.[a-z0-9_]+:[A-Za-z_]\w*")
OUTSIDE_MODULE = "pe_bench_code_"
ENTRY_POINTS = "pe_bench.encodings"
# `derived` names the options that followed from the rest of the configuration.
NOT_OPTIONS = ("name", "class", "code_sha256", "derived", "modifiers")
# Attributes that encodings once had, and what they are called today.
RENAMED = {
    "may_follow": "compatible_with",
    "may_change": "changeable_after_training",
    "pieces": "terms",
}
EncodingClass = type[LayerEncoding] | type[PositionalEncoding]


def build_encoding(
    config: dict[str, Any], n_layers: int, search: Sequence[Path] = (), vocabulary: Sequence[str] = ()
) -> Composition:
    """The encoding of a model with its modifiers; parameters draw from torch's global generator.

    `search` are folders in which a class in a file may lie, `vocabulary` has the text of every token.
    Raises `UserError`.
    """
    base = _build_part(config, n_layers, search, "encoding")
    modifiers = {
        name: _build_part(part, n_layers, search, f"encoding.modifiers.{name}")
        for name, part in (config.get("modifiers") or {}).items()
    }
    for part in (base, *modifiers.values()):
        part.read_vocabulary(vocabulary)
    return Composition(base, modifiers, n_layers)


def with_examples(config: dict[str, Any], search: Sequence[Path] = ()) -> dict[str, Any]:
    """The configuration with a value for each option that its class refuses to do without."""

    def completed(part: dict[str, Any]) -> dict[str, Any]:
        example = find_class(part["class"], search).example(part)
        return part | {option: value for option, value in example.items() if part.get(option) is None}

    return map_parts(completed, config)


def changed_options(part: dict[str, Any], search: Sequence[Path] = ()) -> dict[str, Any]:
    """The options that differ from the constructor's defaults, or have none."""
    encoding = find_class(part["class"], search)
    parameters = _parameters(encoding)
    return {
        name: value for name, value in options_of(part, search).items() if value != parameters[name].default
    }


def options_of(part: dict[str, Any], search: Sequence[Path] = ()) -> dict[str, Any]:
    """The options as the constructor gets them, so that 500000 and 500000.0 are one base."""
    return _checked_options(find_class(part["class"], search), _options(part), "encoding")


def map_parts(change: Callable[[dict[str, Any]], dict[str, Any]], config: dict[str, Any]) -> dict[str, Any]:
    modifiers = {name: change(part) for name, part in (config.get("modifiers") or {}).items()}
    return {**change(config), "modifiers": modifiers}


def part_classes(config: dict[str, Any], search: Sequence[Path] = ()) -> list[EncodingClass]:
    parts = [config, *(config.get("modifiers") or {}).values()]
    return [find_class(part["class"], search) for part in parts]


def find_class(specification: str, search: Sequence[Path] = ()) -> EncodingClass:
    """The class that `module:Class`, `file.py:Class` or an entry point's name stands for."""
    location, _, name = specification.rpartition(":")
    if not location:
        found = _entry_point(specification)
    else:
        module = _load_file(find_file(location, search)) if is_file(location) else _load_module(location)
        found = getattr(module, name, None)
    if not (isinstance(found, type) and issubclass(found, (LayerEncoding, PositionalEncoding))):
        raise UserError(
            f"'{specification}' names no encoding: {name or specification} must be a class there "
            "that derives from LayerEncoding or PositionalEncoding"
        )
    _refuse_renamed(found)
    return found


def _refuse_renamed(encoding: EncodingClass) -> None:
    """Raise `UserError` for an attribute that would be ignored under its old name."""
    for old, new in RENAMED.items():
        if hasattr(encoding, old):
            raise UserError(f"{encoding.__name__}.{old} is called {new} today: rename it")


def is_built_in(specification: str) -> bool:
    return BUILT_IN.fullmatch(specification) is not None


def is_file(location: str) -> bool:
    return location.endswith(".py") or "/" in location or os.sep in location


def source_file(specification: str, search: Sequence[Path] = ()) -> Path:
    """Where the code of an encoding lies, for its hash."""
    location = specification.rpartition(":")[0]
    if is_file(location):
        return find_file(location, search)
    return Path(inspect.getfile(find_class(specification, search)))


def find_file(location: str, search: Sequence[Path]) -> Path:
    folders = [Path(), *(folder / inner for folder in search for inner in ("", "encoding"))]
    for folder in folders:
        if (folder / location).is_file():
            return (folder / location).resolve()
    looked = ", ".join(str(folder) for folder in folders)
    raise UserError(f"the encoding's file {location} was not found in: {looked}")


def _load_file(path: Path) -> ModuleType:
    # By content, so that a file runs once in a process, and what it defines is found by its name.
    name = f"{OUTSIDE_MODULE}{hashlib.sha256(path.read_bytes()).hexdigest()[:16]}"
    if name in sys.modules:
        return sys.modules[name]
    module = ModuleType(name)
    module.__file__ = str(path)
    sys.modules[name] = module
    try:
        SourceFileLoader(name, str(path)).exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise UserError(f"{path} could not be loaded: {type(error).__name__}: {error}") from error
    return module


def _load_module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UserError(f"the encoding's module {name} could not be imported: {error}") from error


def _entry_point(name: str) -> Any:
    found = entry_points(group=ENTRY_POINTS)
    if name not in found.names:
        raise UserError(
            f"class: {name} is no installed encoding; say module:Class, file.py:Class, or a name of: "
            f"{', '.join(sorted(found.names)) or '(none is installed)'}"
        )
    return found[name].load()


def _build_part(part: dict[str, Any], n_layers: int, search: Sequence[Path], key: str) -> PositionalEncoding:
    encoding = find_class(part["class"], search)
    if not is_built_in(part["class"]):
        _refuse_no_hook(encoding)
        _refuse_unknown_claims(encoding)
    options = _checked_options(encoding, _options(part), key)
    if issubclass(encoding, PositionalEncoding):
        return encoding(**options)
    count = n_layers if encoding.per_layer else 1
    return Layers([encoding(**options) for _ in range(count)])


def _refuse_no_hook(encoding: EncodingClass) -> None:
    """A misspelt hook would train a model without any encoding, and nothing would say so."""
    base = LayerEncoding if issubclass(encoding, LayerEncoding) else PositionalEncoding
    hooks = [name for name, value in vars(base).items() if inspect.isfunction(value) and name[0] != "_"]
    hooks.remove("overrides")
    if not any(getattr(encoding, hook) is not getattr(base, hook) for hook in hooks):
        raise UserError(
            f"{encoding.__name__} overrides no hook, and would do nothing: define one of {', '.join(hooks)}"
        )


def _refuse_unknown_claims(encoding: EncodingClass) -> None:
    for claim in sorted(encoding.claims - set(get_args(Claim))):
        raise UserError(f"{encoding.__name__}: {unknown(claim, 'claim', get_args(Claim))}")


def _options(part: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in part.items() if name not in NOT_OPTIONS}


def _parameters(encoding: EncodingClass) -> dict[str, inspect.Parameter]:
    if encoding.__init__ is LayerEncoding.__init__ or encoding.__init__ is PositionalEncoding.__init__:
        return {}
    parameters = dict(inspect.signature(encoding.__init__).parameters)
    return {name: parameter for name, parameter in parameters.items() if name != "self"}


def _checked_options(encoding: EncodingClass, options: dict[str, Any], key: str) -> dict[str, Any]:
    parameters = _parameters(encoding)
    hints = get_type_hints(encoding.__init__) if parameters else {}
    for name in options:
        if name not in parameters:
            raise UserError(unknown(f"{key}.{name}", "option", [f"{key}.{known}" for known in parameters]))
    missing = [name for name, p in parameters.items() if p.default is p.empty and name not in options]
    if missing:
        raise UserError(f"{key} needs a value for {', '.join(missing)}: give {key}.{missing[0]}=...")
    return {name: check_type(value, hints.get(name, Any), f"{key}.{name}") for name, value in options.items()}
