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
from pe_bench.encodings.modules import Tree, public_text, tree_of
from pe_bench.encodings.source import covered_files, digest, find_file, sources
from pe_bench.errors import UserError, first_line, require
from pe_bench.system.signals import INTERRUPTIONS
from pe_bench.values import NotNegative, check_type, plain_value, shown, unknown

# Nothing else is imported because a run's directory names it: no path, no other package.
BUILT_IN = re.compile(r"pe_bench\.encodings(\.(?!py:)[a-z0-9_]+){1,2}:[A-Za-z_]\w*")
EncodingClass = type[LayerEncoding] | type[PositionalEncoding]
CLAIMS: tuple[str, ...] = get_args(Claim)
TEXTS_OR_NONE = ("paper", "window_factor", "searched")
# Methods by which PyTorch finds what is trained, moved and saved of a module.
WALKS = (
    *("parameters", "named_parameters", "buffers", "named_buffers", "modules", "named_modules"),
    *("children", "named_children"),
)
SETS_OF_NAMES = ("compatible_with", "changeable_after_training", "inert")
# The versions of each file that this process has run: a file runs once for each content.
_LOADED: dict[Path, list["Loaded"]] = {}


class Code(NamedTuple):
    """The class of an encoding, and the source that it was loaded from."""

    encoding_class: EncodingClass
    path: Path
    sha256: str | None = None  # 16 characters; none for pe-bench's own
    files: tuple[Path, ...] = ()  # those that the hash covers, `path` first; none for pe-bench's own
    opened: tuple[str, ...] = ()  # names in its folder of those that no import statement names


class Loaded(NamedTuple):
    """A file that this process has run, and the modules of its folder that it runs with."""

    module: ModuleType
    tree: Tree
    sha256: str


def find_code(specification: str, search: Sequence[Path] = ()) -> Code:
    """Load the class that `file.py:Class` refers to, or one of pe-bench's own by `module:Class`.

    `search` are folders to look for the file in. Raises `UserError`, also for a class that does nothing.
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
    check_declared(encoding_class)
    path = loaded.tree.path
    files = covered_files(path, loaded.tree.opened)
    opened = sorted(file.relative_to(path.parent).as_posix() for file in {*files} - {*sources(path)})
    return Code(encoding_class, path, loaded.sha256, tuple(files), tuple(opened))


def check_declared(encoding: EncodingClass | LayerEncoding | PositionalEncoding) -> None:
    """Raise `UserError` where an encoding, or its class, declares what no other code could read."""
    name = getattr(encoding, "__name__", type(encoding).__name__)
    claims, past = encoding.claims, encoding.past_training
    is_set = isinstance(claims, frozenset) and all(isinstance(claim, str) for claim in claims)
    message = f"{name}.claims must be a frozenset of names, such as frozenset({{'shift_invariant'}})"
    require(is_set, f"{message}, not {shown(claims)}")
    for claim in sorted(claims):
        require(claim in CLAIMS, unknown(claim, "claim", CLAIMS))
    message = f"{name}.past_training must be one of {', '.join(ADVERSE_FIRST)}, not {shown(past)}"
    require(isinstance(past, str) and past in ADVERSE_FIRST, message)
    check_type(plain_value(encoding.lr_multiple), NotNegative, f"{name}.lr_multiple")
    check_type(
        encoding.per_layer if isinstance(encoding, LayerEncoding) else False, bool, f"{name}.per_layer"
    )
    for attribute in ("family", *TEXTS_OR_NONE):
        value = getattr(encoding, attribute)
        is_right = isinstance(value, str) or (value is None and attribute in TEXTS_OR_NONE)
        require(is_right, f"{name}.{attribute} must be text, not {shown(value)}")
    for attribute in SETS_OF_NAMES:
        value = getattr(encoding, attribute)
        message = f"{name}.{attribute} must be a frozenset of names, not {shown(value)}"
        is_set = isinstance(value, Collection) and not isinstance(value, str)
        require(is_set and all(isinstance(each, str) for each in value), message)


def check_walks(encoding: nn.Module) -> None:
    """Raise `UserError` where a class changes what PyTorch finds in a module."""
    for name in WALKS:
        if getattr(type(encoding), name) is getattr(nn.Module, name):
            continue
        found = getattr(encoding, name)()
        usual = [*getattr(nn.Module, name)(encoding)]
        is_usual = isinstance(found, Iterable) and _places_of(found) == _places_of(usual)
        message = f"{type(encoding).__name__}.{name}() must return what torch.nn.Module.{name}() does"
        require(is_usual, f"{message}, by which a model is trained and saved: leave the method out")


def _places_of(found: Iterable[Any]) -> list[int]:
    """Return where parts of a module lie in memory, which may come with their names."""
    return [id(part[-1]) if isinstance(part, tuple) else id(part) for part in found]


def opened_later(encoding_class: type) -> list[Path]:
    """Return the files that an encoding opened after its import, as in a hook, and that no hash covers."""
    tree = tree_of(encoding_class)
    if tree is None:
        return []
    covered = covered_files(tree.path, tree.opened)
    late = [path for path, classes in tree.opened_later.items() if not classes or encoding_class in classes]
    return sorted(path for path in late if path not in covered and path.is_file())


def _load_file(path: Path) -> Loaded:
    """Run a file, unless this process has run it as it is now."""
    versions = _LOADED.setdefault(path, [])
    for version in versions:
        if digest(path, version.tree.opened) == version.sha256:
            return version
    tree = Tree(path)
    try:
        module = tree.load()
    except INTERRUPTIONS:
        raise
    except BaseException as error:
        message = f"{type(error).__name__}: {public_text(first_line(error))}"
        raise UserError(f"{_line_of(error, path)}: {message}") from error
    versions.append(Loaded(module, tree, digest(path, tree.opened)))
    return versions[-1]


def _line_of(error: BaseException, path: Path) -> str:
    """Return the line of a file at which loading it failed, as FILE:LINE; a `SyntaxError` says it itself."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == str(path)]
    return f"{path}:{lines[-1]}" if lines else str(path)


def _refuse_no_hook(encoding: EncodingClass) -> None:
    """Raise `UserError` where a misspelt hook would silently train a model without any encoding."""
    base = LayerEncoding if issubclass(encoding, LayerEncoding) else PositionalEncoding
    hooks = [name for name, value in vars(base).items() if inspect.isfunction(value) and name[0] != "_"]
    require(
        any(getattr(encoding, hook) is not getattr(base, hook) for hook in hooks),
        f"{encoding.__name__} overrides no hook, and would do nothing: define one of {', '.join(hooks)}",
    )
