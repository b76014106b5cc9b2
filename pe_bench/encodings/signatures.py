"""The options of an encoding's class, read from its source without running code or loading PyTorch.

Options that the source does not show (a computed default, `**options`) are taken from the class itself.
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
# Values, from other keys of the configuration, of parameters with these names and no default.
SIZE_NAMES = ("d_model", "n_layers", "n_heads", "n_kv_heads", "d_head", "d_ff")
SIZES = {name: f"${{model.{name}}}" for name in SIZE_NAMES}
USUAL_VALUES = SIZES | dict.fromkeys(("train_length", "max_position", "window"), "${train.length}")
# Keys of an encoding that are no options. `derived` names options that follow from the rest of the
# configuration or from a preset; `chosen` names options that differ from the preset. `code_files` are files
# of outside code that `code_sha256` covers and that no import statement names.
NOT_OPTIONS = ("name", "class", "code_sha256", "code_files", "defaults", "derived", "chosen", "modifiers")
# `option: what it means` in a class's docstring; further lines are indented.
OPTION_MEANING = re.compile(r"^(\w+): (.*(?:\n +.*)*)", re.MULTILINE)
PACKAGE_FOLDER = Path(__file__).parents[1]


class Option(NamedTuple):
    """A parameter of a class, under the name that configurations use."""

    name: str
    default: Any  # `MISSING` where it has none
    meaning: str = ""  # the meaning in the docstring of its class or of the parent class
    is_last: bool = False  # it comes after the options of subclasses


Parameter = tuple[str, ast.expr | None, bool]  # name, default, and `Option.is_last`


class UnreadableError(Exception):
    """The source of a class does not show its options."""


def missing_class_error(name: str, search: Sequence[Path] = ()) -> UserError:
    """Return the error for a file given without a class; it names the classes in the file's text."""
    text = find_file(name, search).read_text(encoding="utf-8", errors="replace")
    classes = re.findall(r"^class (\w+)(?=.*:)", text, re.MULTILINE)
    names = classes or ["CLASS"]
    ways = " or ".join(f"{name}:{each}" for each in names)
    return UserError(f"'{name}' is a file: say {ways}")


def options_of(specification: str, search: Sequence[Path] = (), *, may_run: bool = True) -> list[Option]:
    """Return the options of `file.py:Class`, or of pe-bench's `module:Class`.

    If the source does not show them, they are read from the loaded class, or are empty if no code may run.
    Raises `UserError`.
    """
    location, _, name = specification.rpartition(":")
    try:
        is_file = location.endswith(".py")
        file = find_file(location, search) if is_file else _module_file(location, Path())
        options = _options_in_source(file, name)
    except (UnreadableError, OSError, SyntaxError, ValueError):
        if not may_run:
            return []
        from pe_bench.encodings.load import find_code

        defaults = defaults_of(find_code(specification, search).encoding_class)
        options = [Option(*pair) for pair in defaults.items()]
    if may_run:  # shell completion, which may not run code, reports no errors
        for option in options:
            _check_option(option, specification)
    return options


def read_part(file: Path) -> dict[str, Any]:
    """Read a YAML file of an encoding or a modifier, and add all options of the class that it names."""
    import yaml  # which `--help` should not wait for

    part: dict[str, Any] = yaml.safe_load(file.read_text(encoding="utf-8")) or {}
    if "class" in part and file.parent.name == "encoding":
        part = {"name": file.stem, **part}
    return with_all_options(part, (file.parent.parent,))


def with_all_options(part: dict[str, Any], search: Sequence[Path] = ()) -> dict[str, Any]:
    """Return the values of an encoding, with defaults for the other options of its class, in their order.

    A part without a class is returned as it is: it builds on another file. Named encodings inside options are
    completed too, from the files in the first folder of `search`.
    """
    if "class" not in part:
        return part
    first = {key: part[key] for key in ("name", "class") if key in part}
    defaults = {option.name: option.default for option in options_of(part["class"], search)}
    for name, default in defaults.items():
        if default is MISSING:
            defaults[name] = USUAL_VALUES.get(name, MISSING)
    values = dict(part)
    for option, value in part.items():
        if isinstance(value, dict) and "name" in value:
            values[option] = _complete_nested(value, search[0])
    return {**first, **defaults, **values}


