"""The sources of the interpreter's own standard library: real text, already on every machine."""

import os
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from pe_bench.config.schema import DataConfig
from pe_bench.data.documents import Document, read_newlines
from pe_bench.errors import UserError

# Not the library itself: tests, other people's packages, applications, copies, and tables.
LEFT_OUT = {
    "test",
    "tests",
    "idle_test",
    "site-packages",
    "dist-packages",
    "__pycache__",
    "_bundled",
    "idlelib",
    "lib2to3",
    "encodings",
    "pydoc_data",
    "turtledemo",
}
GENERATED = {"html/entities.py", "keyword.py", "re/_casefix.py", "stringprep.py", "token.py"}
GENERATED_PREFIXES = ("_sysconfigdata", "config-")


def read(config: DataConfig) -> Iterator[Document]:
    """Yield documents, named and sorted by their paths. Raises `UserError` if there are none."""
    folder = Path(sysconfig.get_path("stdlib"))
    found = False
    for name in _names_in(folder):
        text = (folder / name).read_bytes()
        if text and _is_utf8(text):
            found = True
            yield Document(name, read_newlines(text, config.newlines))
    if not found:
        raise UserError(
            f"this Python has no sources of its standard library in {folder}: use data=files data.path=DIR"
        )


def _names_in(folder: Path) -> list[str]:
    """Return the sorted paths below `folder` of the library's files, with `/` on every system."""
    names = []
    for parent, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name not in LEFT_OUT]
        paths = [Path(parent, file).relative_to(folder).as_posix() for file in files if file.endswith(".py")]
        names += [path for path in paths if not _is_generated(path)]
    return sorted(names)


def _is_generated(name: str) -> bool:
    return name in GENERATED or name.startswith(GENERATED_PREFIXES)


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True
