"""Checks of the code: that it would run on a GPU, and that options are read."""

import ast
import inspect
import textwrap
from collections.abc import Iterator, Sequence

import torch

from pe_bench.encodings.base import LayerEncoding
from pe_bench.encodings.compose import Composition
from pe_bench.encodings.spec import argument_of
from pe_bench.errors import first_line
from pe_bench.inspection.check.case import (
    TRAIN_LENGTH,
    Case,
    Finding,
    as_type,
    layer_inputs,
    layers_of,
    tokens,
    where,
)
from pe_bench.model.attention import reference_attention
from pe_bench.system.signals import INTERRUPTIONS

ELSEWHERE = "meta"


@torch.no_grad()
def follows_the_device(case: Case) -> Finding:
    """What a hook makes is made where its inputs are.

    Look at: torch.arange, tensor, zeros, .. without device=, or a tensor that is no buffer.

    Call every hook with tensors of the meta device, which cannot be mixed with those of the CPU.

    They hold no values, so code that reads one, as in `if position.max() > n`, cannot be followed.
    """
    encoding = case.as_built()
    layers = layers_of(encoding)  # which reads values, to tell kinds apart
    encoding.to(ELSEWHERE)
    try:
        _call(encoding, layers)
    except INTERRUPTIONS:
        raise
    except BaseException as error:
        if isinstance(error, RuntimeError) and " device" in str(error):
            return Finding("fails", f"{where(error)}: {first_line(error)}")
        return Finding("not claimed", f"{where(error)}: cannot be followed without values")
    return Finding("holds", "no tensor stayed on the CPU")


def _call(encoding: Composition, layers: Sequence[LayerEncoding]) -> None:
    x, q, k, v = (tensor.to(ELSEWHERE) for tensor in as_type(layer_inputs(TRAIN_LENGTH), torch.float32))
    ids = torch.arange(TRAIN_LENGTH, device=ELSEWHERE)
    for layer in layers:
        reference_attention(layer, x, q, k, v, ids)
    text = tokens(2, TRAIN_LENGTH).to(ELSEWHERE)
    encoding.embed(x, encoding.ids(text, train=False, generator=None), text)


def options_are_read(case: Case) -> Finding:
    """Every option of the constructor is read.

    Look at: __init__: a misspelt or forgotten name.

    Check in the source of each class that the value of every option goes somewhere.
    """
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
