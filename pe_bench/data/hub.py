"""Documents from the Hugging Face Hub."""

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pe_bench.config.schema import DataConfig
from pe_bench.data.sources import Document, row_text, within_budget
from pe_bench.errors import UserError, require

OWNER_AND_NAME = re.compile(r"\w[\w.-]*/\w[\w.-]*")
OFFLINE_HINT = "use data=stdlib, or data=files data.path=DIR"


def read(config: DataConfig, byte_budget: int | None) -> tuple[list[Document], list[Document] | None]:
    """Return a Hub dataset's documents: of the split `train`, and of `validation`, or None without it.

    With a budget in bytes the dataset is streamed, so only the used part is fetched. Raises `UserError`.
    """
    import datasets

    # `datasets` takes other names for folders or formats, which may be a stranger's.
    path = str(config.path)
    is_name = OWNER_AND_NAME.fullmatch(path) and not Path(path).exists()
    require(bool(is_name), f"data.path={path} is not the OWNER/NAME of a dataset on the Hub: {OFFLINE_HINT}")
    with hub_errors(f"data.path={path}", OFFLINE_HINT):
        load_dataset: Any = datasets.load_dataset
        is_streamed = byte_budget is not None
        splits: dict[str, Iterable[dict[str, Any]]] = load_dataset(
            path, config.subset, revision=config.revision, streaming=is_streamed
        )
        message = f"data.path={path} has no split 'train' (it has {', '.join(splits)}): {OFFLINE_HINT}"
        require("train" in splits, message)
        documents_of_sides: list[list[Document]] = []
        for name in ("train", "validation"):
            documents = _documents(splits.get(name, ()), name, config)
            documents_of_sides.append(list(within_budget(documents, byte_budget)))
        train, validation = documents_of_sides
        return train, validation or None


@contextmanager
def hub_errors(wanted: str, way_out: str) -> Iterator[None]:
    """Turn exceptions of the Hub's libraries into a one-line `UserError`.

    wanted: the address that cannot be loaded, with its key. way_out: advice for the message.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # datasets, httpx, pyarrow and fsspec each raise their own kinds
        one_line = " ".join(str(error).split())
        reason = one_line[:200] or type(error).__name__
        message = f"{wanted} cannot be loaded from the Hugging Face Hub ({reason})"
        raise UserError(f"{message}: check it, or {way_out}") from error


def _documents(rows: Iterable[dict[str, Any]], split: str, config: DataConfig) -> Iterator[Document]:
    """Yield the documents of a dataset's rows; WikiText's rows are joined to articles.

    split: the name of the rows' split. Raises `UserError` for rows without text.
    """
    where = f"data.path={config.path}, split {split},"
    names = getattr(rows, "column_names", None)
    if (
        names and config.text_column not in names
    ):  # refused before a stream is opened, which would leave threads
        row_text(dict.fromkeys(names), config, where)
    texts = (row_text(row, config, where) for row in rows)
    if str(config.path).rpartition("/")[2] == "wikitext":
        yield from _articles(texts)
        return
    for row, text in enumerate(texts):
        if text:
            yield Document(f"{split}:{row}", text)


def _articles(lines: Iterable[bytes]) -> Iterator[Document]:
    """Yield the articles of WikiText, from one ` = Title = ` line to the next; its rows are lines."""
    title = b""
    article: list[bytes] = []
    after_blank = True
    for line in lines:
        if after_blank and _is_title(line):
            if article:
                yield Document(title.decode(), b"".join(article))
            title = line.strip(b" =\n")
            article = []
        after_blank = not line.strip()
        if line:
            article.append(line)
    if article:
        yield Document(title.decode(), b"".join(article))


def _is_title(line: bytes) -> bool:
    """Return true for a line ` = Title = `, false for a deeper level such as ` = = Section = = `."""
    text = line.strip()
    is_heading = len(text) > 4 and text.startswith(b"= ") and text.endswith(b" =")
    is_deeper = text.startswith(b"= =") or text.endswith(b"= =")
    return is_heading and not is_deeper
