"""The encoding that a configuration specifies: its label, its identity, its options, and how it is built."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, get_type_hints

from pe_bench.encodings.base import LayerEncoding, Layers, NestedEncoding, PositionalEncoding
from pe_bench.encodings.compose import Composition
from pe_bench.encodings.load import BUILT_IN, Code, EncodingClass, check_declared, check_walks, find_code
from pe_bench.encodings.signatures import MISSING, NOT_OPTIONS, SIZES, argument_of, options_of
from pe_bench.encodings.source import digest, named_files
from pe_bench.errors import UserError, first_line, require
from pe_bench.values import check_type, shown, unknown


@dataclass(frozen=True)
class PartSpec:
    """One class with its options: an encoding without its modifiers, or a modifier."""

    values: Mapping[str, Any]
    search: tuple[Path, ...] = ()
    key: str = "encoding"  # where the configuration has it

    @cached_property
    def code(self) -> Code:
        """Return the class and its source, which are read once. Raises `UserError`."""
        return find_code(self.values["class"], self.search)

    @property
    def encoding_class(self) -> EncodingClass:
        return self.code.encoding_class

    @property
    def is_built_in(self) -> bool:
        return BUILT_IN.fullmatch(str(self.values["class"])) is not None

    @property
    def name(self) -> str:
        """Return the name that `compatible_with` uses: the module's, or the one in outside code's YAML."""
        specification = str(self.values["class"])
        if self.is_built_in:
            return specification.partition(":")[0].rpartition(".")[2]
        return str(self.values.get("name", specification))

    @cached_property
    def defaults(self) -> dict[str, Any]:
        """Return the constructor's default of each option, `MISSING` if it has none."""
        return {option.name: option.default for option in options_of(self.values["class"], self.search)}

    @cached_property
    def options(self) -> dict[str, Any]:
        """Return the options as the constructor gets them, so that 500000 and 500000.0 are one base."""
        values = self.values.items()
        options = {name: value for name, value in values if name not in NOT_OPTIONS and value != MISSING}
        for name in options.keys() - self.defaults.keys():
            keys = [f"{self.key}.{option}" for option in self.defaults]
            raise UserError(unknown(f"{self.key}.{name}", "option", keys))
        for name, default in self.defaults.items():
            is_given = name in options or default != MISSING
            require(is_given, f"{self.key} needs a value for {name}: give {self.key}.{name}=...")
        kinds = self._kinds()
        for name, value in options.items():
            key = f"{self.key}.{name}"
            kind = kinds.get(argument_of(name), Any)
            if kind != NestedEncoding:
                options[name] = self._option(value, kind, key)
            elif not is_part(value):
                raise UserError(f"{key} must be another encoding, such as {{name: nope}}, not {shown(value)}")
        return options

    def _kinds(self) -> dict[str, Any]:
        """Return the types of the constructor's arguments. Raises `UserError` for what names no type."""
        try:
            return get_type_hints(self.encoding_class.__init__, include_extras=True)
        except (NameError, AttributeError, TypeError, SyntaxError) as error:
            name = f"{self.encoding_class.__name__}.__init__"
            message = f"{name} has an annotation that is no type: {type(error).__name__}: {first_line(error)}"
            raise UserError(f"{message}: import the type, or leave the annotation out") from error

    def _option(self, value: Any, kind: Any, key: str) -> Any:
        """Return an option as its type. Raises `UserError`, also for a type that has no values."""
        try:
            return check_type(value, kind, key)
        except TypeError as error:
            name = f"{self.encoding_class.__name__}.__init__"
            message = f"{name} annotates {key} with {shown(kind)}, which no value can be held against"
            raise UserError(f"{message}: say int, float, bool or str, or leave it out") from error

    @property
    def nested(self) -> "dict[str, EncodingSpec]":
        """Return the encodings that options hold."""
        return {
            option: EncodingSpec(dict(value), self.search, f"{self.key}.{option}")
            for option, value in self.values.items()
            if is_part(value)
        }

    def changed_options(self) -> dict[str, Any]:
        """Return the options that differ from the constructor's defaults, or have none."""
        return {name: value for name, value in self.options.items() if value != self.defaults[name]}

    def chosen_options(self) -> dict[str, Any]:
        """Return the changed options that do not follow from the rest of the configuration, or a preset."""
        derived, chosen = (self.values.get(key) or [] for key in ("derived", "chosen"))
        changed = self.changed_options().keys() - set(derived)
        return {name: value for name, value in self.options.items() if name in {*chosen, *changed}}

    def build(self, n_layers: int) -> PositionalEncoding:
        encoding = self.encoding_class
        values = self.options | {option: spec.build for option, spec in self.nested.items()}
        options = {argument_of(option): value for option, value in values.items()}
        is_of_layers = issubclass(encoding, LayerEncoding)
        count = n_layers if is_of_layers and encoding.per_layer else 1
        parts: Any = [encoding(**options) for _ in range(count)]
        for part in parts:
            message = f"{encoding.__name__}(...) is a {type(part).__name__} and no {encoding.__name__}"
            require(isinstance(part, encoding), message)
            message = f"{encoding.__name__}.__init__ must call super().__init__() before all else"
            require("_modules" in vars(part), message)
            check_declared(part)
            check_walks(part)
        return Layers(parts) if is_of_layers else parts[0]

    def identity(self) -> dict[str, Any]:
        """Return the name, the hash of outside code, options and rate: they identify a run.

        Where a class lies is no part of it, so that files can move, nor are the sizes of the model, which
        identify a run by themselves, so that a class can begin to read one.
        """
        derived = SIZES.keys() & set(self.values.get("derived") or [])
        options = {name: value for name, value in self.changed_options().items() if name not in derived}
        identity = {
            "name": self.name if self.is_built_in else self.values["class"].rpartition(":")[2],
            "options": options | {option: spec.identity() for option, spec in self.nested.items()},
        }
        if self.values.get("code_sha256"):
            identity["code"] = self.values["code_sha256"]
        if self.encoding_class.lr_multiple != 1:
            identity["lr_multiple"] = self.encoding_class.lr_multiple
        return identity


