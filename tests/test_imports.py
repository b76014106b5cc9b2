"""Imports between folders point one way, and the command line starts without heavy imports."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import pe_bench
from pe_bench.config.groups import config_dir

PACKAGE = Path(pe_bench.__file__).parent
HEAVY = ("torch", "datasets", "pandas", "matplotlib", "scipy", "hydra", "transformers")


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


def compared_texts(source: str) -> Iterator[tuple[int, str]]:
    """Yield (line, text) of every text that something is compared with, matched against or looked up by."""
    for node in ast.walk(ast.parse(source)):
        parts: list[Any] = []
        if isinstance(node, ast.Compare):
            parts = [node.left, *node.comparators]
        elif isinstance(node, ast.MatchValue):
            parts = [node.value]
        elif isinstance(node, ast.Dict):
            parts = [key for key in node.keys if key is not None]
        for inner in (inner for part in parts for inner in ast.walk(part)):
            if isinstance(inner, ast.Constant) and isinstance(inner.value, str):
                yield inner.lineno, inner.value


def test_no_code_outside_encodings_decides_by_an_encoding_s_name() -> None:
    names = {path.stem for group in ("encoding", "modifier") for path in config_dir().glob(f"{group}/*.yaml")}
    assert {"rope", "alibi", "logn"} <= names
    deciding = [
        f"{path.relative_to(PACKAGE)}:{line}: {text}"
        for module, path in MODULES.items()
        if folder_of(module) != "encodings"
        for line, text in compared_texts(path.read_text(encoding="utf-8"))
        if text in names
    ]
    assert deciding == []


def test_a_command_line_is_read_without_heavy_imports() -> None:
    light = ("cli", "config.schema", "config.compose", "cli.completion")
    code = f"""
import sys
import {", ".join(f"pe_bench.{name}" for name in light)}
print(sorted({{name.split(".")[0] for name in sys.modules}} & {set(HEAVY)!r}))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"
