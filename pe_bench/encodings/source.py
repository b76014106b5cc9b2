"""The files of a custom encoding: its own, and those of its folder that it imports or opens."""

import ast
import hashlib
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from pe_bench.errors import UserError
from pe_bench.system.files import write_atomically

NEVER_OF_A_FOLDER = {"", *sys.stdlib_module_names, "pe_bench"}


def find_file(location: str, search: Sequence[Path]) -> Path:
    """Return the file of a custom encoding, in the working folder or those of `search`."""
    location = os.path.expanduser(location)
    folders = [Path()]
    for folder in search:
        folders += [folder, folder / "encoding"]
    for folder in folders:
        if (folder / location).is_file():
            return (folder / location).resolve()
    searched = ", ".join(str(folder) for folder in folders)
    raise UserError(f"the encoding's file {location} was not found in: {searched}")


def digest(path: Path, opened: Iterable[Path] = ()) -> str:
    """Return 16 characters of a hash of a file, of those that it imports from its folder, and of `opened`.

    opened: files of the folder that it opens while it is imported; those that do not exist are left out.
    """
    first, *others = covered_files(path, opened)
    content = hashlib.sha256(first.read_bytes())
    for other in others:
        content.update(b"\0%s\0" % other.relative_to(path.parent).as_posix().encode())
        content.update(other.read_bytes())
    return content.hexdigest()[:16]


def covered_files(path: Path, opened: Iterable[Path] = ()) -> list[Path]:
    """Return the files that the identity of a custom encoding covers, its own first."""
    first, *imported = sources(path)
    return [first, *sorted({*imported, *filter(Path.is_file, opened)} - {first})]


def named_files(path: Path, names: Any) -> list[Path]:
    """Return the files of an encoding's folder with these names, such as `tables/slopes.json`.

    The names may be a stranger's: what is no list of names within the folder gives no files.
    """
    is_list = isinstance(names, list) and all(isinstance(name, str) for name in names)
    inner = [Path(name) for name in names] if is_list else []
    return [path.parent / name for name in inner if not name.is_absolute() and ".." not in name.parts]


def sources(path: Path) -> list[Path]:
    """Return a file, and those of its folder that it imports, directly or through one another."""
    files = {path}
    todo = [path]
    while todo:
        for name in _imported_names(todo.pop(), path.parent):
            todo += [file for file in _files_of(name, path.parent) if file not in files]
            files.update(todo)
    return [path, *sorted(files - {path})]


def copy_files(files: Sequence[Path], folder: Path) -> None:
    """Copy the files of an encoding, its own first, byte for byte: `eval --code` compares their hash."""
    for file in files:
        copy = folder / file.relative_to(files[0].parent)
        content = file.read_bytes()
        copy.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(copy, lambda temporary, content=content: temporary.write_bytes(content))


def package_of(folder: Path) -> str:
    """Return the dotted name of the package that a folder is, which has `__init__.py`; empty for others."""
    names: list[str] = []
    while (folder / "__init__.py").is_file():
        names.insert(0, folder.name)
        folder = folder.parent
    return "" if not names or names[0] in NEVER_OF_A_FOLDER else ".".join(names)


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
    package = package_of(folder)
    if package and f"{name}.".startswith(f"{package}."):
        inner = name.removeprefix(package).removeprefix(".")
        return [folder / "__init__.py", *(_files_of(inner, folder) if inner else [])]
    parts = name.split(".")
    if parts[0] in NEVER_OF_A_FOLDER:
        return []
    stems = [folder.joinpath(*parts[: count + 1]) for count in range(len(parts))]
    files: list[Path] = []
    for stem in stems:
        files += [stem.with_suffix(".py"), stem / "__init__.py"]
    return list(filter(Path.is_file, files))