@dataclass(frozen=True)
class EncodingSpec:
    """An encoding and its modifiers, as a configuration has them.

    `search` are the folders in which the file of a class may lie.
    """

    values: dict[str, Any]
    search: tuple[Path, ...] = ()
    key: str = "encoding"  # where the configuration has it

    @cached_property
    def base(self) -> PartSpec:
        return PartSpec(self.values, self.search, self.key)

    @cached_property
    def modifiers(self) -> dict[str, PartSpec]:
        parts = self.values.get("modifiers") or {}
        return {
            name: PartSpec(part, self.search, f"{self.key}.modifiers.{name}") for name, part in parts.items()
        }

    @property
    def parts(self) -> list[PartSpec]:
        """Return the encoding, those that its options hold, and its modifiers, which come last."""
        nested = chain.from_iterable(spec.parts for spec in self.base.nested.values())
        return [self.base, *nested, *self.modifiers.values()]

    def build(self, n_layers: int, vocabulary: Sequence[str] = ()) -> Composition:
        """Build the encoding of a model; parameters draw from torch's global generator.

        `vocabulary` has the text of every token. Raises `UserError`.
        """
        base = self.base.build(n_layers)
        modifiers = {name: part.build(n_layers) for name, part in self.modifiers.items()}
        for part in (base, *modifiers.values()):
            part.read_vocabulary(vocabulary)
        return Composition(base, modifiers, n_layers)

    @property
    def label(self) -> str:
        """Return the name in tables: `rope`, `rope+logn`, `rope base=500000.0` where options differ."""
        names = []
        for name, part in [(str(self.values["name"]), self.base), *self.modifiers.items()]:
            # Another version of outside code, whose hash has other letters, is another encoding.
            code = part.values.get("code_sha256")
            names.append(f"{name}@{code[:4]}" if code else name)
        derived = self.values.get("derived") or []
        nested = {name: spec.short_label for name, spec in self.base.nested.items() if name not in derived}
        chosen = {**self.base.chosen_options(), **nested}
        options = [f"{option}={value}" for option, value in chosen.items()]
        for name, part in self.modifiers.items():
            options += [f"{name}.{option}={value}" for option, value in part.chosen_options().items()]
        return " ".join(["+".join(names), *options])

    @property
    def short_label(self) -> str:
        """Return the label as the value of an option: `p_rope(fraction=0.25)`."""
        name, _, options = self.label.partition(" ")
        return f"{name}({options})" if options else name

    def identity(self) -> list[dict[str, Any]]:
        """Return the identity of each part, for the hash in a run's name."""
        return [part.identity() for part in (self.base, *self.modifiers.values())]

    def with_examples(self) -> "EncodingSpec":
        """Return the same with a value for each option that its class refuses to do without."""

        def examples(part: PartSpec) -> dict[str, Any]:
            values = part.encoding_class.example(part.values)
            message = f"{part.encoding_class.__name__}.example must return a dictionary, not {shown(values)}"
            require(isinstance(values, Mapping), message)
            return {name: value for name, value in values.items() if part.values.get(name) is None}

        return self.changed(examples)

    def with_code_hashes(self) -> "EncodingSpec":
        """Return the same with the hash of every class's source that is not pe-bench's own."""

        def hashes(part: PartSpec) -> dict[str, Any]:
            if part.is_built_in:
                return {}
            opened = [*part.code.opened]
            has_files = opened or "code_files" in part.values
            return {"code_sha256": part.code.sha256, **({"code_files": opened} if has_files else {})}

        return self.changed(hashes)

    def with_trusted_code(self, files: Sequence[Path], *, may_differ: bool = False) -> "EncodingSpec":
        """Return the same with its outside classes taken from `files`, which the user named.

        Raises `UserError` where a class is not pe-bench's own and no file has its hash: nothing that a
        run directory names is ever imported. A file that `may_differ` only has the name of the class's.
        """

        def trusted(part: PartSpec) -> dict[str, Any]:
            if part.is_built_in:
                return {}
            opened = part.values.get("code_files")
            hashes = {digest(path, named_files(path, opened)): path for path in files}
            location, _, name = str(part.values["class"]).rpartition(":")
            code_hash = str(part.values.get("code_sha256"))
            file_name = Path(location).name
            same_name = [path for path in files if may_differ and path.name == file_name]
            if code_hash not in hashes and not same_name:
                way = (
                    "give the file as it was when the run was trained, from the run's own code/ "
                    f"(--force scores the weights under a changed {file_name} and labels the rows)"
                )
                hashes_of_files = "".join(f"; {path} has {value}" for value, path in hashes.items())
                raise UserError(
                    f"this run's encoding is code from outside pe-bench, {part.values['class']} with hash "
                    f"{code_hash}{hashes_of_files}: {way if files else 'name its file with --code FILE.py'}, "
                    "if you trust it"
                )
            return {"class": f"{hashes[code_hash] if code_hash in hashes else same_name[0]}:{name}"}

        return self.changed(trusted)

    def changed(self, changes: Callable[[PartSpec], dict[str, Any]]) -> "EncodingSpec":
        """Return the same with the changed values of each part."""
        values = {**self.values, **changes(self.base)}
        values |= {option: spec.changed(changes).values for option, spec in self.base.nested.items()}
        modifiers = {name: {**part.values, **changes(part)} for name, part in self.modifiers.items()}
        if modifiers or self.key == "encoding":
            values["modifiers"] = modifiers
        return EncodingSpec(values, self.search, self.key)


def is_part(value: Any) -> bool:
    """Return whether a value of the configuration is an encoding."""
    return isinstance(value, Mapping) and "class" in value
