"""Documents from files: a text file is one document, a row of a JSON lines or Parquet file is one."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pe_bench.config.schema import DataConfig
from pe_bench.data.documents import Document, read_newlines
from pe_bench.errors import UserError

TABLES = {".jsonl": "json", ".jsonl.gz": "json", ".json": "json", ".parquet": "parquet"}
ROWS = 256  # of Parquet that are in memory at once


def read(path: str, config: DataConfig, key: str = "data.path") -> Iterator[Document]:
    """Yield every document under `path`, a folder or one file, in the order of the names.

    Hidden files and empty ones are passed over. Raises `UserError`, with `key` in its text, for a
    path that is missing, a file that is not text, or no text at all.
    """
    root = Path(path).expanduser()
    if not root.exists():
        where = "" if root.is_absolute() else f" in {Path.cwd()}"
        raise UserError(f"{key}={path} does not exist{where}: name a folder of text files, or one file", key)
    files = files_in(root, key) if root.is_dir() else [root]
    if not files:
        raise UserError(f"{key}={path} holds no files (hidden ones are ignored): put text files into it", key)
    found = False
    for file in files:
        name = file.relative_to(root).as_posix() if root.is_dir() else file.name
        for document in _read_file(file, name, config):
            if document.text:
                found = True
                yield document
    if not found:
        what = f"only empty files ({len(files)})" if root.is_dir() else "no text"
        raise UserError(f"{key}={path} holds {what}: choose files that have text in them", key)


def files_in(folder: Path, key: str) -> list[Path]:
    """Return the files below a folder in the order of their names, without hidden ones.

    Raises `UserError`, with `key` in its text, for a folder below it that cannot be read.
    """

    paths: list[Path] = []
    folders = [str(folder)]
    while folders:  # `os.walk` calls itself for each level
        try:
            with os.scandir(folders.pop()) as entries:
                shown = [entry for entry in entries if not entry.name.startswith(".")]
        except OSError as error:
            raise UserError(
                f"{key}: {error.filename!s:.200} cannot be read: {error.strerror}", key
            ) from error
        folders += [entry.path for entry in shown if entry.is_dir(follow_symlinks=False)]
        paths += [Path(entry.path) for entry in shown if entry.is_file()]
    return sorted(paths, key=lambda path: path.relative_to(folder).as_posix())


def _read_file(path: Path, name: str, config: DataConfig) -> Iterator[Document]:
    table = next((kind for ending, kind in TABLES.items() if path.name.endswith(ending)), None)
    if path.stat().st_size == 0:
        return
    if table is not None:
        yield from _read_table(path, name, table, config)
    else:
        yield Document(name, read_newlines(_read_text(path), config.newlines))


def _read_text(path: Path) -> bytes:
    try:
        text = path.read_bytes()
        text.decode()
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path} is not UTF-8 text (byte {error.start}): convert it, or take it out of the folder"
        ) from error
    if b"\0" in text:
        raise UserError(f"{path} is not text (byte {text.index(0)} is zero): take it out of the folder")
    return text


def _read_table(path: Path, name: str, kind: str, config: DataConfig) -> Iterator[Document]:
    """Yield the rows of a table, named `file:row`, as a stream: nothing is copied to another cache."""
    try:
        rows = _parquet_rows(path, config.text_column) if kind == "parquet" else _json_rows(path)
        for row, values in enumerate(rows):
            yield Document(f"{name}:{row}", row_text(values, config, f"{path}, row {row},"))
    except UserError:
        raise
    except Exception as error:  # pyarrow, json, gzip and datasets each raise their own kinds
        reason = str(error).strip().partition("\n")[0]
        raise UserError(f"{path} cannot be read as {kind}: {reason}") from error


def _parquet_rows(path: Path, text_column: str) -> Iterator[dict[str, Any]]:
    """Yield rows in this thread alone: `datasets` would leave threads, and Python end with SIGABRT."""
    import pyarrow.parquet

    with pyarrow.parquet.ParquetFile(path) as file:
        names = file.schema_arrow.names
        if text_column not in names:
            yield dict.fromkeys(names)  # which is refused, with the names that there are
            return
        for batch in file.iter_batches(ROWS, columns=[text_column], use_threads=False):
            yield from batch.to_pylist()


def _json_rows(path: Path) -> Iterator[dict[str, Any]]:
    import datasets

    verbosity = datasets.logging.get_verbosity()
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)  # our own line says it once
    try:
        yield from datasets.load_dataset("json", data_files=str(path), split="train", streaming=True)
    finally:
        datasets.logging.set_verbosity(verbosity)


def row_text(values: dict[str, Any], config: DataConfig, where: str) -> bytes:
    """Return the bytes of one row's text; empty where the row has none."""
    text_column = config.text_column
    if text_column not in values:
        columns = ", ".join(values)
        raise UserError(f"{where} has no column '{text_column}': set data.text_column to one of {columns}")
    text = values[text_column]
    if text is not None and not isinstance(text, str):
        kind = type(text).__name__
        raise UserError(f"{where} holds {kind} in column '{text_column}', not text: set data.text_column")
    try:
        return read_newlines((text or "").encode(), config.newlines)
    except UnicodeEncodeError as error:
        raise UserError(
            f"{where} holds a broken character in column '{text_column}': {error.reason}"
        ) from error
