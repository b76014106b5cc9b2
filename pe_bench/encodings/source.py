"""The files of a custom encoding: its own, and those of its folder that it imports."""

import ast
import hashlib
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from pe_bench.errors import UserError
from pe_bench.system.files import write_atomically

NEVER_OF_A_FOLDER = {"", *sys.stdlib_module_names, "pe_bench"}


def find_file(location: str, search: Sequence[Path]) -> Path:
    """Return the file of a custom encoding, in the working folder or those of `search`."""
    location = os.path.expanduser(location)
    folders = [Path(), *(folder / inner for folder in search for inner in ("", "encoding"))]
    for folder in folders:
        if (folder / location).is_file():
            return (folder / location).resolve()
    searched = ", ".join(str(folder) for folder in folders)
    raise UserError(f"the encoding's file {location} was not found in: {searched}")


def digest(path: Path) -> str:
    """Return 16 characters of a hash of a file and of those that it imports from its folder."""
    first, *imported = sources(path)
    content = first.read_bytes()
    for other in imported:
        content += b"\0%s\0%s" % (other.relative_to(path.parent).as_posix().encode(), other.read_bytes())
    return hashlib.sha256(content).hexdigest()[:16]


def sources(path: Path) -> list[Path]:
    """Return a file, and those of its folder that it imports, directly or through one another."""
    files, todo = {path}, [path]
    while todo:
        names = _imported_names(todo.pop(), path.parent)
        todo += [file for name in names for file in _files_of(name, path.parent) if file not in files]
        files.update(todo)
    return [path, *sorted(files - {path})]


def copy_sources(path: Path, folder: Path) -> None:
    """Copy a file and those that it imports, byte for byte: `eval --code` compares their hash."""
    for file in sources(path):
        copy, content = folder / file.relative_to(path.parent), file.read_bytes()
        copy.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(copy, lambda temporary, content=content: temporary.write_bytes(content))


def _imported_names(file: Path, folder: Path) -> Iterator[str]:
    """Yield the dotted names, seen from `folder`, of all that a file imports."""
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):  # which loading it tells
        return
    package = file.parent.relative_to(folder).parts
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) + 1 - node.level] if node.level else ()
            module = ".".join([*above, *([node.module] if node.module else [])])
            yield from (module, *(f"{module}.{alias.name}".strip(".") for alias in node.names))


def _files_of(name: str, folder: Path) -> list[Path]:
    """Return the files of `folder` that importing a dotted name runs, those of its packages among them."""
    parts = name.split(".")
    if parts[0] in NEVER_OF_A_FOLDER:
        return []
    stems = [folder.joinpath(*parts[: count + 1]) for count in range(len(parts))]
    files = (file for stem in stems for file in (stem.with_suffix(".py"), stem / "__init__.py"))
    return list(filter(Path.is_file, files))
