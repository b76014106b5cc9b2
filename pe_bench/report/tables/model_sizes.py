"""The sizes of a run's model that are not those of the file that its name stands for."""

from collections.abc import Mapping
from functools import cache
from typing import Any

from pe_bench.config.groups import config_dir, names_in


def changed_sizes(model: Mapping[str, Any]) -> str:
    """Return sizes such as `d_model=96 d_head=24`; empty for those of the file, and for a custom file."""
    usual = _usual_sizes(str(model.get("name")))
    changed = {key: model[key] for key, value in usual.items() if model.get(key, value) != value}
    return " ".join(f"{key}={value}".lower() for key, value in changed.items() if isinstance(value, int))


@cache
def _usual_sizes(name: str) -> Mapping[str, Any]:
    # Through OmegaConf, because a size may follow from another (`d_head`). Rows have no columns of sizes.
    if name not in names_in("model", ()):  # a run may be a stranger's, and name any path
        return {}
    from omegaconf import OmegaConf

    from pe_bench.config.compose import register_resolvers

    register_resolvers()
    composed = OmegaConf.create({"model": OmegaConf.load(config_dir() / "model" / f"{name}.yaml")})
    sizes = OmegaConf.to_container(composed, resolve=True)
    assert isinstance(sizes, dict)
    return sizes["model"]
