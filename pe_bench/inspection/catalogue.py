"""The facts of `list encodings`. Every encoding is built, because its facts follow from its options."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pe_bench.encodings
from pe_bench.config.compose import CATALOGUE, compose
from pe_bench.config.groups import aliases, description, names_in, paper
from pe_bench.config.parse import parse_config
from pe_bench.encodings.base import FAMILIES, Declared
from pe_bench.inspection.resolve import ResolvedEncoding, parameter_count

PACKAGE = Path(pe_bench.encodings.__file__).parent


def shipped(overrides: Sequence[str] = ()) -> list[ResolvedEncoding]:
    """Return all encodings of pe-bench, in the tiny model unless overrides choose another model."""
    # One configuration with all of them, because Hydra takes 50 ms for each.
    names = [f"+encoding@{CATALOGUE}.{name}={name}" for name in names_in("encoding")]
    composed = compose([*names, *overrides])
    encodings = composed.pop(CATALOGUE)
    config = parse_config(composed)
    subjects = [
        ResolvedEncoding(name, replace(config, encoding=values)) for name, values in encodings.items()
    ]
    return [subject.with_examples() for subject in subjects]


def families() -> list[str]:
    """Return the families of all encodings of pe-bench, without building an encoding."""
    folders = [path for path in PACKAGE.iterdir() if any(path.glob("*.py"))]
    names = [FAMILIES.get(folder.name, folder.name) for folder in folders]
    return sorted({Declared.family, *names})


def catalogue(subjects: Sequence[ResolvedEncoding] = ()) -> list[dict[str, Any]]:
    """Return the facts and aliases of each encoding. subjects: the encodings; by default all of pe-bench."""
    modifiers = names_in("modifier")
    first_names = aliases()
    rows = []
    for subject in subjects or shipped():
        others = sorted(alias for alias, first in first_names.items() if first == subject.name)
        rows.append({**_facts(subject), "modifier": subject.name in modifiers, "aliases": others})
    return rows


def _facts(subject: ResolvedEncoding) -> dict[str, Any]:
    """Return the facts of an encoding, by the names of their columns."""
    parts = [subject.spec.base, *subject.spec.modifiers.values()]
    declared = parts[-1].encoding_class
    names = [subject.spec.values["name"], *subject.spec.modifiers]
    return {
        "encoding": subject.name,
        "family": declared.family,
        "parameters": parameter_count(subject.encoding),
        "what_it_is": description("encoding", subject.name),
        "past_training": subject.encoding.past_training,
        "paper": paper(subject.name) or declared.paper,
        "label": "+".join(names),
    }
