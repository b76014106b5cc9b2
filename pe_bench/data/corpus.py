"""Documents of the configured source; each source has its own file beside this one."""

from pe_bench.config.schema import DataConfig
from pe_bench.data import hub, standard_library, text_files
from pe_bench.data.documents import Document, within_budget


def read_corpus(
    config: DataConfig, byte_budget: int | None = None
) -> tuple[list[Document], list[Document] | None]:
    """Return training documents, and the source's validation documents (None: to be split off).

    Each list stops at `byte_budget` bytes. Raises `UserError` for a source that cannot be read.
    """
    if config.source == "hub":
        return hub.read(config, byte_budget)
    if config.source == "stdlib":
        return list(within_budget(standard_library.read(config), byte_budget)), None
    train = list(within_budget(text_files.read(config.path or ".", config), byte_budget))
    if config.validation_path is None:
        return train, None
    validation = text_files.read(config.validation_path, config, "data.validation_path")
    return train, list(within_budget(validation, byte_budget))
