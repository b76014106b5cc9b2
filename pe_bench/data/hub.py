"""Documents from the Hugging Face Hub."""

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from pe_bench.config.schema import DataConfig
from pe_bench.data.sources import Document, row_text, within_budget
from pe_bench.errors import UserError, require

OWNER_AND_NAME = re.compile(r"\w[\w.-]*/\w[\w.-]*")
WITHOUT = "use data=stdlib, or data=files data.path=DIR"


def read(config: DataConfig, byte_budget: int | None) -> tuple[list[Document], list[Document] | None]:
    """Return the `train` split and, where the dataset has one, the `validation` split.

    With a budget the dataset is streamed, so that only what is used is fetched.
    """
    import datasets

    # `datasets` takes other names for folders or formats; they may be a stranger's.
    path = str(config.path)
    is_name = OWNER_AND_NAME.fullmatch(path) and not Path(path).exists()
    require(bool(is_name), f"data.path={path} is not the OWNER/NAME of a dataset on the Hub: {WITHOUT}")
    with hub_errors(f"data.path={path}", WITHOUT):
        splits: dict[str, Iterable[dict[str, Any]]] = cast(Any, datasets.load_dataset)(
            path, config.subset, revision=config.revision, streaming=byte_budget is not None
        )
        message = f"data.path={path} has no split 'train' (it has {', '.join(splits)}): {WITHOUT}"
        require("train" in splits, message)
        train, validation = (
            list(within_budget(_documents(splits.get(name, ()), name, config), byte_budget))
            for name in ("train", "validation")
        )
        return train, validation or None


@contextmanager
def hub_errors(what: str, instead: str) -> Iterator[None]:
    """Turn what the Hub's libraries raise into a `UserError` of one line."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # datasets, httpx, pyarrow and fsspec each raise their own kinds
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        message = f"{what} cannot be loaded from the Hugging Face Hub ({reason})"
        raise UserError(f"{message}: check it, or {instead}") from error


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
    """Return whether a line is ` = Title = `, and not the ` = = Section = = ` of a deeper level."""
    text = line.strip()
    one_level = text.startswith(b"= ") and text.endswith(b" =")
    return one_level and len(text) > 4 and not text.startswith(b"= =") and not text.endswith(b"= =")
