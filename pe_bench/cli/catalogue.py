"""The facts of every shipped encoding, kept in the cache folder until the code or the YAML changes.

Building all encodings takes two seconds, most of them to load PyTorch.
"""

from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

from pe_bench.config.compose import compose
from pe_bench.config.groups import aliases, config_dir, description, names_in
from pe_bench.config.parse import parse_config
from pe_bench.errors import RunError, UserError
from pe_bench.system.cache import cache_root, cached_folder, key_of, read_meta

COLUMNS = ("encoding", "family", "parameters", "what it is", "past training", "paper", "is")


def catalogue() -> list[tuple[str | int, ...]]:
    """Return a row of `COLUMNS` for each encoding, from the cache folder where it has them."""
    try:
        entry = cached_folder(cache_root(None) / "catalogue", _key(), lambda _: {"rows": list(_rows())})
    except (UserError, RunError):  # the folder cannot be written, and nobody asked for it
        return list(_rows())
    return [tuple(row) for row in read_meta(entry)["rows"]]


def _key() -> str:
    """Return the name of the cache's entry: a hash of all files that the rows follow from."""
    package = Path(__file__).parents[1]
    sources = [Path(__file__), *(package / "encodings").rglob("*.py"), *config_dir().rglob("*.yaml")]
    return key_of(*(sha256(path.read_bytes()).hexdigest() for path in sorted(sources)))


def _rows() -> Iterator[tuple[str | int, ...]]:
    """Build every encoding, since parameters and what it does with long texts follow from its options."""
    names, modifiers = names_in("encoding"), set(names_in("modifier"))
    # One configuration with all of them, because Hydra takes 50 ms for each.
    composed = compose([f"+encoding@catalogue.{name}={name}" for name in names])
    model = parse_config({key: value for key, value in composed.items() if key != "catalogue"}).model
    first_names = aliases()
    for name in names:
        config = composed["catalogue"][name]
        also = sorted(alias for alias, first in first_names.items() if first == name)
        family, parameters, past_training, paper = _facts(config, model.n_layers)
        parts = _parts_and_names(name, config, name in modifiers, also)
        yield name, family, parameters, description("encoding", name), past_training, paper, parts


def _facts(config: dict[str, Any], n_layers: int) -> tuple[str, int, str, str]:
    """Return family, parameters, what happens past the training length, and the paper."""
    import torch

    from pe_bench.data.tokenizer import ByteTokenizer
    from pe_bench.encodings.spec import EncodingSpec
    from pe_bench.inspection.resolve import parameter_count

    spec = EncodingSpec(config).with_examples()
    with torch.random.fork_rng(devices=[]):
        built = spec.build(n_layers, ByteTokenizer().vocabulary)
    declared = spec.parts[-1].encoding_class
    return declared.family, parameter_count(built), built.past_training, declared.paper


def _parts_and_names(name: str, config: dict[str, Any], is_modifier: bool, also: list[str]) -> str:
    """Name the parts of an encoding that has some, its use as a modifier, and its other names."""
    label = "+".join([config["name"], *config.get("modifiers", {})])
    parts = [
        label if label != name else "",
        "also as modifier" if is_modifier else "",
        f"also called {', '.join(also)}" if also else "",
    ]
    return "; ".join(part for part in parts if part)
