"""The names that a group of the configuration offers."""

from pe_bench.config.groups import config_dir


def choices(group: str) -> list[str]:
    return sorted(path.stem for path in (config_dir() / group).glob("*.yaml"))
