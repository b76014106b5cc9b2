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
    "checkpoints": "errors values system config encodings data model runs training scoring",
    "report": "errors values system config plot runs",
    "inspection": "errors system config encodings plot data model scoring",
    "trackers": "errors system config runs report training",
    "experiment": "errors values system config encodings data model runs training scoring checkpoints "
    "trackers",
    "export": "errors system config data model runs scoring report training checkpoints experiment",
    "scored": "errors values system config runs scoring checkpoints report experiment",
    "tries": "errors values system config runs report experiment scored",
    "sweep": "errors system config runs experiment",
    "studies": "errors values system config plot runs scoring report scored sweep",
    "extend_checkpoint": "errors system config data runs training scoring checkpoints report scored",
    "extended": "errors values system config report runs scoring experiment scored sweep extend_checkpoint",
    "api": "errors values system config runs report experiment scored tries extended",
    "cli": "errors values system config plot model runs report inspection "
    "checkpoints export scored tries api sweep studies",
    "__main__": "cli",
}


def folder_of(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


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
