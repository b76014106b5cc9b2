"""The encodings that the arguments of `show` and `check` name, each with its resolved configuration."""

import ast
import inspect
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from difflib import get_close_matches
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pe_bench.config.compose import compose
from pe_bench.config.options import PREFIXES, in_full, in_section, key_of
from pe_bench.config.overrides import GROUPS, check_arguments
from pe_bench.config.parse import parse_config
from pe_bench.config.schema import Config
from pe_bench.errors import UserError, require
from pe_bench.values import unknown

if TYPE_CHECKING:
    from pe_bench.encodings.compose import Composition

LONGEST_LABEL = 40  # characters
SIZES = ("d_model", "n_heads", "d_head", "n_layers")


@dataclass(frozen=True)
class Subject:
    """An encoding in a model, under the name that was asked for."""

    name: str
    config: Config
    given: frozenset[str] = frozenset()  # keys among the command's arguments, such as encoding.base
    search: tuple[Path, ...] = ()

    @cached_property
    def encoding(self) -> "Composition":
        """With its initial values, those of a run of this seed, and the vocabulary of bytes."""
        import torch

        from pe_bench.data.tokenizer import ByteTokenizer
        from pe_bench.encodings.load import build_encoding
        from pe_bench.model.seeds import derive_seed
        from pe_bench.model.user_code import user_code_errors

        with torch.random.fork_rng(devices=[]), user_code_errors():
            torch.manual_seed(derive_seed(self.config.seed, "encoding"))
            vocabulary = ByteTokenizer().vocabulary
            return build_encoding(self.config.encoding, self.config.model.n_layers, self.search, vocabulary)

    @cached_property
    def label(self) -> str:
        """Its name and the options that were given, to tell it from the others."""
        from pe_bench.encodings.identity import encoding_label

        label = encoding_label(self.config.encoding, self.search)
        return label if len(label) <= LONGEST_LABEL else self.name


def parameter_count(encoding: "Composition") -> int:
    return sum(parameter.numel() for parameter in encoding.parameters())


def subjects(arguments: Sequence[str], directories: Sequence[str] = ()) -> list[Subject]:
    """An encoding for each name among `arguments`, with the Hydra arguments that are there.

    An option of an encoding goes to those that have it, and several values of it make several encodings.
    Raises `UserError` for what cannot be.
    """
    names, overrides = _sorted_arguments(arguments)
    require(bool(names), "name an encoding; `pe-bench list encodings` has them")
    for name in names:
        require("," not in name, f"'{name}' is several: name them with spaces between")
        if name.endswith(".py"):
            raise UserError(_without_class(name, directories))
    for argument in overrides:
        size = key_of(argument).removeprefix("encoding.")
        require(
            size not in SIZES,
            f"{argument}: the model decides it; say model.{size}=... where it can be chosen",
        )
    for folder in directories:
        require(Path(folder).is_dir(), f"--config-dir {folder} is not a folder")
    check_arguments(overrides)
    outside = [argument for argument in overrides if not _is_option(argument)]
    options = [argument for argument in overrides if _is_option(argument)]
    bare = {name: _composed(name, outside, directories) for name in names}
    known = {name: _with_own_options(name, bare[name]["encoding"]) for name in names}
    wanted = {
        name: {argument: in_full(name, known[name], argument) for argument in options} for name in names
    }
    for argument in options:
        if not any(found[argument] for found in wanted.values()):
            _check_key(
                argument, [key for name in names for key in _option_names(name, bare[name], directories)]
            )
            # Hydra says what is wrong with it.
            wanted[names[0]][argument] = (
                argument if "." in key_of(argument) else in_section("encoding", argument)
            )
    return [
        _subject(name, outside, each, directories, bare[name])
        for name in names
        for each in product(*(_each_value(argument) for argument in wanted[name].values() if argument))
    ]


def _check_key(argument: str, options: Sequence[str]) -> None:
    """Of an argument that no encoding has: a mistyped key of the run is told as such. Raises `UserError`."""
    key, others = key_of(argument), [*GROUPS, *(field.name for field in fields(Config))]
    closest = get_close_matches(key, [*options, *others], 1)
    if "." not in key and (not closest or closest[0] in others):
        raise UserError(unknown(key, "key", {*options, *others}))


def _option_names(name: str, values: dict[str, Any], directories: Sequence[str]) -> list[str]:
    """What a short argument can mean of an encoding and its modifiers."""
    if ":" in name:
        return [option for option, _ in _parameters(_class_of(name, directories))]
    parts = [values["encoding"], *values["encoding"].get("modifiers", {}).values()]
    told = {"name", "class", "derived", "modifiers", *SIZES}
    return [key for part in parts for key in part if key not in told]


