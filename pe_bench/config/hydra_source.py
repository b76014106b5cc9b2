"""What Hydra reads of an encoding: its file or its class, with all options of the class in it."""

from pathlib import Path
from typing import Any

from hydra._internal.core_plugins.file_config_source import FileConfigSource
from hydra._internal.sources_registry import SourcesRegistry
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigResult
from omegaconf import OmegaConf

from pe_bench.encodings.signatures import complete

GROUPS_OF_CLASSES = ("encoding", "modifier")


class EncodingSource(FileConfigSource):
    """A folder of YAML files in which `encoding/FILE.py:Class` exists wherever the file lies."""

    def is_config(self, config_path: str) -> bool:
        return _class_of(config_path) != "" or super().is_config(config_path)

    def load_config(self, config_path: str) -> ConfigResult:
        specification = _class_of(config_path)
        if specification:
            part = {"name": specification.rpartition(":")[2], "class": specification}
            header: dict[str, str | None] = {"package": None}
            return ConfigResult(self.provider, config_path, OmegaConf.create(complete(part)), header)
        result = super().load_config(config_path)
        group, _, name = config_path.partition("/")
        part: Any = OmegaConf.to_container(result.config, resolve=False)
        if group in GROUPS_OF_CLASSES and isinstance(part, dict):
            named = {"name": name.removesuffix(".yaml")} if group == "encoding" and "class" in part else {}
            result.config = OmegaConf.create(complete({**named, **part}, (Path(self.path),)))
        return result


# Hydra takes no class of another name for folders, where a launcher's process begins anew.
EncodingSource.__name__ = FileConfigSource.__name__


def _class_of(config_path: str) -> str:
    """Return the class that the choice of an encoding names; empty where it names a file of YAML."""
    group, _, choice = config_path.partition("/")
    return choice if group == "encoding" and ":" in choice else ""


def register() -> None:
    Plugins.instance()  # which registers Hydra's own
    SourcesRegistry.instance().types[FileConfigSource.scheme()] = EncodingSource
