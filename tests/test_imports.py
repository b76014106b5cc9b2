"""Data flows one way, and a folder on disk lies between the stages: the imports say so."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import pe_bench
from pe_bench.config import config_dir

PACKAGE = Path(pe_bench.__file__).parent
HEAVY = ("torch", "datasets", "pandas", "matplotlib", "scipy", "hydra")


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


def inside(module: str, *packages: str) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def members(*packages: str) -> list[str]:
    found = [module for module in MODULES if inside(module, *packages)]
    assert found, f"{packages} are no modules"
    return found


def crossings(importers: tuple[str, ...], imports: tuple[str, ...], through: bool = True) -> list[str]:
    members(*imports)  # a module that was renamed may not pass
    find = reachable if through else own_imports
    return [
        f"{module} -> {name}"
        for module in members(*importers)
        for name in find(module)
        if inside(name, *imports)
    ]


def test_imports_are_found_wherever_they_stand() -> None:
    source = """
import torch.nn as nn, json
from pe_bench import loss
from pe_bench.data.packed import Data
def later():
    from pe_bench.train import train
    import pe_bench.report
"""
    found = {
        "torch.nn",
        "json",
        "pe_bench.loss",
        "pe_bench.data.packed",
        "pe_bench.train",
        "pe_bench.report",
    }
    assert imported(source, "example") == found
    assert "pe_bench.loss" in own_imports("pe_bench.train")
    assert "pe_bench.encodings.base" in reachable("pe_bench.train")


@pytest.mark.parametrize(
    ("one", "other"), [("pe_bench.train", "pe_bench.evaluate"), ("pe_bench.evaluate", "pe_bench.report")]
)
def test_stages_know_nothing_of_each_other(one: str, other: str) -> None:
    assert crossings((one,), (other,)) == []
    assert crossings((other,), (one,)) == []


def test_training_does_not_know_how_results_are_shown() -> None:
    assert crossings(("pe_bench.train",), ("pe_bench.report", "pe_bench.plot", "pe_bench.results")) == []


def test_encodings_stand_on_their_own() -> None:
    allowed = ("pe_bench.encodings", "pe_bench.checking", "pe_bench.errors")
    for module in members("pe_bench.encodings"):
        assert [name for name in own_imports(module) if not inside(name, *allowed)] == [], module


def test_encodings_that_build_on_each_other_have_an_order() -> None:
    """YaRN is read after the scaling that it extends, and that after RoPE; none needs what builds on it."""
    for module in members("pe_bench.encodings"):
        assert module not in reachable(module), module
    assert [
        name
        for name in MODULES
        if "pe_bench.encodings.load" in own_imports(name)
        if inside(name, "pe_bench.encodings")
    ] == []


def test_data_know_nothing_of_what_is_done_with_them() -> None:
    later = ("pe_bench.model", "pe_bench.train", "pe_bench.evaluate", "pe_bench.report", "pe_bench.encodings")
    assert crossings(("pe_bench.data",), later) == []


def test_the_model_knows_nothing_of_data_and_stages() -> None:
    later = ("pe_bench.data", "pe_bench.train", "pe_bench.evaluate", "pe_bench.report", "pe_bench.results")
    assert crossings(("pe_bench.model", "pe_bench.attention", "pe_bench.loss"), later) == []


def test_reports_read_results_and_no_models() -> None:
    """What is on the disk is enough: a report needs neither torch nor the run's code."""
    assert crossings(("pe_bench.report",), ("pe_bench.model", "pe_bench.train", "pe_bench.attention")) == []


def test_nothing_imports_the_command_line() -> None:
    others = tuple(
        module for module in MODULES if module not in ("pe_bench", "pe_bench.cli", "pe_bench.__main__")
    )
    assert crossings(others, ("pe_bench.cli",), through=False) == []


# Names of encodings


def names_of_encodings() -> set[str]:
    return {path.stem for group in ("encoding", "modifier") for path in config_dir().glob(f"{group}/*.yaml")}


def words_in(node: ast.AST | None) -> Iterator[str]:
    for inner in ast.walk(node) if node is not None else ():
        if isinstance(inner, ast.Constant) and isinstance(inner.value, str):
            yield inner.value


def decisions(source: str) -> Iterator[tuple[int, str]]:
    """(line, word) of every text that something is compared with, matched against or looked up by."""
    for node in ast.walk(ast.parse(source)):
        parts: list[ast.AST] = []
        if isinstance(node, ast.Compare):
            parts = [node.left, *node.comparators]
        elif isinstance(node, ast.MatchValue):
            parts = [node.value]
        elif isinstance(node, ast.Dict):
            parts = [key for key in node.keys if key is not None]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            parts = [*node.args] if node.func.attr in ("startswith", "endswith") else []
        for part in parts:
            yield from ((getattr(node, "lineno", part.lineno), word) for word in words_in(part))  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "source",
    [
        "if encoding == 'rope': pass",
        "if 'rope' != name: pass",
        "if config['name'] in ('nope', 'rope'): pass",
        "match name:\n case 'rope': pass",
        "match name:\n case 'nope' | 'rope': pass",
        "build = {'rope': 1}[name]",
        "if name.startswith('rope'): pass",
        "x = 1 if name in {'rope'} else 2",
    ],
)
def test_a_decision_by_name_is_seen(source: str) -> None:
    assert "rope" in [word for _, word in decisions(source)]


def test_words_that_decide_nothing_are_no_decisions() -> None:
    assert list(decisions("print('rope'); name = 'rope'; raise ValueError('say rope')")) == []


def test_no_code_outside_encodings_decides_by_an_encoding_s_name() -> None:
    names = names_of_encodings()
    assert {"rope", "alibi", "logn"} <= names
    found = [
        f"{path.relative_to(PACKAGE)}:{line}: {word}"
        for module, path in MODULES.items()
        if not inside(module, "pe_bench.encodings")
        for line, word in decisions(path.read_text(encoding="utf-8"))
        if word in names
    ]
    assert found == []


# What a command line pays before it says a word


def test_a_command_line_is_read_without_heavy_imports() -> None:
    light = ("cli", "config", "hydra_app", "completion")
    code = f"""
import sys
import {", ".join(f"pe_bench.{name}" for name in light)}
print(sorted({{name.split(".")[0] for name in sys.modules}} & {set(HEAVY)!r}))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"
