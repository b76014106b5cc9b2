"""The options of an encoding's class, read from its source: nothing is run, and PyTorch is not loaded.

What cannot be read so (a default that is computed, `**options`) is taken from the class itself.
"""

import ast
import keyword
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from pe_bench.encodings.source import find_file
from pe_bench.errors import UserError, require
from pe_bench.values import shown

MISSING = "???"  # OmegaConf's sign of a value that has to be given
# Parameters of these names without a default get the value that the rest of the configuration has.
SIZES = {
    name: f"${{model.{name}}}" for name in ("d_model", "n_layers", "n_heads", "n_kv_heads", "d_head", "d_ff")
}
USUAL = SIZES | dict.fromkeys(("train_length", "max_position", "window"), "${train.length}")
# Keys of an encoding beside its options. `derived` names the options that followed from the rest of the
# configuration or from a preset, `chosen` those that differ from the preset. `code_files` are files of
# outside code that `code_sha256` covers and that no import statement names.
NOT_OPTIONS = ("name", "class", "code_sha256", "code_files", "defaults", "derived", "chosen", "modifiers")
# `option: what it means` in a class's docstring; further lines are indented.
MEANING = re.compile(r"^(\w+): (.*(?:\n +.*)*)", re.MULTILINE)
PACKAGE = Path(__file__).parents[1]


class Option(NamedTuple):
    """A parameter of a class, under the name that configurations use."""

    name: str
    default: Any  # `MISSING` where it has none
    meaning: str = ""  # in the docstring of its class or of the one that it derives from
    is_last: bool = False  # it comes after those of classes that derive from its own


Parameter = tuple[str, ast.expr | None, bool]  # its name, its default, and whether it comes last


class UnreadableError(Exception):
    """A class whose options its source does not show."""


def without_class(name: str, search: Sequence[Path] = ()) -> UserError:
    """Return the error for a file whose class is not named, with its classes: it is read and not run."""
    text = find_file(name, search).read_text(encoding="utf-8", errors="replace")
    classes = re.findall(r"^class (\w+)(?=.*:)", text, re.MULTILINE)
    ways = " or ".join(f"{name}:{each}" for each in classes or ["CLASS"])
    return UserError(f"'{name}' is a file: say {ways}")


def options_of(specification: str, search: Sequence[Path] = (), *, may_run: bool = True) -> list[Option]:
    """Return the options of `file.py:Class`, or of one of pe-bench's own by `module:Class`.

    Where the source does not show them they are those of the class, or none where no code may run. Raises
    `UserError`.
    """
    location, _, name = specification.rpartition(":")
    try:
        file = find_file(location, search) if location.endswith(".py") else _module_file(location, Path())
        options = _options(file, name)
    except (UnreadableError, OSError, SyntaxError, ValueError):
        if not may_run:
            return []
        from pe_bench.encodings.load import find_code

        defaults = defaults_of(find_code(specification, search).encoding_class)
        options = [Option(*pair) for pair in defaults.items()]
    if may_run:  # else what somebody types is completed
        for option in options:
            _check_option(option, specification)
    return options


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
    first = {key: part[key] for key in ("name", "class") if key in part}
    defaults = {option.name: option.default for option in options_of(part["class"], search)}
    for name, default in defaults.items():
        if default is MISSING:
            defaults[name] = USUAL.get(name, MISSING)
    values = dict(part)
    for option, value in part.items():
        if isinstance(value, dict) and "name" in value:
            values[option] = _complete_nested(value, search[0])
    return {**first, **defaults, **values}


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


def _module_file(module: str, folder: Path) -> Path:
    """Return the file of a module of pe-bench, or of one that lies in `folder`."""
    first, *rest = module.split(".")
    stem = PACKAGE.joinpath(*rest) if first == PACKAGE.name else folder.joinpath(first, *rest)
    for file in (stem.with_suffix(".py"), stem / "__init__.py"):
        if file.is_file():
            return file
    raise UnreadableError(module)


@lru_cache(maxsize=256)
def _parse(file: Path, changed: int) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


