"""Python modules of a custom encoding's folder, loaded under a private name for each version of the folder.

`sys.modules` has one module for each name, so two versions of `mine.py` would share one `helper`. Here each
version is a `LoadedFolder`: a private package whose modules have their own `__import__`. It finds modules of
the folder under the package's name (`pe_bench_code_0.helper`), also when a hook imports them, and leaves all
other imports to Python. `importlib.import_module` and `importlib.util.spec_from_file_location` do the same in
such modules.
"""

import builtins
import importlib
import importlib.util
import itertools
import os
import re
import site
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.machinery import (
    EXTENSION_SUFFIXES,
    ExtensionFileLoader,
    FileFinder,
    ModuleSpec,
    SourceFileLoader,
)
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

from pe_bench.encodings.source import NEVER_LOCAL, own_and_imported_files, package_of

OUTSIDE_MODULE = "pe_bench_code_"
PRIVATE_NAME = re.compile(rf"\b{OUTSIDE_MODULE}\d+\.")
# Audit events of an opened file; the first argument is the file's path.
OPENING_EVENTS = ("open", "sqlite3.connect", "ctypes.dlopen")
PACKAGE_FOLDER = Path(__file__).parents[1]
_COUNT = itertools.count()
_LOADED_FOLDERS: dict[str, "LoadedFolder"] = {}


