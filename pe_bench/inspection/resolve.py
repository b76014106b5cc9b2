"""The encodings that the arguments of `show`, `check` and `speed` name, each in a resolved configuration."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pe_bench.config.compose import OVERRIDES_VARIABLE, compose
from pe_bench.config.groups import GROUPS, find_name, keys_in, names_in
from pe_bench.config.overrides import Override, in_full, parse_override, unknown_key
from pe_bench.config.parse import parse_config
from pe_bench.config.schema import KEYS, MACHINE_KEYS, Config
from pe_bench.errors import require
from pe_bench.system.terminal import say
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

    examples: values for options that its class requires and nobody gave.
    """

    name: str
    config: Config
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

    An option of an encoding goes to those that have it; one that has no default gets an example. Raises
    `UserError` for what cannot be, such as an encoding that cannot be built.
    """
    typed_names, texts = split_arguments(arguments)
    require(bool(typed_names), "name an encoding; `pe-bench list encodings` has them")
    names = dict.fromkeys(find_name("encoding", name, search) for name in typed_names)
    overrides = [parse_override(text) for text in texts]
    options = [override for override in overrides if _is_option(override)]
    shared = [str(override) for override in overrides if not _is_option(override)]
    composed, used = {}, set()
    for name in names:
        values = compose([f"encoding={name}", *shared], search)
        in_whole = {option: in_full(name, values["encoding"], option) for option in options}
        used |= {option for option, key in in_whole.items() if key or option.prefix}
        chosen = [str(option) for option in in_whole.values() if option]
        composed[name] = compose([f"encoding={name}", *shared, *chosen], search) if chosen else values
    for key in [option.key for option in options if option not in used]:
        keys = [each for values in composed.values() for each in keys_in(values)]
        raise unknown_key(key if "." in key or close_to(key, keys) else f"encoding.{key}", keys)
    configs = {name: parse_config(values, search) for name, values in composed.items()}
    subjects = [ResolvedEncoding(name, config).with_examples() for name, config in configs.items()]
    for subject in subjects:
        for option, value in subject.examples.items():
            say(f"{subject.name} has no default for {option}: {option}={value} is taken, an example")
        _ = subject.encoding  # is built, and kept
    return subjects


def _is_option(override: Override) -> bool:
    """Say whether it is an encoding's, such as `encoding.base=500` or for short `base=500`."""
    return override.section == "encoding" or (
        "." not in override.key and override.key not in (*GROUPS, *KEYS)
    )


def resolve_timed(
    arguments: Sequence[str], search: Sequence[Path] = ()
) -> tuple[str, list[ResolvedEncoding]]:
    """Return the overrides that a table names, and the reference followed by the encodings to time.

    No name means all encodings. Raises `UserError`.
    """
    names, typed = split_arguments(arguments)
    overrides = [*os.environ.get(OVERRIDES_VARIABLE, "").split(), *typed]
    shared = [text for text in overrides if parse_override(text).section in SHARED]
    subjects = resolve([REFERENCE, *shared], search)
    subjects += resolve([*(names or names_in("encoding", search)), *overrides], search)
    setting = [text for text in shared if parse_override(text).key not in (*MACHINE_KEYS, "results_dir")]
    return " ".join(setting), list({subject.label: subject for subject in subjects}.values())