def _find_class(name: str, file: Path) -> tuple[ast.ClassDef, Path]:
    """Return the definition of a class, also in a module that it is imported from."""
    for node in ast.walk(_parse(file, file.stat().st_mtime_ns)):  # what stands outermost comes first
        if isinstance(node, ast.ClassDef) and node.name == name:
            return node, file
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if name == (alias.asname or alias.name):
                    return _find_class(alias.name, _module_file(node.module or "", file.parent))
    raise UnreadableError(name)


def _options(file: Path, name: str) -> list[Option]:
    """Return the parameters of a class's constructor, or the fields of a data class, with their meanings."""
    node, file = _find_class(name, file)
    constructor = next((each for each in node.body if getattr(each, "name", "") == "__init__"), None)
    base = node.bases[0] if node.bases else None  # those after it are mixins
    inherited: dict[str, Option] = {}
    try:
        if base is not None and ast.unparse(base) != "nn.Module":
            inherited = {option.name: option for option in _options(file, ast.unparse(base))}
    except UnreadableError:
        if constructor is None:
            raise
    if isinstance(constructor, ast.FunctionDef):
        options: dict[str, Option] = {}
        parameters = _parameters(constructor.args)
    else:
        options = dict(inherited)
        parameters = _fields(node)
    for argument, default, is_last in parameters:
        value = MISSING if default is None else ast.literal_eval(default)
        options[option_of(argument)] = Option(option_of(argument), value, is_last=is_last)
    of_base = {option.name: option.meaning for option in inherited.values()}
    meanings = of_base | dict(MEANING.findall(ast.get_docstring(node) or ""))
    explained = (
        option._replace(meaning=" ".join(meanings.get(name, "").split())) for name, option in options.items()
    )
    return sorted(explained, key=lambda option: option.is_last)


def _parameters(arguments: ast.arguments) -> Iterator[Parameter]:
    """Yield each parameter of a constructor but `self`."""
    if arguments.vararg or arguments.kwarg or arguments.posonlyargs:
        raise UnreadableError
    named = [*arguments.args, *arguments.kwonlyargs][1:]
    without = len(arguments.args) - len(arguments.defaults) - 1
    defaults = [*[None] * without, *arguments.defaults, *arguments.kw_defaults]
    for argument, default in zip(named, defaults, strict=True):
        yield argument.arg, default, False


def _fields(node: ast.ClassDef) -> Iterator[Parameter]:
    """Yield each field of a data class that its constructor takes; those after `_: KW_ONLY` come last."""
    is_dataclass = any("dataclass" in ast.unparse(each) for each in node.decorator_list)
    is_last = False
    for each in node.body if is_dataclass else ():
        if isinstance(each, ast.AnnAssign) and not isinstance(each.value, ast.Call):  # `field(init=False)`
            name = ast.unparse(each.target)
            is_last |= name == "_"
            if name != "_":
                yield name, each.value, is_last


def argument_of(option: str) -> str:
    """Return the constructor's name of an option: one that is a word of Python's has an underscore."""
    return f"{option}_" if keyword.iskeyword(option) else option


def option_of(argument: str) -> str:
    return argument[:-1] if keyword.iskeyword(argument.removesuffix("_")) else argument


def defaults_of(encoding_class: type) -> dict[str, Any]:
    """Return the options of a class that is loaded, and their defaults."""
    import inspect

    defaults: dict[str, Any] = {}
    for name, parameter in inspect.signature(encoding_class).parameters.items():
        message = (
            f"{encoding_class.__name__}.__init__ takes {name} by its place alone, and options have names"
        )
        require(parameter.kind is not parameter.POSITIONAL_ONLY, f"{message}: leave out the / after it")
        if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            has_default = parameter.default is not parameter.empty
            defaults[option_of(name)] = parameter.default if has_default else MISSING
    return defaults


def _check_option(option: Option, specification: str) -> None:
    """Raise `UserError` for an option that no configuration could hold."""
    where = f"{specification.rpartition(':')[2]}.__init__"
    message = f"{where} has a parameter {option.name}, which every encoding has as a key: rename it"
    require(option.name == "name" or option.name not in NOT_OPTIONS, message)
    message = f"{where}: {option.name} is {shown(option.default)} by default, which no configuration can hold"
    require(_is_plain(option.default), f"{message}: say a number, a text, a list or None")


def _is_plain(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(map(_is_plain, (*value, *value.values())))
    return value is None or isinstance(value, (bool, int, float, str))
