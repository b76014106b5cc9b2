"""Imports between folders point one way."""

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import pe_bench

PACKAGE = Path(pe_bench.__file__).parent


def module_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_of(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def imported(module: str) -> set[str]:
    """Every module of ours that a module names in an import, inside functions too."""
    found = set()
    for node in ast.walk(ast.parse(MODULES[module].read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: imports are spelled in full"
            base = node.module or ""
            members = {f"{base}.{alias.name}" for alias in node.names}
            # `from package import module` imports the module, `from module import name` does not.
            found |= (members & MODULES.keys()) or {base}
    return {name for name in found if name.split(".")[0] == "pe_bench"}


IMPORTS = {module: imported(module) for module in MODULES}
# Which folders each folder imports, from the ground up; a folder is above all that it imports.
ALLOWED = {
    "errors": "",
    "commands": "",
    "system": "errors",
    "values": "errors",
    "native": "errors system",
    "render": "errors system",
    "encodings": "errors system values native",
    "config": "errors system values encodings",
    "data": "errors system values config",
    "model": "errors system native encodings config",
    "runs": "errors system values config data model",
    "report": "errors system values render config runs",
    "scoring": "errors system values encodings config data model runs",
    "training": "errors system native config data model runs",
    "inspection": "errors system render encodings config data model scoring",
    "hf": "errors system values render encodings config data model runs scoring training",
    "trackers": "errors system config runs report training",
    "commands.job": "errors system encodings config data model runs scoring training hf",
    "commands.evaluate": "errors system values render encodings config runs report scoring training hf "
    "commands.job",
    "commands.export": "errors system config data model runs report scoring training hf commands.job",
    "commands.train": "errors system values config runs scoring training trackers commands.job",
    "commands.extend_hf": "errors system config data runs report scoring training hf commands.job "
    "commands.evaluate",
    "commands.show_run": "errors system render data model runs scoring inspection commands.job "
    "commands.evaluate",
    "commands.explain": "errors system values render encodings config data model runs report scoring "
    "commands.job commands.evaluate",
    "commands.sweep": "errors system config runs commands.job commands.train",
    "commands.try_change": "errors system values config runs report commands.evaluate commands.train",
    "commands.extend": "errors system values render config runs report scoring hf commands.job "
    "commands.evaluate commands.extend_hf commands.sweep",
    "commands.reproduce": "errors system values render config runs report scoring commands.evaluate "
    "commands.explain commands.sweep",
    "api": "errors system values config runs report commands.evaluate commands.train commands.try_change "
    "commands.explain commands.extend",
    "cli": "errors system values render config model runs report inspection hf commands.evaluate "
    "commands.explain commands.export commands.show_run commands.sweep commands.try_change "
    "commands.reproduce api",
    "__main__": "cli",
}


def folder_of(module: str) -> str:
    """The folder below pe_bench; each command is a folder of its own, so that the table holds them apart."""
    parts = module.split(".")
    if parts[1:2] == ["commands"]:
        return ".".join(parts[1:3])
    return parts[1] if len(parts) > 1 else ""


def test_a_folder_imports_exactly_what_the_table_allows() -> None:
    arrows: dict[str, set[str]] = {folder_of(module): set() for module in MODULES if folder_of(module)}
    for module, names in IMPORTS.items():
        if folder := folder_of(module):
            arrows[folder] |= {folder_of(name) for name in names} - {folder, ""}
    assert arrows == {folder: set(allowed.split()) for folder, allowed in ALLOWED.items()}


def test_no_module_imports_itself_through_others() -> None:
    TopologicalSorter(IMPORTS).prepare()


def test_the_files_of_the_model_import_no_compiled_code() -> None:
    for module in ("pe_bench.model.layers", "pe_bench.model.attention.reference"):
        assert not {name for name in IMPORTS[module] if "native" in name or "accelerate" in name}
