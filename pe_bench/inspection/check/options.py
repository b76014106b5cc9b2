"""A check for options that a constructor takes and nothing reads."""

import ast
import inspect
import textwrap
from collections.abc import Iterator

from pe_bench.encodings.spec import argument_of
from pe_bench.inspection.check.case import Case
from pe_bench.inspection.check.finding import Finding


def options_are_read(case: Case) -> Finding:
    """Check in the source of each class that the value of every option goes somewhere."""
    count = 0
    for part in case.spec.parts:
        for option in part.options:
            count += 1
            if not _is_read(part.encoding_class, argument_of(option)):
                return Finding(
                    "fails", f"{part.key}.{option} is taken by the constructor, and nothing reads it"
                )
    return Finding("holds", f"{count} options are read" if count else "no options")


def _is_read(encoding_class: type, option: str) -> bool:
    """Return whether the constructor uses an option, or any method the attribute that it is stored in."""
    trees = list(_trees(encoding_class))
    constructor = next(
        (node for tree in trees for node in ast.walk(tree) if _is_constructor(node, option)), None
    )
    if constructor is None:  # no source, or one that collects its arguments
        return True
    assignments = [node for node in ast.walk(constructor) if isinstance(node, ast.Assign)]
    stores = [node for node in assignments if _is_plain_store(node, option)]
    loads = [node for node in ast.walk(constructor) if isinstance(node, ast.Name) and node.id == option]
    if len(loads) > len(stores):
        return True
    kept = {target.attr for store in stores for target in store.targets if isinstance(target, ast.Attribute)}
    read = {
        node.attr
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)
    }
    return bool(kept & read)


def _trees(encoding_class: type) -> Iterator[ast.AST]:
    """Yield the sources of a class and of those that it derives from, as far as there are any."""
    for parent in encoding_class.__mro__:
        if not parent.__module__.startswith(("torch.", "builtins")):
            try:
                yield ast.parse(textwrap.dedent(inspect.getsource(parent)))
            except (OSError, TypeError, SyntaxError):
                continue


def _is_constructor(node: ast.AST, option: str) -> bool:
    if not isinstance(node, ast.FunctionDef) or node.name != "__init__":
        return False
    return option in {argument.arg for argument in (*node.args.args, *node.args.kwonlyargs)}


def _is_plain_store(node: ast.Assign, option: str) -> bool:
    """Return whether a statement is `self.NAME = OPTION`."""
    is_attribute = all(isinstance(target, ast.Attribute) for target in node.targets)
    return is_attribute and isinstance(node.value, ast.Name) and node.value.id == option
