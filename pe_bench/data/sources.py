"""Documents from files and from the interpreter's standard library; those of the Hub are in hub.py."""

import codecs
import hashlib
import os
import sysconfig
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pe_bench.config.schema import DataConfig
from pe_bench.errors import UserError

TABLES = {".jsonl": "json", ".jsonl.gz": "json", ".json": "json", ".parquet": "parquet"}
MAX_NAMED = 10  # files that are no text
NO_TEXT = "convert them, take them out of the folder, or say data.encoding=NAME, such as latin-1"
ROWS = 256  # of Parquet that are in memory at once
# Not the standard library itself: tests, other people's packages, applications, copies, and tables.
LEFT_OUT = {
    *("test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__", "_bundled"),
    *("idlelib", "lib2to3", "encodings", "pydoc_data", "turtledemo"),
}
GENERATED = {"html/entities.py", "keyword.py", "re/_casefix.py", "stringprep.py", "token.py"}
GENERATED_PREFIXES = ("_sysconfigdata", "config-")


@dataclass(frozen=True)
class Document:
    """A name to show, and the bytes of a text, which are valid UTF-8."""

    name: str
    text: bytes

    @cached_property
    def sha256(self) -> str:
        return hashlib.sha256(self.text).hexdigest()


def within_budget(documents: Iterable[Document], byte_budget: int | None) -> Iterator[Document]:
    """Yield documents up to `byte_budget` bytes in total; the last one is cut to fit."""
    left = byte_budget
    for document in documents:
        if left is None:
            yield document
            continue
        if len(document.text) >= left:
            text = document.text[: character_boundary(document.text, left)]
            if text:
                yield Document(document.name, text)
            return
        left -= len(document.text)
        yield document


def character_boundary(text: bytes, position: int) -> int:
    """Return the last index at or before `position` where no UTF-8 character is cut."""
    while 0 < position < len(text) and text[position] & 0xC0 == 0x80:
        position -= 1
    return position


def read_newlines(text: bytes, newlines: str) -> bytes:
    r"""Return a text with `\n` for every line end and without a byte-order mark; with `keep`, as it is.

    Both come from the machine that wrote the text: a model would learn them and be scored on them.
    """
    if newlines == "keep":
        return text
    return text.removeprefix(codecs.BOM_UTF8).replace(b"\r\n", b"\n").replace(b"\r", b"\n")


# Files: a text file is one document, a row of a JSON lines or Parquet file is one.


class NoTextError(Exception):
    """An error about a file that is no text; its text says where."""


def read_files(path: str, config: DataConfig, key: str) -> Iterator[Document]:
    """Yield every document under `path`, a folder or one file, in the order of the names.

    Hidden files and empty ones are passed over. Raises `UserError`, with `key` in its text, for a path that
    is missing, a file that is not text, or no text at all.
    """
    root = Path(path).expanduser()
    if not root.exists():
        where = "" if root.is_absolute() else f" in {Path.cwd()}"
        raise UserError(f"{key}={path} does not exist{where}: name a folder of text files, or one file", key)
    files = files_in(root, key) if root.is_dir() else [root]
    if not files:
        raise UserError(f"{key}={path} holds no files (hidden ones are ignored): put text files into it", key)
    is_empty, problems = True, list[str]()
    for file in files:
        name = file.relative_to(root).as_posix() if root.is_dir() else file.name
        try:
            for document in _documents_in(file, name, config):
                is_empty = is_empty and not document.text
                if document.text and not problems:
                    yield document
        except NoTextError as error:  # all of them are named at once
            problems.append(f"{name} ({error})")
    if problems:
        names = ", ".join(problems[:MAX_NAMED]) + (", ..." if len(problems) > MAX_NAMED else "")
        count = f"{len(problems)} of {len(files)} files cannot be read as {config.encoding} text"
        raise UserError(f"{key}={path}: {count}: {names}: {NO_TEXT}", key)
    if is_empty:
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
        paths += [Path(entry.path) for entry in shown if os.path.isfile(entry)]
    return sorted(paths, key=lambda path: path.relative_to(folder).as_posix())


def _documents_in(path: Path, name: str, config: DataConfig) -> Iterator[Document]:
    table = next((kind for ending, kind in TABLES.items() if path.name.endswith(ending)), None)
    if path.stat().st_size == 0:
        return
    if table is None:
        yield Document(name, read_newlines(_text_in(path, config.encoding), config.newlines))
        return
    try:
        rows = _parquet_rows(path, config.text_column) if table == "parquet" else _json_rows(path)
        for row, values in enumerate(rows):
            yield Document(f"{name}:{row}", row_text(values, config, f"{path}, row {row},"))
    except UserError:
        raise
    except Exception as error:  # pyarrow, json, gzip and datasets each raise their own kinds
        reason = str(error).strip().partition("\n")[0]
        raise UserError(f"{path} cannot be read as {table}: {reason}") from error


def _text_in(path: Path, encoding: str) -> bytes:
    """Return the text of a file in UTF-8. Raises `NoTextError`."""
    try:
        text = path.read_bytes().decode(encoding).encode()
    except OSError as error:
        raise NoTextError(error.strerror) from error
    except UnicodeError as error:
        raise NoTextError(f"byte {getattr(error, 'start', 0)}") from error
    if b"\0" in text:
        raise NoTextError(f"byte {text.index(0)} is zero")
    return text


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
    column = config.text_column
    if column not in values:
        columns = ", ".join(values)
        raise UserError(f"{where} has no column '{column}': set data.text_column to one of {columns}")
    text = values[column]
    if text is not None and not isinstance(text, str):
        kind = type(text).__name__
        raise UserError(f"{where} holds {kind} in column '{column}', not text: set data.text_column")
    try:
        return read_newlines((text or "").encode(), config.newlines)
    except UnicodeEncodeError as error:
        raise UserError(f"{where} holds a broken character in column '{column}': {error.reason}") from error


# The sources of the interpreter's own standard library: real text, already on every machine.


def read_stdlib(config: DataConfig) -> Iterator[Document]:
    """Yield documents, named and sorted by their paths. Raises `UserError` if there are none."""
    folder = Path(sysconfig.get_path("stdlib"))
    is_empty = True
    for name in _stdlib_names(folder):
        text = (folder / name).read_bytes()
        try:
            text.decode()
        except UnicodeDecodeError:
            continue
        if text:
            is_empty = False
            yield Document(name, read_newlines(text, config.newlines))
    if is_empty:
        raise UserError(
            f"this Python has no sources of its standard library in {folder}: use data=files data.path=DIR"
        )


def _stdlib_names(folder: Path) -> list[str]:
    """Return the sorted paths below `folder` of the library's files, with `/` on every system."""
    names = []
    for parent, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name not in LEFT_OUT]
        names += [Path(parent, file).relative_to(folder).as_posix() for file in files if file.endswith(".py")]
    return sorted(name for name in names if name not in GENERATED and not name.startswith(GENERATED_PREFIXES))
