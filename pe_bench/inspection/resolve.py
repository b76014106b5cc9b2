"""The encodings that the arguments of `show`, `check` and `speed` name, each in a resolved configuration."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pe_bench.config.arguments import configs_of, in_sections, names_and_overrides, without_keys
from pe_bench.config.compose import OVERRIDES_VARIABLE
from pe_bench.config.groups import names_in
from pe_bench.config.schema import MACHINE_KEYS, Config
from pe_bench.system.terminal import say

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

    examples: values for options that its class requires and nobody gave. trained: the encoding of a trained
    model, which is looked at in place of one with initial values.
    """

    name: str
    config: Config
    examples: dict[str, Any] = field(default_factory=dict)
    trained: "Composition | None" = None

    @cached_property
    def spec(self) -> "EncodingSpec":
        from pe_bench.encodings.spec import EncodingSpec

        return EncodingSpec(self.config.encoding, self.config.search)

    @cached_property
    def encoding(self) -> "Composition":
        """The trained encoding, or one with the initial values of a run with this seed, for bytes."""
        if self.trained is not None:
            return self.trained
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
        values = self.spec.with_examples().values
        typed = self.config.encoding
        examples = {option: value for option, value in values.items() if typed.get(option, {}) != value}
        return replace(self, config=replace(self.config, encoding=values), examples=examples)


def parameter_count(encoding: "Composition") -> int:
    return sum(parameter.numel() for parameter in encoding.parameters())


def resolve(arguments: Sequence[str], search: Sequence[Path] = ()) -> list[ResolvedEncoding]:
    """Resolve each encoding that `arguments` name, with the overrides that are there.

    An option of an encoding goes to those that have it; one that has no default gets an example. Raises
    `UserError` for what cannot be, such as an encoding that cannot be built.
    """
    configs = configs_of(arguments, search)
    subjects = [ResolvedEncoding(name, config).with_examples() for name, config in configs.items()]
    for subject in subjects:
        for option, value in subject.examples.items():
            say(f"{subject.name} has no default for {option}: {option}={value} is taken, an example")
        _ = subject.encoding  # is built, and kept
    return subjects


def resolve_timed(
    arguments: Sequence[str], search: Sequence[Path] = ()
) -> tuple[str, list[ResolvedEncoding]]:
    """Return the overrides that a table names, and the reference followed by the encodings to time.

    No name means all encodings. Raises `UserError`.
    """
    names, typed = names_and_overrides(arguments)
    overrides = [*os.environ.get(OVERRIDES_VARIABLE, "").split(), *typed]
    shared = in_sections(overrides, SHARED)
    subjects = resolve([REFERENCE, *shared], search)
    subjects += resolve([*(names or names_in("encoding", search)), *overrides], search)
    setting = without_keys(shared, (*MACHINE_KEYS, "results_dir"))
    return " ".join(setting), list({subject.label: subject for subject in subjects}.values())
