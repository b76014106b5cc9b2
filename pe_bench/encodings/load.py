"""Find an encoding's class: one of pe-bench's own, or `file.py:Class`."""

import importlib
import inspect
import re
import traceback
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, get_args

from torch import nn

from pe_bench.encodings.base import ADVERSE_FIRST, Claim, LayerEncoding, PositionalEncoding
from pe_bench.encodings.modules import LoadedFolder, loaded_folder_of, public_text
from pe_bench.encodings.source import covered_files, digest, find_file, own_and_imported_files
from pe_bench.errors import UserError, first_line, require
from pe_bench.system.signals import INTERRUPTIONS
from pe_bench.values import NotNegative, check_type, plain_value, shown, unknown

# Of the classes that a run's directory names, only these are imported: no path, no other package.
BUILT_IN = re.compile(r"pe_bench\.encodings(\.(?!py:)[a-z0-9_]+){1,2}:[A-Za-z_]\w*")
EncodingClass = type[LayerEncoding] | type[PositionalEncoding]
CLAIMS: tuple[str, ...] = get_args(Claim)
TEXTS_OR_NONE = ("paper", "window_factor", "searched")
# Methods by which PyTorch finds the tensors of a module that it trains, moves and saves.
LISTING_METHODS = (
    *("parameters", "named_parameters", "buffers", "named_buffers", "modules", "named_modules"),
    *("children", "named_children"),
)
SETS_OF_NAMES = ("compatible_with", "changeable_after_training", "inert")
# The versions of each file that this process has run; each content runs once.
_LOADED: dict[Path, list["LoadedFile"]] = {}


class Code(NamedTuple):
    """The class of an encoding, and the source that it was loaded from."""

    encoding_class: EncodingClass
    path: Path
    sha256: str | None = None  # 16 characters; none for pe-bench's own
    files: tuple[Path, ...] = ()  # covered by the hash, `path` first; none for pe-bench's own
    opened: tuple[str, ...] = ()  # names in the folder of the `files` that no import statement names


class LoadedFile(NamedTuple):
    """The module of a file that this process has run, its folder, and the hash of the version that ran."""

    module: ModuleType
    loaded_folder: LoadedFolder
    sha256: str


def find_code(specification: str, search: Sequence[Path] = ()) -> Code:
    """Load the class that `file.py:Class` refers to, or one of pe-bench's own by `module:Class`.

    search: folders that may contain the file. Raises `UserError`, also for a class that overrides no hook.
    """
    location, _, name = specification.rpartition(":")
    loaded = None
    if BUILT_IN.fullmatch(specification):
        try:
            module = importlib.import_module(location)
        except ImportError as error:
            raise UserError(f"pe-bench has no encoding {specification}") from error
    else:
        require(location.endswith(".py"), f"name an encoding's class as file.py:Class, not {specification}")
        loaded = _load_file(find_file(location, search))
        module = loaded.module
    encoding_class = getattr(module, name, None)
    if not (
        isinstance(encoding_class, type) and issubclass(encoding_class, (LayerEncoding, PositionalEncoding))
    ):
        raise UserError(
            f"'{specification}' names no encoding: {name} must be a class there that derives from "
            "LayerEncoding or PositionalEncoding"
        )
    if loaded is None:
        return Code(encoding_class, Path(inspect.getfile(encoding_class)))
    _refuse_no_hook(encoding_class)
    check_declarations(encoding_class)
    path = loaded.loaded_folder.path
    files = covered_files(path, loaded.loaded_folder.opened)
    only_opened = {*files} - {*own_and_imported_files(path)}
    opened = sorted(file.relative_to(path.parent).as_posix() for file in only_opened)
    return Code(encoding_class, path, loaded.sha256, tuple(files), tuple(opened))


