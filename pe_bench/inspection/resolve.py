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
REFERENCE = "nope"  # the encoding with which `speed` compares others
# Sections and keys of a timed model and of the machine.
SHARED_KEYS = ("model", "train", "eval", "seed", "precision", "threads", "device", "results_dir")


@dataclass(frozen=True)
class ResolvedEncoding:
    """An encoding that an argument or a trained model has, in a whole configuration."""

    name: str  # the name in the arguments
    config: Config
    examples: dict[str, Any] = field(default_factory=dict)  # examples for required options without a value
    trained: "Composition | None" = None  # a trained model's encoding, in place of one with initial values

    @cached_property
    def spec(self) -> "EncodingSpec":
        """The encoding's parts and options, from the configuration."""
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
        """The name with the given options; only the name if the label would be too long."""
        label = self.spec.label
        return label if len(label) <= MAX_LABEL else self.name

    @property
    def label_with_file(self) -> str:
        """The label, with the file of a class from a file before it: `my.py:RootBias+logn`.

        So classes of two files with one name have two labels.
        """
        path, separator, _ = self.name.partition(".py:")
        file = path + separator
        if not separator or self.label.startswith(file):
            return self.label
        return file + self.label

    def with_examples(self) -> "ResolvedEncoding":
        """Return the encoding with an example for each required option without a value."""
        values = self.spec.with_examples().values
        typed = self.config.encoding
        examples: dict[str, Any] = {}
        for option, value in values.items():
            if typed.get(option, {}) != value:
                examples[option] = value
        config = replace(self.config, encoding=values)
        return replace(self, config=config, examples=examples)


def parameter_count(encoding: "Composition") -> int:
    """Return the number of an encoding's parameters."""
    return sum(parameter.numel() for parameter in encoding.parameters())


def resolve(arguments: Sequence[str], search: Sequence[Path] = ()) -> list[ResolvedEncoding]:
    """Resolve each encoding that `arguments` name, with their overrides.

    An option goes to the encodings that have it; a required option without a value gets an example. Raises
    `UserError`, also for an encoding that cannot be built.
    """
    subjects: list[ResolvedEncoding] = []
    for name, config in configs_of(arguments, search).items():
        subject = ResolvedEncoding(name, config).with_examples()
        subjects.append(subject)
        for option, value in subject.examples.items():
            say(f"{subject.name} has no default for {option}: using the example {option}={value}")
        _ = subject.encoding  # is built, and kept
    return subjects


def encodings_to_time(
    arguments: Sequence[str], search: Sequence[Path] = ()
) -> tuple[str, list[ResolvedEncoding]]:
    """Return the overrides for a table's title, and the encodings to time, the reference first.

    Arguments without a name mean all encodings. Raises `UserError`.
    """
    names, typed = names_and_overrides(arguments)
    overrides = [*os.environ.get(OVERRIDES_VARIABLE, "").split(), *typed]
    shared = in_sections(overrides, SHARED_KEYS)
    if not names:
        names = names_in("encoding", search)
    subjects = resolve([REFERENCE, *shared], search)
    subjects += resolve([*names, *overrides], search)
    setting = without_keys(shared, (*MACHINE_KEYS, "results_dir"))
    by_label = {subject.label: subject for subject in subjects}
    return " ".join(setting), list(by_label.values())
