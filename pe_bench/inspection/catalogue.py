"""What `list encodings` tells of each: all are built, for their facts follow from options."""

from dataclasses import replace
from typing import Any

from pe_bench.config.compose import compose
from pe_bench.config.groups import aliases, description, names_in, paper
from pe_bench.config.parse import parse_config
from pe_bench.inspection.resolve import ResolvedEncoding, parameter_count


def catalogue() -> list[dict[str, Any]]:
    """Return the facts of each encoding in the tiny model, and its other names."""
    names, modifiers, first_names = names_in("encoding"), names_in("modifier"), aliases()
    # One configuration with all of them, because Hydra takes 50 ms for each.
    composed = compose([f"+encoding@catalogue.{name}={name}" for name in names])
    encodings = composed.pop("catalogue")
    config = parse_config(composed)
    return [
        {
            **_facts(ResolvedEncoding(name, replace(config, encoding=encodings[name])).with_examples()),
            "modifier": name in modifiers,
            "aliases": sorted(alias for alias, first in first_names.items() if first == name),
        }
        for name in names
    ]


def _facts(subject: ResolvedEncoding) -> dict[str, Any]:
    declared = [subject.spec.base, *subject.spec.modifiers.values()][-1].encoding_class
    return {
        "encoding": subject.name,
        "family": declared.family,
        "parameters": parameter_count(subject.encoding),
        "what_it_is": description("encoding", subject.name),
        "past_training": subject.encoding.past_training,
        "paper": paper(subject.name) or declared.paper,
        "label": "+".join([subject.spec.values["name"], *subject.spec.modifiers]),
    }