class LoadedFolder:
    """One version of a custom encoding's folder, whose modules are loaded under private names.

    path: the encoding's own file, in this folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.folder = path.parent
        self.package = package_of(self.folder)
        self.name = f"{OUTSIDE_MODULE}{next(_COUNT)}"
        # Files of the folder opened during the import of the encoding's file, missing files among them.
        self.opened: set[Path] = set()
        # Files of the folder opened after the import, as in a hook, with the classes that opened each.
        self.opened_later: dict[Path, set[type]] = {}
        # Contents of the files that import statements name: a file may change before a hook imports it.
        self.texts = {file: file.read_bytes() for file in own_and_imported_files(path)}
        self.is_importing = False
        self.builtins: dict[str, Any] = {**vars(builtins), "__import__": self.import_}
        self._importlib = _Importlib(self)
        self._util = _Util(self)

    def load(self) -> ModuleType:
        """Run the encoding's file and return its module. Exceptions of the file pass through."""
        _watch_opened_files()
        _LOADED_FOLDERS[self.name] = self
        root = ModuleType(self.name)
        root.__path__ = [str(self.folder)]
        root.__spec__ = ModuleSpec(self.name, None, is_package=True)
        root.__spec__.submodule_search_locations = root.__path__
        vars(root)["__builtins__"] = self.builtins
        sys.modules[self.name] = root
        # Python would take a dot in the module's name for a package.
        module_name = f"{self.name}.{self.path.stem.replace('.', '_')}"
        self.is_importing = True
        try:
            return self._run_module(self.spec_of_file(module_name, self.path))
        except BaseException:
            self.forget()
            raise
        finally:
            self.is_importing = False

    def forget(self) -> None:
        """Remove the modules of this version from the process."""
        for name in [*sys.modules]:
            if f"{name}.".startswith(f"{self.name}."):
                del sys.modules[name]
        del _LOADED_FOLDERS[self.name]

    def import_(
        self,
        name: str,
        globals: Mapping[str, Any] | None = None,  # noqa: A002  (names of `__import__`)
        locals: Mapping[str, Any] | None = None,  # noqa: A002
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> Any:
        """Do what `__import__` does, for code of this version of the folder.

        The folder's own modules are imported under this version's private names.
        """
        private = None if level else self.private_name(name)
        full_name = private or name
        try:
            module = builtins.__import__(full_name, globals, locals, fromlist or (), level)
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(public_text(str(error)), name=error.name, path=error.path) from None
        if private and not fromlist:
            return self._outermost(name)
        return self.stand_in(module)

    def private_name(self, name: str) -> str | None:
        """Return the private name of a module of the folder; None for every other module.

        A name within the folder's package runs the package first.
        """
        if self._is_in_package(name):
            self._run_package()
            return self.name + name.removeprefix(self.package)
        first, _, _ = name.partition(".")
        return f"{self.name}.{name}" if self._has_module(first) else None

    def stand_in(self, module: ModuleType) -> Any:
        """Return the module itself, or this version's substitute for `importlib` or `importlib.util`."""
        if module is importlib:
            return self._importlib
        return self._util if module is importlib.util else module

    def spec_of_file(self, name: str, path: Path) -> ModuleSpec:
        """Return the specification of a module in a file of the folder."""
        spec = importlib.util.spec_from_file_location(name, path, loader=_Loader(name, str(path)))
        assert spec is not None
        return spec

    def record_opened(self, path: Path) -> None:
        """Record that code of this version opens a file, if the file is in the folder."""
        if not _is_in_folder(path, self.folder):
            return
        if self.is_importing:
            self.opened.add(path)
        else:
            callers = {type(frame.f_locals.get("self")) for frame in _callers()}
            classes = {each for each in callers if loaded_folder_of(each) is self}
            self.opened_later.setdefault(path, set()).update(classes)

    def _run_module(self, spec: ModuleSpec) -> ModuleType:
        """Create the module of a specification, run its code, and return it."""
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        assert spec.loader is not None
        spec.loader.exec_module(module)
        return module

    def _is_in_package(self, name: str) -> bool:
        """Return true if a dotted name is the folder's package or a module of it."""
        return bool(self.package) and f"{name}.".startswith(f"{self.package}.")

    def _has_module(self, first: str) -> bool:
        """Return true if the folder has a module or a package of this name, which has no dots."""
        if first in NEVER_LOCAL:
            return False
        private = f"{self.name}.{first}"
        if private in sys.modules:
            return True
        spec = _spec_in_folders(private, self._search_path())
        if spec is None or spec.loader is not None:
            return spec is not None
        return not _is_installed(first)  # an installed package comes before a folder without __init__.py

    def _search_path(self) -> list[str]:
        """Set and return the package's search path: the folder, and folders in it that are in `sys.path`."""
        paths = [path for path in sys.path if path]
        added = [path for path in paths if _is_in_folder(Path(path), self.folder)]
        folders = [str(self.folder), *dict.fromkeys(added)]
        sys.modules[self.name].__path__ = folders
        return folders

    def _run_package(self) -> None:
        """Run the folder's `__init__.py`, once."""
        file = self.folder / "__init__.py"
        root = sys.modules[self.name]
        if root.__spec__ is not None and root.__spec__.loader is None:
            root.__spec__.loader = loader = _Loader(self.name, str(file))
            root.__file__ = str(file)
            loader.exec_module(root)

    def _outermost(self, name: str) -> Any:
        """Return the module that the statement `import name` binds: `a` for the dotted name `a.b`."""
        if not self._is_in_package(name):
            first, _, _ = name.partition(".")
            return sys.modules[f"{self.name}.{first}"]
        module = sys.modules[self.name]
        for part in reversed(self.package.split(".")[1:]):
            outer = ModuleType(self.package.split(f".{part}")[0])
            setattr(outer, part, module)
            module = outer
        return module


class _Loader(SourceFileLoader):
    """Runs a file of a folder from its text, because Python's cached bytecode may be of an earlier text."""

    def exec_module(self, module: ModuleType) -> None:
        # Code may load a module under a name of its own choice, which names no folder.
        loaded_folder = loaded_folder_of(module) or _loaded_folder_of_caller()
        assert loaded_folder is not None
        path = Path(self.path)
        loaded_folder.record_opened(path)
        vars(module)["__builtins__"] = loaded_folder.builtins
        text = loaded_folder.texts[path] if path in loaded_folder.texts else path.read_bytes()
        exec(self.source_to_code(text, self.path), vars(module))


class _Finder:
    """Finds modules of loaded folders, for Python's own import of their private names."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: object = None) -> ModuleSpec | None:
        if not name.startswith(OUTSIDE_MODULE) or path is None:
            return None
        return _spec_in_folders(name, path)


def _spec_in_folders(name: str, folders: Sequence[str]) -> ModuleSpec | None:
    """Return the specification of a private name in one of the folders, read anew; None without one."""
    found = None
    for folder in folders:
        # A new finder each time: a `FileFinder` caches its folder, and misses younger files.
        finder = FileFinder(folder, (ExtensionFileLoader, EXTENSION_SUFFIXES), (_Loader, [".py"]))
        spec = finder.find_spec(name)
        if spec is not None and spec.loader is not None:
            return spec
        found = found or spec
    return found


class _Importlib(ModuleType):
    """`importlib`, as modules of a loaded folder see it."""

    def __init__(self, loaded_folder: LoadedFolder) -> None:
        super().__init__("importlib")
        self._folder = loaded_folder

    def __getattr__(self, name: str) -> Any:
        value = getattr(importlib, name)
        return self._folder.stand_in(value) if isinstance(value, ModuleType) else value

    def import_module(self, name: str, package: str | None = None) -> ModuleType:
        full = importlib.util.resolve_name(name, package)
        return importlib.import_module(self._folder.private_name(full) or full)


class _Util(ModuleType):
    """`importlib.util`, as modules of a loaded folder see it."""

    def __init__(self, loaded_folder: LoadedFolder) -> None:
        super().__init__("importlib.util")
        self._folder = loaded_folder

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.util, name)

    def spec_from_file_location(self, name: str, location: Any = None, **options: Any) -> ModuleSpec | None:
        path = None if location is None or options else _absolute(location)
        if path is not None and path.suffix == ".py" and _is_in_folder(path, self._folder.folder):
            return self._folder.spec_of_file(name, path)
        return importlib.util.spec_from_file_location(name, location, **options)


def loaded_folder_of(module: ModuleType | type) -> LoadedFolder | None:
    """Return the loaded folder that a module or a class comes from; None for all other modules."""
    name = module.__module__ if isinstance(module, type) else module.__name__
    return _LOADED_FOLDERS.get(name.partition(".")[0])


def public_text(text: str) -> str:
    """Return a message without the private prefixes of modules."""
    return PRIVATE_NAME.sub("", text)


def _is_installed(name: str) -> bool:
    """Return true if Python finds a module or a package with `__init__.py` of this name."""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return name in sys.modules
    return spec is not None and spec.origin is not None


def _is_in_folder(path: Path, folder: Path) -> bool:
    """Return true if a path is within a folder, and not within a library or a hidden folder there."""
    if not path.is_relative_to(folder) or path == folder:
        return False
    inner = path.relative_to(folder).parts
    is_hidden = any(part.startswith(".") for part in inner[:-1])
    if is_hidden or "site-packages" in inner:
        return False
    libraries = [PACKAGE_FOLDER, *map(Path, (sys.prefix, *site.getsitepackages()))]
    libraries_inside = [library for library in libraries if library.is_relative_to(folder)]
    return not any(path.is_relative_to(library) for library in libraries_inside)


def _absolute(file: Any) -> Path | None:
    """Return the absolute path of a file that code opens; None for an object that is no path.

    Symbolic links to folders are resolved; a link to a file is kept, because the folder contains the link. A
    .pyc file in a cache becomes its source.
    """
    if not isinstance(file, (str, bytes, os.PathLike)):
        return None
    absolute = os.path.abspath(os.fsdecode(file))
    folder, name = os.path.split(absolute)
    path = Path(os.path.realpath(folder), name)
    if path.suffix == ".pyc":
        try:
            return Path(importlib.util.source_from_cache(path))
        except ValueError:
            return path
    return path


# The interpreter reports every file that it opens. An audit hook cannot be removed: all folders share one.


def _watch_opened_files() -> None:
    """Begin to record files that code of loaded folders opens, and to find modules of loaded folders."""
    if _Finder not in sys.meta_path:
        sys.meta_path.insert(0, _Finder)
        sys.addaudithook(_note_opened)


def _note_opened(event: str, arguments: tuple[Any, ...]) -> None:
    """Record a file that code of a loaded folder opens, unless only for writing. An audit hook of Python."""
    if event not in OPENING_EVENTS:
        return
    flags = arguments[2] if event == "open" else None
    if isinstance(flags, int) and flags & os.O_WRONLY:
        return
    path = _absolute(arguments[0])
    folders = [loaded_folder.folder for loaded_folder in _LOADED_FOLDERS.values()]
    if path is None or not any(map(path.is_relative_to, folders)):
        return
    loaded_folder = _loaded_folder_of_caller()
    if loaded_folder is not None:
        loaded_folder.record_opened(path)


def _loaded_folder_of_caller() -> LoadedFolder | None:
    """Return the loaded folder of the innermost caller; None also for code that a library's import runs."""
    for frame in _callers():
        loaded_folder = getattr(frame.f_builtins.get("__import__"), "__self__", None)
        if isinstance(loaded_folder, LoadedFolder):
            return loaded_folder
        if frame.f_code.co_name == "_find_and_load":
            return None
    return None


def _callers() -> Iterator[FrameType]:
    """Yield the frames of all running functions, the innermost first."""
    frame = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back
