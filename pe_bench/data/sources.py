"""Documents from files and from Python's standard library; hub.py reads documents of the Hub."""

import codecs
import gzip
import hashlib
import json
import os
import sysconfig
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pe_bench.config.schema import DataConfig
from pe_bench.errors import UserError, first_line, require
from pe_bench.values import expand_user

MAX_NAMED_FILES = 10  # unreadable files in one message
UNREADABLE_HINT = "convert them, or take them out of the folder"
NO_TEXT_HINT = "convert them, take them out of the folder, or say data.encoding=NAME, such as latin-1"
JSON_SUFFIXES = (".json", ".jsonl", ".ndjson", ".json.gz", ".jsonl.gz", ".ndjson.gz")
# The first bytes of files by gzip, zip, bzip2, xz and Zstandard, which `data.encoding=latin-1` would decode.
COMPRESSED = (
    *(b"\x1f\x8b", b"PK\x03\x04", b"\xfd7zXZ\0", b"\x28\xb5\x2f\xfd"),
    *(b"BZh%d1AY&SY" % level for level in range(1, 10)),
)
PARQUET_ROWS = 256  # the rows of Parquet that are in memory at once
# Folders with tests, other people's packages, applications, copies and tables.
STDLIB_FOLDERS_LEFT_OUT = {
    *("test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__", "_bundled"),
    *("idlelib", "lib2to3", "encodings", "pydoc_data", "turtledemo"),
}
STDLIB_GENERATED_FILES = {"html/entities.py", "keyword.py", "re/_casefix.py", "stringprep.py", "token.py"}
STDLIB_GENERATED_PREFIXES = ("_sysconfigdata", "config-")


@dataclass(frozen=True)
class Document:
    """A text with its name."""

    name: str  # the name for messages
    text: bytes  # valid UTF-8

    @cached_property
    def sha256(self) -> str:
        return hashlib.sha256(self.text).hexdigest()


def within_budget(documents: Iterable[Document], byte_budget: int | None) -> Iterator[Document]:
    """Yield documents of at most `byte_budget` bytes in total; the last document is cut to fit."""
    if byte_budget is None:
        yield from documents
        return
    left = byte_budget
    for document in documents:
        text = document.text[: character_boundary(document.text, left)]
        if text:
            yield Document(document.name, text)
        left -= len(document.text)
        if left <= 0:
            return


def character_boundary(text: bytes, position: int) -> int:
    """Return the last index, at most `position`, at which a cut splits no UTF-8 character."""
    while 0 < position < len(text):
        is_inside_character = text[position] & 0xC0 == 0x80
        if not is_inside_character:
            break
        position -= 1
    return position


def normalise_newlines(text: bytes, newlines: str) -> bytes:
    r"""Return a text with `\n` for every line end and without a byte-order mark; `keep` changes nothing.

    Line ends and marks come from the machine that wrote the text: a model would learn them and be scored on
    them.
    """
    if newlines == "keep":
        return text
    return text.removeprefix(codecs.BOM_UTF8).replace(b"\r\n", b"\n").replace(b"\r", b"\n")


# Files: a text file is a document, and so is a row of a JSON lines or Parquet file.


class UnreadableError(Exception):
    """Raised for a file without the format of its name; the text says why."""


class NoTextError(UnreadableError):
    """Raised for a text file that is not of `data.encoding`."""


def read_files(path: str, config: DataConfig, key: str) -> Iterator[Document]:
    """Yield every document under `path`, a folder or one file, in the order of the names.

    Hidden files and empty files are skipped. Raises `UserError`, with `key` in its text, for a path that
    is missing, a file that is not text, or no text at all.
    """
    root = Path(expand_user(path, f"{key}="))
    if not root.exists():
        where = "" if root.is_absolute() else f" in {Path.cwd()}"
        raise UserError(f"{key}={path} does not exist{where}: name a folder of text files, or one file")
    is_empty = True
    problems: list[str] = []
    hint = UNREADABLE_HINT
    files = {root.name: root}
    if root.is_dir():
        files = {file.relative_to(root).as_posix(): file for file in files_in(root)}
    for name, file in files.items():
        try:
            for document in _documents_in(file, name, config):
                if document.text and not problems:
                    is_empty = False
                    yield document
        except UnreadableError as error:  # one message names all such files
            problems.append(f"{name} ({error})")
            if isinstance(error, NoTextError):
                hint = NO_TEXT_HINT
    if problems:
        names = ", ".join(problems[:MAX_NAMED_FILES])
        message = f"{key}={path}: {len(problems)} of its files cannot be read: {names}"
        raise UserError(f"{message}: {hint}")
    if is_empty:
        raise UserError(f"{key}={path} holds no text (hidden files are ignored): put text files into it")


def files_in(folder: Path) -> list[Path]:
    """Return the files below a folder in the order of their names, without hidden files and folders.

    Symbolic links to folders are followed. Each folder is read once, so links may lead back to it.
    """

    def raise_error(error: OSError) -> None:
        raise error

    paths: list[Path] = []
    read: set[str] = set()  # real paths of folders
    starts = [folder]  # links follow, which os.walk does not enter
    for start in starts:
        for parent, folders, names in os.walk(start, onerror=raise_error):
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            real = os.path.realpath(parent)
            if real in read:
                folders.clear()
                continue
            read.add(real)
            inner = [Path(parent, name) for name in folders]
            starts += filter(Path.is_symlink, inner)
            shown = [name for name in names if not name.startswith(".")]
            paths += [Path(parent, name) for name in shown]
    files = filter(Path.is_file, paths)
    return sorted(files, key=lambda path: path.relative_to(folder).as_posix())


