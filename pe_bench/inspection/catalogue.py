"""What `list encodings` tells of each: all are built, for their facts follow from options."""

from typing import Any

import torch

from pe_bench.config.compose import compose
from pe_bench.config.groups import aliases, description, names_in, paper
from pe_bench.config.parse import parse_config
from pe_bench.data.tokenizer import ByteTokenizer
from pe_bench.encodings.spec import EncodingSpec
from pe_bench.inspection.resolve import parameter_count


def catalogue() -> list[dict[str, Any]]:
    """Return the facts of each encoding in the tiny model, and its other names."""
    names, modifiers, first_names = names_in("encoding"), names_in("modifier"), aliases()
    # One configuration with all of them, because Hydra takes 50 ms for each.
    composed = compose([f"+encoding@catalogue.{name}={name}" for name in names])
    configs = composed.pop("catalogue")
    n_layers = parse_config(composed).model.n_layers
    return [
        {
            "encoding": name,
            **_facts(name, configs[name], n_layers),
            "modifier": name in modifiers,
            "aliases": sorted(alias for alias, first in first_names.items() if first == name),
        }
        for name in names
    ]


def _facts(name: str, config: dict[str, Any], n_layers: int) -> dict[str, Any]:
    spec = EncodingSpec(config).with_examples()
    with torch.random.fork_rng(devices=[]):
        built = spec.build(n_layers, ByteTokenizer().vocabulary)
    declared = [spec.base, *spec.modifiers.values()][-1].encoding_class
    return {
        "family": declared.family,
        "parameters": parameter_count(built),
        "what_it_is": description("encoding", name),
        "past_training": built.past_training,
        "paper": paper(name) or declared.paper,
        "label": "+".join([config["name"], *config.get("modifiers", {})]),
    }
