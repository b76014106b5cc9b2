"""The encoding of a configuration: its label, its identity, its options and its construction."""

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, get_type_hints

from pe_bench.encodings.base import LayerEncoding, Layers, NestedEncoding, PositionalEncoding
from pe_bench.encodings.compose import Composition
from pe_bench.encodings.load import (
    BUILT_IN,
    Code,
    EncodingClass,
    check_declarations,
    check_listing_methods,
    find_code,
)
from pe_bench.encodings.signatures import (
    MISSING,
    NOT_OPTIONS,
    SIZES,
    argument_of,
    collected_name,
    options_of,
)
from pe_bench.encodings.source import digest, named_files
from pe_bench.errors import UserError, first_line, require
from pe_bench.values import check_type, shown, unknown

# Python's message for a call of a class that lacks arguments.
MISSING_ARGUMENT = re.compile(r"(?:\w+\.)*(\w+)\.__init__\(\) missing ")


@dataclass(frozen=True)
class PartSpec:
    """A part of an encoding in a configuration: one class with its options, of an encoding or a modifier."""

    values: Mapping[str, Any]  # the values of the configuration: options, and the keys of NOT_OPTIONS
    search: tuple[Path, ...] = ()  # folders that may contain the file of the class
    key: str = "encoding"  # the key of the configuration that holds the values

    @cached_property
    def code(self) -> Code:
        """Return the class and its source, loaded at the first use. Raises `UserError`."""
        return find_code(self.values["class"], self.search)

    @property
    def encoding_class(self) -> EncodingClass:
        return self.code.encoding_class

    @property
    def is_built_in(self) -> bool:
        return BUILT_IN.fullmatch(str(self.values["class"])) is not None

    @property
    def name(self) -> str:
        """Return the name that `compatible_with` uses: of the module, or of the YAML file of outside code."""
        specification = str(self.values["class"])
        if self.is_built_in:
            return specification.partition(":")[0].rpartition(".")[2]
        return str(self.values.get("name", specification))

    @cached_property
    def defaults(self) -> dict[str, Any]:
        """Return the constructor's default of each option, `MISSING` if it has none."""
        options = options_of(self.values["class"], self.search)
        return {option.name: option.default for option in options}

    @cached_property
    def options(self) -> dict[str, Any]:
        """Return the options in the types of the constructor: a base of 500000 becomes 500000.0.

        Raises `UserError` for an unknown, a missing or a wrong option.
        """
        options: dict[str, Any] = {}
        for name, value in self.values.items():
            if name not in NOT_OPTIONS and value != MISSING:
                options[name] = value
        for name in options.keys() - self.defaults.keys():
            keys = [f"{self.key}.{option}" for option in self.defaults]
            raise UserError(unknown(f"{self.key}.{name}", "option", keys))
        for name, default in self.defaults.items():
            is_given = name in options or default != MISSING
            way_out = f"give {self.key}.{name}=..."
            require(is_given, f"{self.key} needs a value for {name}: {way_out}")
        kinds = self._argument_types()
        for name, value in options.items():
            key = f"{self.key}.{name}"
            kind = kinds.get(argument_of(name), Any)
            if kind != NestedEncoding:
                options[name] = self._checked_option(value, kind, key)
            elif not is_part(value):
                raise UserError(f"{key} must be another encoding, such as {{name: nope}}, not {shown(value)}")
        return options

    def _argument_types(self) -> dict[str, Any]:
        """Return the types of the constructor's arguments. Raises `UserError` if one is no type."""
        try:
            return get_type_hints(self.encoding_class.__init__, include_extras=True)
        except (NameError, AttributeError, TypeError, SyntaxError) as error:
            name = f"{self.encoding_class.__name__}.__init__"
            reason = f"{type(error).__name__}: {first_line(error)}"
            message = f"{name} has an annotation that is no type: {reason}"
            raise UserError(f"{message}: import the type, or leave the annotation out") from error

    def _checked_option(self, value: Any, kind: Any, key: str) -> Any:
        """Return the value of an option, converted to its type `kind`.

        Raises `UserError`, also for a type that cannot be checked.
        """
        try:
            return check_type(value, kind, key)
        except TypeError as error:
            name = f"{self.encoding_class.__name__}.__init__"
            message = f"{name} annotates {key} with {shown(kind)}, which no value can be held against"
            raise UserError(f"{message}: say int, float, bool or str, or leave it out") from error

    @property
    def nested(self) -> "dict[str, EncodingSpec]":
        """Return the options whose values are encodings."""
        specs: dict[str, EncodingSpec] = {}
        for option, value in self.values.items():
            if is_part(value):
                specs[option] = EncodingSpec(dict(value), self.search, f"{self.key}.{option}")
        return specs

    def changed_options(self) -> dict[str, Any]:
        """Return the options that differ from the constructor's defaults, or have no default."""
        defaults = self.defaults
        return {name: value for name, value in self.options.items() if value != defaults[name]}

    def chosen_options(self) -> dict[str, Any]:
        """Return the options that a label names: chosen against a preset, or changed and not derived."""
        derived = self.values.get("derived") or []
        chosen = set(self.values.get("chosen") or [])
        chosen |= self.changed_options().keys() - set(derived)
        return {name: value for name, value in self.options.items() if name in chosen}

    def build(self, n_layers: int) -> PositionalEncoding:
        """Build the encoding of a model, without its modifiers. Raises `UserError`."""
        encoding = self.encoding_class
        builders = {option: spec.build for option, spec in self.nested.items()}
        values = self.options | builders
        if "n_layers" in (self.values.get("derived") or []):
            values["n_layers"] = n_layers  # a nested encoding has only some of the model's layers
        arguments = {argument_of(option): value for option, value in values.items()}
        is_layer_encoding = issubclass(encoding, LayerEncoding)
        count = n_layers if is_layer_encoding and encoding.per_layer else 1
        try:
            built_parts: Any = [encoding(**arguments) for _ in range(count)]
        except TypeError as error:
            unread = collected_name(encoding)
            found = MISSING_ARGUMENT.match(str(error))
            is_of_parent = found is not None and found[1] in {each.__name__ for each in encoding.__mro__}
            if not unread or not is_of_parent:
                raise
            message = f"{encoding.__name__}.__init__ takes **{unread}, whose names pe-bench cannot read"
            raise UserError(f"{message}: write out those of the parent class ({error})") from error
        for part in built_parts:
            name = encoding.__name__
            message = f"{name}(...) is a {type(part).__name__} and no {name}"
            require(isinstance(part, encoding), message)
            message = f"{name}.__init__ must call super().__init__() before all else"
            require("_modules" in vars(part), message)
            check_declarations(part)
            check_listing_methods(part)
        return Layers(built_parts) if is_layer_encoding else built_parts[0]

    def identity(self) -> dict[str, Any]:
        """Return the part's share of a run's identity: name, hash of outside code, options, learning rate.

        The place of a class is left out, so that files can move. Sizes of the model are left out too, because
        the model's own identity has them, and a class can begin to read one.
        """
        sizes = SIZES.keys() & set(self.values.get("derived") or [])
        options = {name: value for name, value in self.changed_options().items() if name not in sizes}
        for option, spec in self.nested.items():
            options[option] = spec.identity()
        class_name = self.values["class"].rpartition(":")[2]
        identity = {"name": self.name if self.is_built_in else class_name, "options": options}
        if self.values.get("code_sha256"):
            identity["code"] = self.values["code_sha256"]
        if self.encoding_class.lr_multiple != 1:
            identity["lr_multiple"] = self.encoding_class.lr_multiple
        return identity