def is_among_files_of(folder: Path, text: Path) -> bool:
    """Return whether `files_in(text)` finds what lies in a folder, which need not exist yet."""
    real, of_text = Path(os.path.realpath(folder)), Path(os.path.realpath(text))
    if not real.is_relative_to(of_text):
        return False
    return not any(part.startswith(".") for part in real.relative_to(of_text).parts)


def _documents_in(path: Path, name: str, config: DataConfig) -> Iterator[Document]:
    """Yield the document of a text file, or the documents in the rows of a JSON or Parquet file.

    name: the name of the file in the names of documents. Raises `UnreadableError`, or `UserError` for a row
    without text.
    """
    kind = f"{config.encoding} text"
    rows = None
    lower_name = path.name.lower()
    if lower_name.endswith(JSON_SUFFIXES):
        kind = "json"
        rows = _json_rows(path)
    elif lower_name.endswith(".parquet"):
        kind = "parquet"
        rows = _parquet_rows(path, config.text_column)
    try:
        if rows is None:
            content = path.read_bytes()
            if content.startswith(COMPRESSED):
                raise UnreadableError("a compressed file")
            text = content.decode(config.encoding).encode()
            if b"\0" in text:
                raise ValueError(f"byte {text.index(0)} is zero")
            yield Document(name, normalise_newlines(text, config.newlines))
            return
        for row, values in enumerate(rows):
            text = row_text(values, config, f"{path}, row {row},")
            yield Document(f"{name}:{row}", text)
    except (UserError, UnreadableError):
        raise
    except Exception as error:  # json, gzip and pyarrow each raise their own kinds
        reason = f"byte {error.start}" if isinstance(error, UnicodeDecodeError) else first_line(error)
        error_class = NoTextError if rows is None else UnreadableError
        raise error_class(f"not {kind}: {reason}") from error


def _parquet_rows(path: Path, text_column: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of a Parquet file, with the column `text_column` alone if the file has it.

    Rows are read in this thread: `datasets` would leave threads, and Python would end with SIGABRT.
    """
    import pyarrow.parquet

    with pyarrow.parquet.ParquetFile(path) as file:
        # If the column is missing, the error message needs all columns.
        columns = [text_column] if text_column in file.schema_arrow.names else None
        for batch in file.iter_batches(PARQUET_ROWS, columns=columns, use_threads=False):
            yield from batch.to_pylist()


def _json_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a file of JSON lines, or of a JSON list of rows. Raises `ValueError`."""
    open_text = gzip.open if path.suffix.lower() == ".gz" else open
    with open_text(path, "rt", encoding="utf-8-sig") as file:
        first = file.read(1)
        while first.isspace():
            first = file.read(1)
        is_list = first == "["
        file.seek(0)
        rows: Iterable[Any] = json.load(file) if is_list else _json_lines(file)
        for row in rows:
            if not isinstance(row, dict):
                raise ValueError('a row is not an object, such as {"text": ...}')
            yield row


def _json_lines(lines: Iterable[str]) -> Iterator[Any]:
    """Yield the value of each line that is not blank. Raises `ValueError` with the line's number."""
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                yield json.loads(line.rstrip())
            except json.JSONDecodeError as error:
                raise ValueError(f"{error.msg} in line {number}, column {error.colno}") from error


def row_text(values: dict[str, Any], config: DataConfig, where: str) -> bytes:
    """Return the bytes of one row's text; empty for a row with null.

    where: the file or split of the row, for messages. Raises `UserError` if its column is missing or no text.
    """
    column = config.text_column
    require(bool(values), f"{where} is empty and has no column '{column}': take the row out")
    way_out = f"set data.text_column to one of {', '.join(values)}"
    require(column in values, f"{where} has no column '{column}': {way_out}")
    text = values[column]
    message = f"{where} holds {type(text).__name__} in column '{column}', not text: set data.text_column"
    require(isinstance(text, str | None), message)
    return normalise_newlines((text or "").encode(), config.newlines)


# The source code of Python's standard library: real text on every machine.


def read_stdlib(config: DataConfig) -> Iterator[Document]:
    """Yield the files of Python's standard library as documents, named and sorted by their paths.

    Paths have `/` on every system.
    """
    root = Path(sysconfig.get_path("stdlib"))
    names: list[str] = []
    for parent, folders, files in os.walk(root):
        folders[:] = [name for name in folders if name not in STDLIB_FOLDERS_LEFT_OUT]
        folder = Path(parent).relative_to(root)
        names += [(folder / file).as_posix() for file in files if file.endswith(".py")]
    for name in sorted(names):
        text = (root / name).read_bytes()
        if not text or name in STDLIB_GENERATED_FILES or name.startswith(STDLIB_GENERATED_PREFIXES):
            continue
        with suppress(UnicodeDecodeError):
            text.decode()
            yield Document(name, normalise_newlines(text, config.newlines))
