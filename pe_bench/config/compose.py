"""The configuration of one job: Hydra composes it from a command's overrides."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from pe_bench.config.groups import config_dir
from pe_bench.config.hydra_errors import cause, explain_hydra_errors
from pe_bench.config.nested import complete_nested, for_hydra
from pe_bench.config.parse import parse_config
from pe_bench.config.schema import Config
from pe_bench.config.unknown_keys import CONFIG, search_override
from pe_bench.errors import UserError, first_line
from pe_bench.system.paths import expand_path


def compose(overrides: Sequence[str], search: Sequence[Path] = ()) -> dict[str, Any]:
    """Compose the configuration of one job as plain values, without running anything."""
    overrides = for_hydra(overrides, search)
    with explain_hydra_errors(overrides, search):
        return _compose(overrides, search)


def _compose(overrides: Sequence[str], search: Sequence[Path]) -> dict[str, Any]:
    return to_plain_values(_hydra_compose(overrides, search), search)


def _hydra_compose(overrides: Sequence[str], search: Sequence[Path]) -> Any:
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir

    register_resolvers()
    with initialize_config_dir(str(config_dir()), version_base="1.3"):
        return hydra_compose(CONFIG, [*overrides, *search_override(search)])


def _unresolved(composed: Any) -> dict[str, Any]:
    from omegaconf import OmegaConf

    values: Any = OmegaConf.to_container(composed, resolve=False)
    return values


def to_plain_values(composed: Any, search: Sequence[Path] = ()) -> dict[str, Any]:
    """Resolve to plain values; each part of the encoding names its options that were derived."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        composed = _with_nested(composed, search)
        raw = OmegaConf.to_container(composed, resolve=False)
        values = OmegaConf.to_container(composed, resolve=True)
    except OmegaConfBaseException as error:
        raise cause(error) or UserError(first_line(error)) from error
    assert isinstance(raw, dict)
    assert isinstance(values, dict)
    plain = {
        str(key): value for key, value in values.items() if key not in ("hydra", "modifier", "experiment")
    }
    if isinstance(plain.get("encoding"), dict):
        plain["encoding"] = _mark_derived(raw["encoding"], plain["encoding"])
    return plain


def _with_nested(composed: Any, search: Sequence[Path]) -> Any:
    """Complete the encodings that options of the encoding hold."""
    from omegaconf import OmegaConf

    def compose_encoding(overrides: Sequence[str]) -> dict[str, Any]:
        with _lent_hydra():
            return _unresolved(_hydra_compose(overrides, search))["encoding"]

    raw = _unresolved(composed)
    if not isinstance(raw.get("encoding"), dict):
        return composed
    encoding = complete_nested(raw["encoding"], compose_encoding, search)
    return composed if encoding == raw["encoding"] else OmegaConf.create({**raw, "encoding": encoding})


@contextmanager
def _lent_hydra() -> Iterator[None]:
    """Let Hydra compose something else in a job of its own."""
    from hydra.core.global_hydra import GlobalHydra

    outer = GlobalHydra.instance().hydra
    GlobalHydra.instance().clear()
    try:
        yield
    finally:
        GlobalHydra.instance().hydra = outer


def register_resolvers() -> None:
    """Register what reads the files of encodings, and the functions that the YAML files call."""
    from omegaconf import OmegaConf

    from pe_bench.config.hydra_source import register

    register()
    OmegaConf.register_new_resolver("divide", _divide, replace=True)
    OmegaConf.register_new_resolver("quotient", lambda a, b: max(1, a // b), replace=True)
    OmegaConf.register_new_resolver("times", lambda a, b: a * b, replace=True)
    OmegaConf.register_new_resolver("required", _require_value, replace=True)
    OmegaConf.register_new_resolver(
        "expanduser", lambda path: str(expand_path(path, "results_dir=")), replace=True
    )


def _require_value(otherwise: str) -> NoReturn:
    raise UserError(otherwise)


def _divide(d_model: int, n_heads: int) -> int:
    if not all(isinstance(value, int) and value > 0 for value in (d_model, n_heads)):
        raise UserError(f"model.d_model={d_model} and model.n_heads={n_heads} must be positive whole numbers")
    if d_model % n_heads:
        # Heads of an even width, because a rotation takes features in pairs.
        near = max(1, round(d_model / (2 * n_heads))) * 2 * n_heads
        raise UserError(
            f"model.d_model={d_model} is not divisible by model.n_heads={n_heads}: try model.d_model={near}"
        )
    return d_model // n_heads


def parse_composed(composed: Any) -> Config:
    """Parse what Hydra hands to a task."""
    from hydra.core.hydra_config import HydraConfig

    register_resolvers()  # a launcher may have begun this process
    sources = HydraConfig.get().runtime.config_sources
    folders = [Path(source.path) for source in sources if source.schema == "file"]
    search = [folder for folder in folders if folder != config_dir()]
    return parse_config(to_plain_values(composed, search), search)


def _mark_derived(raw: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    modifiers = values.get("modifiers")
    if isinstance(modifiers, dict) and modifiers:
        parts = {
            name: _mark_derived(raw["modifiers"][name], part) if isinstance(part, dict) else part
            for name, part in modifiers.items()
        }
        values = {**values, "modifiers": parts}
    nested = {
        name: _mark_derived(raw[name], part)
        for name, part in values.items()
        if name != "modifiers" and isinstance(part, dict) and "class" in part
    }
    values = {**values, **nested}
    derived = [name for name, value in raw.items() if isinstance(value, str) and value.startswith("${")]
    return {**values, "derived": derived}