@dataclass(frozen=True)
class EncodingSpec:
    """An encoding and its modifiers, as in a configuration."""

    values: dict[str, Any]  # the values of the configuration: the encoding's keys, its modifiers among them
    search: tuple[Path, ...] = ()  # folders that may contain the file of a class
    key: str = "encoding"  # the key of the configuration that holds the values

    @cached_property
    def base(self) -> PartSpec:
        return PartSpec(self.values, self.search, self.key)

    @cached_property
    def modifiers(self) -> dict[str, PartSpec]:
        specs: dict[str, PartSpec] = {}
        for name, values in (self.values.get("modifiers") or {}).items():
            specs[name] = PartSpec(values, self.search, f"{self.key}.modifiers.{name}")
        return specs

    @property
    def parts(self) -> list[PartSpec]:
        """Return the encoding, the encodings inside its options, and its modifiers, in this order."""
        nested = chain.from_iterable(spec.parts for spec in self.base.nested.values())
        return [self.base, *nested, *self.modifiers.values()]

    def build(self, n_layers: int, vocabulary: Sequence[str] = ()) -> Composition:
        """Build the encoding of a model; parameters draw from torch's global generator.

        vocabulary: the text of every token id. Raises `UserError`.
        """
        base = self.base.build(n_layers)
        modifiers: dict[str, PositionalEncoding] = {}
        for name, modifier in self.modifiers.items():
            modifiers[name] = modifier.build(n_layers)
        for part in (base, *modifiers.values()):
            part.read_vocabulary(vocabulary)
        return Composition(base, modifiers, n_layers)

    @property
    def label(self) -> str:
        """Return the name in tables: `rope`, `rope+logn`, or `rope base=500000.0` with a chosen option."""
        base_name = str(self.values["name"])
        names = []
        for name, part in [(base_name, self.base), *self.modifiers.items()]:
            # A version of outside code with another hash is another encoding.
            code = part.values.get("code_sha256")
            names.append(f"{name}@{code[:4]}" if code else name)
        derived = self.values.get("derived") or []
        chosen = self.base.chosen_options()
        for option, spec in self.base.nested.items():
            if option not in derived:
                chosen[option] = spec.short_label
        options = [f"{option}={value}" for option, value in chosen.items()]
        for name, modifier in self.modifiers.items():
            for option, value in modifier.chosen_options().items():
                options.append(f"{name}.{option}={value}")
        return " ".join(["+".join(names), *options])

    @property
    def short_label(self) -> str:
        """Return the label of an encoding inside an option, such as `p_rope(fraction=0.25)`."""
        name, _, options = self.label.partition(" ")
        return f"{name}({options})" if options else name

    @property
    def check_command(self) -> str:
        """Return the command that checks the encoding with its modifiers, without their options."""
        name = str(self.values["name"])
        files = [folder / "encoding" / f"{name}.yaml" for folder in self.search]
        has_file = self.base.is_built_in or any(map(Path.is_file, files))
        words = ["pe-bench", "check", name if has_file else str(self.values["class"])]
        if self.modifiers:
            words.append(f"modifier=[{','.join(self.modifiers)}]")
        for folder in self.search:
            words += ["--config-dir", str(folder)]
        return shlex.join(words)

    def misfits(self, sizes: Mapping[str, int]) -> list[str]:
        """Describe each size of the model in `sizes` that the encoding's options have another value for."""
        found = []
        for part in self.parts:
            for name in SIZES.keys() & part.options.keys():
                value = part.options[name]
                if value != sizes[name]:
                    found.append(f"{part.key}.{name}={value} for model.{name}={sizes[name]}")
        return sorted(found)

    def identity(self) -> list[dict[str, Any]]:
        """Return the identity of each part, for the hash in a run's name."""
        return [part.identity() for part in (self.base, *self.modifiers.values())]

    def with_examples(self) -> "EncodingSpec":
        """Return the encoding with its class's example values for options that are not given."""

        def examples_of_part(part: PartSpec) -> dict[str, Any]:
            values = part.encoding_class.example(part.values)
            message = f"{part.encoding_class.__name__}.example must return a dictionary, not {shown(values)}"
            require(isinstance(values, Mapping), message)
            return {name: value for name, value in values.items() if part.values.get(name) is None}

        return self.changed(examples_of_part)

    def with_code_hashes(self) -> "EncodingSpec":
        """Return the encoding with the hash of the source of every class outside pe-bench."""

        def hashes_of_part(part: PartSpec) -> dict[str, Any]:
            if part.is_built_in:
                return {}
            hash_values: dict[str, Any] = {"code_sha256": part.code.sha256}
            if part.code.opened or "code_files" in part.values:
                hash_values["code_files"] = [*part.code.opened]
            return hash_values

        return self.changed(hashes_of_part)

    def with_trusted_code(self, files: Sequence[Path], *, may_differ: bool = False) -> "EncodingSpec":
        """Return the encoding with its outside classes taken from `files`, which the user named.

        Raises `UserError` if no file has the hash of an outside class: no file that a run's directory names
        is ever imported. With `may_differ`, a file of the same name is enough.
        """

        def trusted_values(part: PartSpec) -> dict[str, Any]:
            if part.is_built_in:
                return {}
            opened = part.values.get("code_files")
            hashes = {digest(path, named_files(path, opened)): path for path in files}
            location, _, name = str(part.values["class"]).rpartition(":")
            code_hash = str(part.values.get("code_sha256"))
            file_name = Path(location).name
            same_name = [path for path in files if may_differ and path.name == file_name]
            matching = [hashes[code_hash]] if code_hash in hashes else same_name
            if not matching:
                way_out = "name its file with --code FILE.py"
                if files:
                    way_out = (
                        "give the file as it was when the run was trained, from the run's own code/ "
                        f"(--force scores the weights under a changed {file_name} and labels the rows)"
                    )
                given = "".join(f"; {path} has {value}" for value, path in hashes.items())
                raise UserError(
                    f"this run's encoding is code from outside pe-bench, {part.values['class']} with hash "
                    f"{code_hash}{given}: {way_out}, if you trust it"
                )
            return {"class": f"{matching[0]}:{name}"}

        return self.changed(trusted_values)

    def changed(self, changes: Callable[[PartSpec], dict[str, Any]]) -> "EncodingSpec":
        """Return the encoding with changed values; `changes` returns the new values of each part."""
        values = {**self.values, **changes(self.base)}
        for option, spec in self.base.nested.items():
            values[option] = spec.changed(changes).values
        modifiers: dict[str, Any] = {}
        for name, part in self.modifiers.items():
            modifiers[name] = {**part.values, **changes(part)}
        if modifiers or self.key == "encoding":
            values["modifiers"] = modifiers
        return EncodingSpec(values, self.search, self.key)


def is_part(value: Any) -> bool:
    """Return true if a value of the configuration is an encoding."""
    return isinstance(value, Mapping) and "class" in value
