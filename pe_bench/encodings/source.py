"""The files of a custom encoding: its own file, and files of its folder that it imports or opens."""

import ast
import hashlib
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from pe_bench.errors import UserError
from pe_bench.system.files import write_atomically

# First names of modules that are never searched in a custom encoding's folder.
NEVER_LOCAL = {"", *sys.stdlib_module_names, "pe_bench"}


def find_file(location: str, search: Sequence[Path]) -> Path:
    """Find the file of a custom encoding in the working folder or in the folders of `search`.

    location: the path in `location:Class`. Raises `UserError` for a missing file.
    """
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
    """Return 16 characters of a hash of all `covered_files`: contents, and the names of files but `path`.

    opened: files of the folder that were opened during the import; missing files are left out.
    """
    first, *others = covered_files(path, opened)
    content = hashlib.sha256(first.read_bytes())
    for other in others:
        name = other.relative_to(path.parent).as_posix()
        content.update(b"\0%s\0" % name.encode())
        content.update(other.read_bytes())
    return content.hexdigest()[:16]


def covered_files(path: Path, opened: Iterable[Path] = ()) -> list[Path]:
    """Return the files that the identity of a custom encoding covers: its own file `path` first.

    opened: files that were opened during the import; missing files are left out.
    """
    first, *imported = own_and_imported_files(path)
    others = {*imported, *filter(Path.is_file, opened)}
    return [first, *sorted(others - {first})]


def named_files(path: Path, names: Any) -> list[Path]:
    """Return the files of an encoding's folder with these names, such as `tables/slopes.json`.

    Names may come from a stranger's run: names outside of the folder are left out, and an object that is no
    list of names gives no files.
    """
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        return []
    files: list[Path] = []
    for name in map(Path, names):
        if not name.is_absolute() and ".." not in name.parts:
            files.append(path.parent / name)
    return files


def own_and_imported_files(path: Path) -> list[Path]:
    """Return the file of a custom encoding, and the files of its folder that it imports, also indirectly."""
    files = {path}
    todo = [path]
    while todo:
        for name in _imported_names(todo.pop(), path.parent):
            imported = _files_of(name, path.parent)
            todo += [file for file in imported if file not in files]
            files.update(todo)
    return [path, *sorted(files - {path})]


def copy_files(files: Sequence[Path], folder: Path) -> None:
    """Copy an encoding's files to `folder`, at their places relative to its own file, the first of `files`.

    The copies are equal byte for byte, because `eval --code` compares hashes.
    """
    for file in files:
        copy = folder / file.relative_to(files[0].parent)
        content = file.read_bytes()
        copy.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(copy, lambda temporary, content=content: temporary.write_bytes(content))


def package_of(folder: Path) -> str:
    """Return the dotted name of a folder with `__init__.py`; empty for other folders."""
    package_names: list[str] = []
    while (folder / "__init__.py").is_file():
        package_names.insert(0, folder.name)
        folder = folder.parent
    if not package_names or package_names[0] in NEVER_LOCAL:
        return ""
    return ".".join(package_names)


def _imported_names(file: Path, folder: Path) -> Iterator[str]:
    """Yield the dotted names, relative to `folder`, of all imports of a file."""
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):  # reported when the file is loaded
        return
    package = file.parent.relative_to(folder).parts
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) + 1 - node.level] if node.level else ()
            parts = [*above, node.module or ""]
            module = ".".join(parts).strip(".")
            yield module
            for alias in node.names:
                yield f"{module}.{alias.name}".strip(".")


def _files_of(name: str, folder: Path) -> list[Path]:
    """Return the files of `folder` that the import of a dotted name runs, with `__init__.py` of packages."""
    package = package_of(folder)
    if package and f"{name}.".startswith(f"{package}."):
        inner = name.removeprefix(package).removeprefix(".")
        return [folder / "__init__.py", *(_files_of(inner, folder) if inner else [])]
    parts = name.split(".")
    if parts[0] in NEVER_LOCAL:
        return []
    files: list[Path] = []
    stem = folder
    for part in parts:
        stem = stem / part
        files += [stem.with_suffix(".py"), stem / "__init__.py"]
    return list(filter(Path.is_file, files))