def _each_value(argument: str) -> list[str]:
    """`encoding.base=500,10000` as two arguments, one for each encoding that is shown."""
    key, equals, value = argument.partition("=")
    return (
        [argument]
        if re.search(r"[][(){}'\"]", value)
        else [f"{key}{equals}{one}" for one in value.split(",")]
    )


def _sorted_arguments(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Names, each once, and Hydra's overrides."""
    names = [
        argument.removeprefix("encoding=")
        for argument in arguments
        if "=" not in argument or argument[:9] == "encoding="
    ]
    overrides = [argument for argument in arguments if "=" in argument and argument[:9] != "encoding="]
    return list(dict.fromkeys(names)), overrides


def _without_class(name: str, directories: Sequence[str]) -> str:
    """What to say instead of a file alone, which is read and not run."""
    from pe_bench.encodings.load import find_file

    source = find_file(name, [Path(directory) for directory in directories]).read_bytes()
    with suppress(SyntaxError, ValueError):  # with its class it is run, and says what is wrong
        classes = [one.name for one in ast.parse(source).body if isinstance(one, ast.ClassDef)]
        if len(classes) == 1:
            return f"'{name}' is a file: say {name}:{classes[0]}"
        if classes:
            return f"'{name}' is a file: say {name}:CLASS with one of {', '.join(classes)}"
    return f"'{name}' is a file: say {name}:CLASS"


def _is_option(argument: str) -> bool:
    """Of an encoding, such as `encoding.base=500` or for short `base=500`."""
    key = key_of(argument)
    outside = "." in key or key in GROUPS or key in {field.name for field in fields(Config)}
    return key.startswith("encoding.") or not outside


def _composed(name: str, arguments: Sequence[str], directories: Sequence[str]) -> dict[str, Any]:
    """The configuration with this encoding, and no option of its own."""
    if ":" not in name:
        return compose([f"encoding={name}", *arguments], directories)
    values = compose(["encoding=nope", *arguments], directories)
    modifiers = values["encoding"].get("modifiers", {})
    return values | {
        "encoding": _of_class(name, parse_config(values), directories) | {"modifiers": modifiers}
    }


def _with_own_options(name: str, encoding: dict[str, Any]) -> dict[str, Any]:
    """What arguments can change of it: beside a class in a file, nothing of its modifiers."""
    return encoding if ":" not in name else encoding | {"modifiers": {}}


def _subject(
    name: str,
    outside: Sequence[str],
    options: Sequence[str],
    directories: Sequence[str],
    bare: dict[str, Any],
) -> Subject:
    """bare: the configuration without the options."""
    if not options:
        values = bare
    elif ":" in name:
        values = bare | {"encoding": _with_options(bare["encoding"], options, directories)}
    else:
        values = compose([f"encoding={name}", *outside, *options], directories)
    given = frozenset(map(key_of, (*outside, *options)))
    return Subject(name, parse_config(values), given, tuple(map(Path, directories)))


def _of_class(name: str, config: Config, directories: Sequence[str]) -> dict[str, Any]:
    """Sizes for what a class asks for by the names that YAML files use; other options have their defaults."""
    length = config.train.length
    known = {**asdict(config.model), "train_length": length, "max_position": length, "window": length}
    options = {}
    for option, parameter in _parameters(_class_of(name, directories)):
        if parameter.default is not parameter.empty:
            options[option] = parameter.default
        elif option in known:
            options[option] = known[option]
    return {"name": name.rpartition(":")[2], "class": name, **options}


def _class_of(name: str, directories: Sequence[str]) -> type:
    from pe_bench.encodings.load import find_class

    return find_class(name, [Path(directory) for directory in directories])


def _parameters(encoding: type) -> Iterator[tuple[str, inspect.Parameter]]:
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    for name, parameter in inspect.signature(encoding).parameters.items():
        if parameter.kind in named:
            yield name, parameter


def _with_options(
    encoding: dict[str, Any], options: Sequence[str], directories: Sequence[str]
) -> dict[str, Any]:
    """Values of a class that has no YAML file, read as Hydra reads them."""
    known = [option for option, _ in _parameters(_class_of(encoding["class"], directories))]
    keys = [key_of(argument).removeprefix("encoding.") for argument in options]
    for key in keys:
        if key not in known:
            raise UserError(unknown(f"encoding.{key}", "option", [f"encoding.{name}" for name in known]))
    arguments = [f"+{argument.lstrip(PREFIXES)}" for argument in options]
    read = compose(["encoding=nope", *arguments], directories)["encoding"]  # has no options of its own
    return encoding | {key: read[key] for key in keys}