def check_declarations(encoding: EncodingClass | LayerEncoding | PositionalEncoding) -> None:
    """Raise `UserError` if a declaration of an encoding or its class has a wrong type or an unknown name."""
    name = getattr(encoding, "__name__", type(encoding).__name__)
    claims, past = encoding.claims, encoding.past_training
    is_set = isinstance(claims, frozenset) and _are_texts(claims)
    message = f"{name}.claims must be a frozenset of names, such as frozenset({{'shift_invariant'}})"
    require(is_set, f"{message}, not {shown(claims)}")
    for claim in sorted(claims):
        require(claim in CLAIMS, unknown(claim, "claim", CLAIMS))
    is_known = isinstance(past, str) and past in ADVERSE_FIRST
    choices = ", ".join(ADVERSE_FIRST)
    require(is_known, f"{name}.past_training must be one of {choices}, not {shown(past)}")
    check_type(plain_value(encoding.lr_multiple), NotNegative, f"{name}.lr_multiple")
    if isinstance(encoding, LayerEncoding):
        check_type(encoding.per_layer, bool, f"{name}.per_layer")
    for attribute in ("family", *TEXTS_OR_NONE):
        value = getattr(encoding, attribute)
        is_none_allowed = attribute in TEXTS_OR_NONE
        is_right = isinstance(value, str) or (value is None and is_none_allowed)
        require(is_right, f"{name}.{attribute} must be text, not {shown(value)}")
    for attribute in SETS_OF_NAMES:
        value = getattr(encoding, attribute)
        message = f"{name}.{attribute} must be a frozenset of names, not {shown(value)}"
        is_set = isinstance(value, Collection) and not isinstance(value, str)
        require(is_set and _are_texts(value), message)


def _are_texts(values: Iterable[Any]) -> bool:
    return all(isinstance(value, str) for value in values)


def check_listing_methods(encoding: nn.Module) -> None:
    """Raise `UserError` if a method such as `parameters` lists other objects than PyTorch's method."""
    for name in LISTING_METHODS:
        if getattr(type(encoding), name) is getattr(nn.Module, name):
            continue
        found = getattr(encoding, name)()
        usual = [*getattr(nn.Module, name)(encoding)]
        is_usual = isinstance(found, Iterable) and _ids_of_parts(found) == _ids_of_parts(usual)
        message = f"{type(encoding).__name__}.{name}() must return what torch.nn.Module.{name}() does"
        require(is_usual, f"{message}, by which a model is trained and saved: leave the method out")


def _ids_of_parts(parts: Iterable[Any]) -> list[int]:
    """Return the `id` of each part of a module; parts are objects, or pairs of a name and an object."""
    unnamed = [part[-1] if isinstance(part, tuple) else part for part in parts]
    return [id(part) for part in unnamed]


def opened_later(encoding_class: type) -> list[Path]:
    """Return files that an encoding opened after its import, as in a hook, and that no hash covers."""
    loaded_folder = loaded_folder_of(encoding_class)
    if loaded_folder is None:
        return []
    covered = covered_files(loaded_folder.path, loaded_folder.opened)
    opened_late: list[Path] = []
    for path, classes in loaded_folder.opened_later.items():
        is_opened_by_class = not classes or encoding_class in classes
        if is_opened_by_class and path not in covered and path.is_file():
            opened_late.append(path)
    return sorted(opened_late)


def _load_file(path: Path) -> LoadedFile:
    """Return the module of a file; a process runs the file once for each version of its content.

    Raises `UserError` for code that raises an error.
    """
    versions = _LOADED.setdefault(path, [])
    for version in versions:
        if digest(path, version.loaded_folder.opened) == version.sha256:
            return version
    loaded_folder = LoadedFolder(path)
    try:
        module = loaded_folder.load()
    except INTERRUPTIONS:
        raise
    except BaseException as error:
        message = f"{type(error).__name__}: {public_text(first_line(error))}"
        raise UserError(f"{_line_of(error, path)}: {message}") from error
    versions.append(LoadedFile(module, loaded_folder, digest(path, loaded_folder.opened)))
    return versions[-1]


def _line_of(error: BaseException, path: Path) -> str:
    """Return FILE:LINE of the line that raised; only the file for a `SyntaxError`, which names its line."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == str(path)]
    return f"{path}:{lines[-1]}" if lines else str(path)


def _refuse_no_hook(encoding: EncodingClass) -> None:
    """Raise `UserError` for a class without hooks: a misspelt hook would train a model without encoding."""
    base = LayerEncoding if issubclass(encoding, LayerEncoding) else PositionalEncoding
    functions = [name for name, value in vars(base).items() if inspect.isfunction(value)]
    hooks = [name for name in functions if not name.startswith("_")]
    changed = [hook for hook in hooks if getattr(encoding, hook) is not getattr(base, hook)]
    message = f"{encoding.__name__} overrides no hook, and would do nothing"
    require(len(changed) > 0, f"{message}: define one of {', '.join(hooks)}")
