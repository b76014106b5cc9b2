"""Documents from the Hugging Face Hub."""

import os
import re
import socket
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

from pe_bench.config.schema import DataConfig
from pe_bench.data.sources import Document, row_text, within_budget
from pe_bench.errors import UserError, require

OWNER_AND_NAME = re.compile(r"\w[\w.-]*/\w[\w.-]*")
PROBE_SECONDS = 1.0
WITHOUT = "use data=stdlib, or data=files data.path=DIR"


def read(config: DataConfig, byte_budget: int | None) -> tuple[list[Document], list[Document] | None]:
    """Return the `train` split and, where the dataset has one, the `validation` split.

    With a budget the dataset is streamed, so that only what is used is fetched.
    """
    # `datasets` takes other names for folders or formats; they may be a stranger's.
    is_name = OWNER_AND_NAME.fullmatch(str(config.path)) and not Path(str(config.path)).exists()
    require(
        bool(is_name), f"data.path={config.path} is not the OWNER/NAME of a dataset on the Hub: {WITHOUT}"
    )
    with hub_errors(f"data.path={config.path}", WITHOUT):
        splits = _load(config, streaming=byte_budget is not None)
        message = f"data.path={config.path} has no split 'train' (it has {', '.join(splits)}): {WITHOUT}"
        require("train" in splits, message)
        train = _documents(splits["train"], "train", config)
        validation = _documents(splits.get("validation", ()), "validation", config)
        read_train = list(within_budget(train, byte_budget))
        return read_train, list(within_budget(validation, byte_budget)) or None


@contextmanager
def hub_errors(what: str, instead: str) -> Iterator[None]:
    """Turn what the Hub's libraries raise into a `UserError` of one line.

    Where the Hub cannot be reached, they search their caches alone: they would try for 24 seconds before they
    give up, whatever their own timeouts are, for each name that cannot be resolved is requested six times.
    """
    import huggingface_hub
    from datasets import config as datasets_config

    is_offline = huggingface_hub.constants.HF_HUB_OFFLINE or not is_open(huggingface_hub.constants.ENDPOINT)
    switches: list[tuple[Any, bool]] = [
        (module, module.HF_HUB_OFFLINE) for module in (huggingface_hub.constants, datasets_config)
    ]
    for module, _ in switches:
        module.HF_HUB_OFFLINE = is_offline
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # datasets, httpx, pyarrow and fsspec each raise their own kinds
        if is_offline:
            message = "is not in the local cache and the Hugging Face Hub cannot be reached"
            raise UserError(f"{what} {message}: {instead}") from error
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        message = f"{what} cannot be loaded from the Hugging Face Hub ({reason})"
        raise UserError(f"{message}: check it, or {instead}") from error
    finally:
        for module, value in switches:
            module.HF_HUB_OFFLINE = value


def is_open(endpoint: str) -> bool:
    """Return whether a connection to `endpoint`, or to its proxy, opens within a second."""
    address = urlsplit(os.environ.get("HTTPS_PROXY") or os.environ.get("https_proxy") or endpoint)
    port = address.port or (443 if address.scheme == "https" else 80)
    opened = threading.Event()

    def connect() -> None:
        with suppress(OSError):
            socket.create_connection((address.hostname or "", port), timeout=PROBE_SECONDS).close()
            opened.set()

    # In a thread, because resolving a name has no timeout.
    thread = threading.Thread(target=connect, daemon=True)
    thread.start()
    thread.join(PROBE_SECONDS)
    return opened.is_set()


def _load(config: DataConfig, streaming: bool) -> dict[str, Iterable[dict[str, Any]]]:
    import datasets

    verbosity = datasets.logging.get_verbosity()
    datasets.logging.set_verbosity(datasets.logging.ERROR)
    try:
        return cast(Any, datasets.load_dataset)(
            config.path, config.subset, revision=config.revision, streaming=streaming
        )
    finally:
        datasets.logging.set_verbosity(verbosity)


def _documents(rows: Iterable[dict[str, Any]], split: str, config: DataConfig) -> Iterator[Document]:
    where = f"data.path={config.path}, split {split},"
    names = getattr(rows, "column_names", None)
    if names and config.text_column not in names:  # before a stream is opened, which would leave threads
        row_text(dict.fromkeys(names), config, where)
    texts = (row_text(row, config, where) for row in rows)
    if str(config.path).rpartition("/")[2] == "wikitext":
        yield from _articles(texts)
    else:
        yield from (Document(f"{split}:{row}", text) for row, text in enumerate(texts) if text)


def _articles(lines: Iterable[bytes]) -> Iterator[Document]:
    """Yield the articles of WikiText, whose rows are lines: each from one ` = Title = ` to the next."""
    title, article, after_blank = b"", [], True
    for line in lines:
        if after_blank and _is_title(line):
            if article:
                yield Document(title.decode(), b"".join(article))
            title, article = line.strip(b" =\n"), []
        after_blank = not line.strip()
        if line:
            article.append(line)
    if article:
        yield Document(title.decode(), b"".join(article))


def _is_title(line: bytes) -> bool:
    """Return whether a line is ` = Title = `, and not the ` = = Section = = ` of a deeper level."""
    text = line.strip()
    one_level = text.startswith(b"= ") and text.endswith(b" =")
    return one_level and len(text) > 4 and not text.startswith(b"= =") and not text.endswith(b"= =")