def _complete_nested(values: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return an encoding inside an option with all options of its YAML file, and its modifiers likewise."""
    file = folder / "encoding" / f"{values['name']}.yaml"
    part = read_part(file) if file.is_file() else {}
    if "class" not in part:
        return values
    completed = {**part, **values}
    complete_modifiers: dict[str, Any] = {}
    for name, options in values.get("modifiers", {}).items():
        defaults = read_part(folder / "modifier" / f"{name}.yaml")
        complete_modifiers[name] = {**defaults, **options}
    if complete_modifiers:
        completed["modifiers"] = complete_modifiers
    return completed


def _module_file(module: str, folder: Path) -> Path:
    """Return the file of a module of pe-bench, or of a module in `folder`. Raises `UnreadableError`."""
    first, *rest = module.split(".")
    package = PACKAGE_FOLDER if first == PACKAGE_FOLDER.name else folder / first
    stem = package.joinpath(*rest)
    for file in (stem.with_suffix(".py"), stem / "__init__.py"):
        if file.is_file():
            return file
    raise UnreadableError(module)


@lru_cache(maxsize=256)
def _parse_source(file: Path, changed: int) -> ast.Module:
    """Return the syntax tree of a file; `changed`, the time of its last change, is for the cache alone."""
    return ast.parse(file.read_text(encoding="utf-8"))


def _find_class(name: str, file: Path) -> tuple[ast.ClassDef, Path]:
    """Return the definition of a class and the file that has it: this file, or one that it imports from.

    Raises `UnreadableError` if no such file has the class.
    """
    for node in ast.walk(_parse_source(file, file.stat().st_mtime_ns)):  # outer definitions come first
        if isinstance(node, ast.ClassDef) and node.name == name:
            return node, file
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if name == (alias.asname or alias.name):
                    return _find_class(alias.name, _module_file(node.module or "", file.parent))
    raise UnreadableError(name)


def _options_in_source(file: Path, name: str) -> list[Option]:
    """Return the parameters of a class's constructor, or the fields of a data class, with their meanings."""
    node, file = _find_class(name, file)
    constructors = [each for each in node.body if getattr(each, "name", "") == "__init__"]
    constructor = constructors[0] if constructors else None
    base = node.bases[0] if node.bases else None  # other bases are mixins
    inherited_options: dict[str, Option] = {}
    try:
        if base is not None and ast.unparse(base) != "nn.Module":
            inherited_options = {
                option.name: option for option in _options_in_source(file, ast.unparse(base))
            }
    except UnreadableError:
        if constructor is None:
            raise
    if isinstance(constructor, ast.FunctionDef):
        options: dict[str, Option] = {}
        parameters = _parameters(constructor.args)
    else:
        options = dict(inherited_options)
        parameters = _fields(node)
    for argument, default, is_last in parameters:
        value = MISSING if default is None else ast.literal_eval(default)
        options[option_of(argument)] = Option(option_of(argument), value, is_last=is_last)
    meanings = {option.name: option.meaning for option in inherited_options.values()}
    docstring = ast.get_docstring(node) or ""
    meanings |= dict(OPTION_MEANING.findall(docstring))
    options_with_meanings: list[Option] = []
    for name, option in options.items():
        one_line = " ".join(meanings.get(name, "").split())
        options_with_meanings.append(option._replace(meaning=one_line))
    return sorted(options_with_meanings, key=lambda option: option.is_last)


def _parameters(arguments: ast.arguments) -> Iterator[Parameter]:
    """Yield each parameter of a constructor but `self`. Raises `UnreadableError`."""
    if arguments.vararg or arguments.kwarg or arguments.posonlyargs:
        raise UnreadableError
    named = [*arguments.args, *arguments.kwonlyargs][1:]
    without = len(arguments.args) - len(arguments.defaults) - 1
    defaults = [*[None] * without, *arguments.defaults, *arguments.kw_defaults]
    for argument, default in zip(named, defaults, strict=True):
        yield argument.arg, default, False


def _fields(node: ast.ClassDef) -> Iterator[Parameter]:
    """Yield each field of a data class that its constructor takes; those after `_: KW_ONLY` come last."""
    decorators = [ast.unparse(each) for each in node.decorator_list]
    is_dataclass = any("dataclass" in each for each in decorators)
    is_last = False
    for each in node.body if is_dataclass else ():
        if isinstance(each, ast.AnnAssign) and not isinstance(each.value, ast.Call):  # `field(init=False)`
            name = ast.unparse(each.target)
            is_last |= name == "_"
            if name != "_":
                yield name, each.value, is_last


def argument_of(option: str) -> str:
    """Return the constructor's name of an option: the option `global` has the argument `global_`."""
    return f"{option}_" if keyword.iskeyword(option) else option


def option_of(argument: str) -> str:
    """Return the option of a constructor's argument, the inverse of `argument_of`."""
    stem = argument.removesuffix("_")
    return stem if keyword.iskeyword(stem) else argument


def defaults_of(encoding_class: type) -> dict[str, Any]:
    """Return the default of each option of a loaded class, `MISSING` if it has none. Raises `UserError`."""
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


def collected_name(encoding_class: type) -> str:
    """Return the name of the parameter that collects further options, such as `options`; empty without it."""
    import inspect

    for name, parameter in inspect.signature(encoding_class).parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            return name
    return ""


def _check_option(option: Option, specification: str) -> None:
    """Raise `UserError` for an option with a reserved name, or with a default that YAML cannot store."""
    where = f"{specification.rpartition(':')[2]}.__init__"
    message = f"{where} has a parameter {option.name}, which every encoding has as a key: rename it"
    is_free = option.name == "name" or option.name not in NOT_OPTIONS
    require(is_free, message)
    default = shown(option.default)
    message = f"{where}: {option.name} has the default {default}, which YAML cannot store"
    require(_is_plain(option.default), f"{message}: use a number, a string, a list or None")


def _is_plain(value: Any) -> bool:
    """Return true if YAML can store a value: text, a number, None, or lists and mappings of these."""
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(map(_is_plain, (*value, *value.values())))
    return value is None or isinstance(value, (bool, int, float, str))
