"""Imports between folders point one way, and the command line starts without heavy imports."""

import ast
from functools import cache
from pathlib import Path

import pytest

import pe_bench

PACKAGE = Path(pe_bench.__file__).parent


def module_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_of(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def imported(source: str, module: str) -> set[str]:
    """Every module that a file names in an import, inside functions too."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: imports are spelled in full"
            base = node.module or ""
            members = {f"{base}.{alias.name}" for alias in node.names}
            # `from package import module` imports the module, `from module import name` does not.
            found |= (members & MODULES.keys()) or {base}
    return found


@cache
def own_imports(module: str) -> frozenset[str]:
    found = imported(MODULES[module].read_text(encoding="utf-8"), module)
    return frozenset(name for name in found if name.split(".")[0] == "pe_bench")


@cache
def reachable(module: str) -> frozenset[str]:
    """All that it imports, directly or through others."""
    found: set[str] = set()
    waiting = [module]
    while waiting:
        new = own_imports(waiting.pop()) - found
        found |= new
        waiting += new & MODULES.keys()
    return frozenset(found)


# Which folders each folder may import, from the ground up; a folder is above all that it imports.
ALLOWED = {
    "errors": "",
    "values": "errors",
    "system": "errors",
    "native": "errors system",
    "encodings": "errors values system native",
    "config": "errors values system encodings",
    "plot": "errors system",
    "data": "errors values system config",
    "model": "errors system config native encodings",
    "runs": "errors values system config data model",
    "training": "errors system config data native model runs",
    "scoring": "errors values system config encodings data model runs",
    "checkpoints": "errors values system config encodings data model runs scoring",
    "report": "errors values system config plot runs",
    "inspection": "errors values system config encodings plot data model scoring",
    "trackers": "errors system config runs report training",
    "experiment": "errors system config encodings data model runs training scoring checkpoints trackers",
    "export": "errors system config data model runs report training checkpoints experiment",
    "scored": "errors values system config runs scoring checkpoints report experiment",
    "tries": "errors values system config runs report experiment scored",
    "sweep": "errors system config experiment",
    "studies": "errors values system config runs scoring report scored sweep",
    "extended": "errors values system config report runs scoring experiment scored sweep",
    "api": "errors values system config runs report experiment scored tries extended",
    "cli": "errors values system config plot model runs report inspection "
    "checkpoints export scored tries api sweep studies",
    "__main__": "cli",
}


def folder_of(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def arrows(folder: str) -> set[str]:
    """The other folders that a folder imports."""
    members = [module for module in MODULES if folder_of(module) == folder]
    return {folder_of(name) for module in members for name in own_imports(module)} - {folder, ""}


def test_the_table_names_every_folder_and_nothing_else() -> None:
    assert {folder_of(module) for module in MODULES} - {""} == ALLOWED.keys()


@pytest.mark.parametrize("folder", ALLOWED)
def test_a_folder_imports_exactly_what_the_table_allows(folder: str) -> None:
    assert arrows(folder) == set(ALLOWED[folder].split())


def test_no_module_imports_itself_through_others() -> None:
    assert [module for module in MODULES if module in reachable(module)] == []
