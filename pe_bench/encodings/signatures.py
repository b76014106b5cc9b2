"""The options of an encoding's class, read from its source: nothing is run, and PyTorch is not loaded.

What cannot be read so (a default that is computed, `**options`) is taken from the class itself.
"""

import ast
import keyword
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from pe_bench.encodings.source import find_file, is_file
from pe_bench.errors import UserError

MISSING = "???"  # OmegaConf's sign of a value that has to be given
# Parameters of these names without a default get the value that the rest of the configuration has.
SIZES = {
    name: f"${{model.{name}}}" for name in ("d_model", "n_layers", "n_heads", "n_kv_heads", "d_head", "d_ff")
}
USUAL = SIZES | dict.fromkeys(("train_length", "max_position", "window"), "${train.length}")
# `option: what it means` in a class's docstring; further lines are indented.
MEANING = re.compile(r"^(\w+): (.*(?:\n +.*)*)", re.MULTILINE)
PACKAGE = Path(__file__).parents[1]


class Option(NamedTuple):
    """A parameter of a class, under the name that configurations use."""

    name: str
    default: Any  # `MISSING` where it has none
    meaning: str  # in the docstring of its class or of the one that it derives from, or above its type


class UnreadableError(Exception):
    """A class whose options its source does not show."""


def require_class(name: str, search: Sequence[Path] = ()) -> None:
    """Raise `UserError` for a file without a class, with the classes that it has: it is read and not run."""
    if not name.endswith(".py"):
        return
    text, classes = find_file(name, search).read_bytes(), []
    with suppress(SyntaxError, ValueError):  # with its class it is run, and says what is wrong
        tree = ast.parse(text)
        classes = [node.name for node in tree.body if isinstance(node, ast.ClassDef)]
    way = f"{name}:{classes[0] if len(classes) == 1 else 'CLASS'}"
    raise UserError(
        f"'{name}' is a file: say {way}" + (f" with one of {', '.join(classes)}" if classes[1:] else "")
    )


def options_of(specification: str, search: Sequence[Path] = ()) -> list[Option]:
    """Return the options of `module:Class`, `file.py:Class` or an entry point. Raises `UserError`."""
    location, _, name = specification.rpartition(":")
    try:
        return list(_options(_source(location, search), name))
    except (UnreadableError, OSError, SyntaxError, ValueError):
        return list(_inspected(specification, search))


def meanings(specification: str, search: Sequence[Path] = ()) -> dict[str, str]:
    """Return what each option of a class means, where that is said."""
    return {option.name: option.meaning for option in options_of(specification, search)}


def typed_options(specification: str) -> list[str]:
    """Return the options that a command may give, without those of the model; none where code would run."""
    location, _, name = specification.rpartition(":")
    with suppress(UnreadableError, OSError, SyntaxError, ValueError, UserError):
        return [option.name for option in _options(_source(location, ()), name) if not _is_size(option)]
    return []


def _is_size(option: Option) -> bool:
    return option.default is MISSING and option.name in SIZES


def read_part(file: Path) -> dict[str, Any]:
    """Return what a YAML file of an encoding or a modifier has, with all options of the class it names."""
    import yaml  # which `--help` should not wait for

    part: dict[str, Any] = yaml.safe_load(file.read_text(encoding="utf-8")) or {}
    if "class" in part and file.parent.name == "encoding":
        part = {"name": file.stem, **part}
    return complete(part, (file.parent.parent,))


def complete(part: dict[str, Any], search: Sequence[Path] = ()) -> dict[str, Any]:
    """Return an encoding's keys with all options of its class, in the order of its signature.

    What names no class builds on another file, which does. Encodings that options hold, with a name, are
    complete too: the first folder of `search` has their files.
    """
    if "class" not in part:
        return part
    part = {
        option: _complete_nested(value, search[0]) if isinstance(value, dict) and "name" in value else value
        for option, value in part.items()
    }
    defaults = {
        option.name: USUAL.get(option.name, MISSING) if option.default is MISSING else option.default
        for option in options_of(part["class"], search)
    }
    return {**{key: part[key] for key in ("name", "class") if key in part}, **defaults, **part}


def _complete_nested(values: dict[str, Any], folder: Path) -> dict[str, Any]:
    file = folder / "encoding" / f"{values['name']}.yaml"
    part = read_part(file) if file.is_file() else {}
    if "class" not in part:
        return values
    modifiers = {
        name: {**read_part(folder / "modifier" / f"{name}.yaml"), **options}
        for name, options in values.get("modifiers", {}).items()
    }
    return {**part, **values, **({"modifiers": modifiers} if modifiers else {})}


