"""The encodings that the arguments of `show`, `check` and `speed` name, each in a resolved configuration."""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pe_bench.config.compose import OVERRIDES_VARIABLE, compose
from pe_bench.config.groups import GROUPS, encoding_names, find_name, keys_in
from pe_bench.config.overrides import Override, in_full, parse_override, unknown_key
from pe_bench.config.parse import parse_config
from pe_bench.config.schema import KEYS, Config
from pe_bench.errors import require
from pe_bench.values import close_to

if TYPE_CHECKING:
    from pe_bench.encodings.compose import Composition
    from pe_bench.encodings.spec import EncodingSpec

MAX_LABEL = 40  # characters
REFERENCE = "nope"  # that `speed` compares with
# Sections and keys that say how a timed model is and what it runs on.
SHARED = ("model", "train", "eval", "seed", "precision", "threads", "device", "results_dir")


@dataclass(frozen=True)
class ResolvedEncoding:
    """An encoding in a model, by the name that it was asked for.

    typed: keys among the command's overrides, such as encoding.base. examples: values for options that its
    class requires and nobody gave.
    """

    name: str
    config: Config
    typed: frozenset[str] = frozenset()
    examples: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def spec(self) -> "EncodingSpec":
        from pe_bench.encodings.spec import EncodingSpec

        return EncodingSpec(self.config.encoding, self.config.search)

    @cached_property
    def encoding(self) -> "Composition":
        """The encoding with the initial values of a run with this seed, and the vocabulary of bytes."""
        import torch

        from pe_bench.data.tokenizer import ByteTokenizer
        from pe_bench.model.checks import user_code_errors
        from pe_bench.model.decoder import derive_seed

        with torch.random.fork_rng(devices=[]), user_code_errors():
            torch.manual_seed(derive_seed(self.config.seed, "encoding"))
            return self.spec.build(self.config.model.n_layers, ByteTokenizer().vocabulary)

    @cached_property
    def label(self) -> str:
        """The name and the options that were given, to tell it from the others."""
        label = self.spec.label
        return label if len(label) <= MAX_LABEL else self.name

    def with_examples(self) -> "ResolvedEncoding":
        values, typed = self.spec.with_examples().values, self.config.encoding
        examples = {option: value for option, value in values.items() if typed.get(option, {}) != value}
        return replace(self, config=replace(self.config, encoding=values), examples=examples)


def parameter_count(encoding: "Composition") -> int:
    return sum(parameter.numel() for parameter in encoding.parameters())


def split_arguments(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the names of encodings, also those in `encoding=NAME`, each once; and the overrides."""
    prefix = "encoding="
    names = [text.removeprefix(prefix) for text in arguments if "=" not in text or text.startswith(prefix)]
    overrides = [text for text in arguments if "=" in text and not text.startswith(prefix)]
    return list(dict.fromkeys(names)), overrides


def resolve(arguments: Sequence[str], search: Sequence[Path] = ()) -> list[ResolvedEncoding]:
    """Resolve each encoding that `arguments` name, with the overrides that are there.

    An option of an encoding goes to those that have it, and several values of it make several encodings.
    Raises `UserError` for what cannot be.
    """
    typed_names, texts = split_arguments(arguments)
    require(bool(typed_names), "name an encoding; `pe-bench list encodings` has them")
    names = dict.fromkeys(find_name("encoding", name, search) for name in typed_names)
    overrides = [parse_override(text) for text in texts]
    options = [override for override in overrides if _is_option(override)]
    shared = [str(override) for override in overrides if not _is_option(override)]
    composed = {name: compose([f"encoding={name}", *shared], search) for name in names}
    subjects, chosen = [], set()
    for name, values in composed.items():
        in_whole = {option: in_full(name, values["encoding"], option) for option in options}
        chosen_options = [option for option in in_whole.values() if option]
        chosen |= {option for option, key in in_whole.items() if key or option.prefix}
        keys = frozenset(parse_override(text).key for text in (*shared, *map(str, chosen_options)))
        for texts in product(*map(_each_value, chosen_options)):
            config = compose([f"encoding={name}", *shared, *texts], search) if texts else values
            subjects.append(ResolvedEncoding(name, parse_config(config, search), keys))
    for key in [option.key for option in options if option not in chosen]:
        keys = [each for values in composed.values() for each in keys_in(values)]
        raise unknown_key(key if "." in key or close_to(key, keys) else f"encoding.{key}", keys)
    return subjects


def _is_option(override: Override) -> bool:
    """Say whether it is an encoding's, such as `encoding.base=500` or for short `base=500`."""
    return override.section == "encoding" or (
        "." not in override.key and override.key not in (*GROUPS, *KEYS)
    )


def _each_value(option: Override) -> list[str]:
    """Split `encoding.base=500,10000` into two overrides, one for each encoding that is made."""
    value = option.value or ""
    values = [value] if re.search(r"[][(){}'\"]", value) else value.split(",")
    return [str(replace(option, value=each)) for each in values]


def resolve_timed(
    arguments: Sequence[str], search: Sequence[Path] = ()
) -> tuple[str, list[ResolvedEncoding]]:
    """Return the overrides that are no encoding's, and the reference with the encodings behind it.

    No name means all encodings. Raises `UserError`.
    """
    names, typed = split_arguments(arguments)
    overrides = [*os.environ.get(OVERRIDES_VARIABLE, "").split(), *typed]
    shared = [text for text in overrides if parse_override(text).section in SHARED]
    subjects = resolve([REFERENCE, *shared], search)
    subjects += resolve([*(names or encoding_names(search)), *overrides], search)
    return " ".join(shared), list({subject.label: subject.with_examples() for subject in subjects}.values())