def _source(location: str, search: Sequence[Path]) -> Path:
    return find_file(location, search) if is_file(location) else _module_file(location, Path())


def _module_file(module: str, folder: Path) -> Path:
    """Return the file of a module of pe-bench, or of one that lies in `folder`."""
    first, *rest = module.split(".")
    stem = PACKAGE.joinpath(*rest) if first == PACKAGE.name else folder.joinpath(first, *rest)
    for file in (stem.with_suffix(".py"), stem / "__init__.py"):
        if file.is_file():
            return file
    raise UnreadableError(module)


@lru_cache(maxsize=256)
def _parse(file: Path, changed: int) -> tuple[ast.Module, list[str]]:
    text = file.read_text(encoding="utf-8")
    return ast.parse(text), text.splitlines()


def _find(name: str, file: Path) -> tuple[ast.stmt, Path]:
    """Return the statement that defines a name, also in a module that it is imported from."""
    tree, _ = _parse(file, file.stat().st_mtime_ns)
    for node in ast.walk(tree):  # what stands outermost comes first
        if isinstance(node, ast.ClassDef) and node.name == name:
            return node, file
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name:
            return node, file
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if name == (alias.asname or alias.name):
                    return _find(alias.name, _module_file(node.module or "", file.parent))
    raise UnreadableError(name)


def _options(file: Path, name: str) -> Iterator[Option]:
    node, file = _find(name, file)
    if not isinstance(node, ast.ClassDef):
        raise UnreadableError(name)
    constructor = next((each for each in node.body if getattr(each, "name", "") == "__init__"), None)
    meanings = dict(MEANING.findall(ast.get_docstring(node) or ""))
    first = node.bases[0] if node.bases else None  # those after it are mixins
    if isinstance(constructor, ast.FunctionDef):
        of_base = _meanings_of(first, file)
        for option, default, annotation in _parameters(constructor.args):
            meaning = meanings.get(option) or of_base.get(option) or _comment_above(annotation, file)
            yield Option(option, default, " ".join(meaning.split()))
    elif isinstance(first, ast.Name):
        for option in _options(file, first.id):
            yield option._replace(meaning=meanings.get(option.name) or option.meaning)
    elif first is None or ast.unparse(first) != "nn.Module":
        raise UnreadableError(name)


def _meanings_of(base: ast.expr | None, file: Path) -> dict[str, str]:
    if not isinstance(base, ast.Name):
        return {}
    with suppress(UnreadableError):
        return {option.name: option.meaning for option in _options(file, base.id)}
    return {}


def _parameters(arguments: ast.arguments) -> Iterator[tuple[str, Any, ast.expr | None]]:
    """Yield the name, the default and the type of each parameter but `self`."""
    if arguments.vararg or arguments.kwarg or arguments.posonlyargs:
        raise UnreadableError
    named = [*arguments.args, *arguments.kwonlyargs][1:]
    without = len(arguments.args) - len(arguments.defaults) - 1
    defaults = [*[None] * without, *arguments.defaults, *arguments.kw_defaults]
    for argument, default in zip(named, defaults, strict=True):
        value = MISSING if default is None else ast.literal_eval(default)
        yield _option_of(argument.arg), value, argument.annotation


def _comment_above(annotation: ast.expr | None, file: Path) -> str:
    """Return the comment above the definition of a type."""
    if not isinstance(annotation, ast.Name):
        return ""
    try:
        node, home = _find(annotation.id, file)
    except UnreadableError:
        return ""
    _, lines = _parse(home, home.stat().st_mtime_ns)
    above = lines[node.lineno - 2]
    return above.removeprefix("# ") if above.startswith("# ") else ""


def _option_of(argument: str) -> str:
    return argument[:-1] if keyword.iskeyword(argument.removesuffix("_")) else argument


def _inspected(specification: str, search: Sequence[Path]) -> Iterator[Option]:
    import inspect

    from pe_bench.encodings.load import find_class

    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    for name, parameter in inspect.signature(find_class(specification, search)).parameters.items():
        if parameter.kind in named:
            yield Option(
                _option_of(name), MISSING if parameter.default is parameter.empty else parameter.default, ""
            )
