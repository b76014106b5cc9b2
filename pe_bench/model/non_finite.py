"""The hook of an encoding that makes the first number that is not finite."""

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from pe_bench.encodings import LayerEncoding, PositionalEncoding
from pe_bench.encodings.load import OUTSIDE_MODULE

# Logits may be minus infinity, for keys without weight.
LOGITS = ("scores", "distance_bias", "bias", "columns", "adjust")


@contextmanager
def watched_hooks(encoding: nn.Module) -> Iterator[Callable[[], str]]:
    """Yield a function that names the hook that made the first number in here that is not finite.

    The name is empty where none of the hooks did: the number was in what the first of them was given.
    """
    found: list[str] = []
    watched = [(part, hook) for part in encoding.modules() for hook in _changed_hooks(part)]
    for part, hook in watched:
        object.__setattr__(part, hook, _watched(getattr(part, hook), hook, found))
    try:
        yield lambda: "".join(found[:1])
    finally:
        for part, hook in watched:
            object.__delattr__(part, hook)


def _changed_hooks(part: nn.Module) -> list[str]:
    """Return the hooks that the class of an encoding, or of a part of one, changes."""
    for kind in (LayerEncoding, PositionalEncoding):
        if isinstance(part, kind):
            hooks = [name for name, value in vars(kind).items() if name[0] != "_" and callable(value)]
            return [name for name in hooks if getattr(type(part), name) is not getattr(kind, name)]
    return []


def _watched(hook: Callable[..., Any], name: str, found: list[str]) -> Callable[..., Any]:
    @functools.wraps(hook)
    def call(*arguments: Any, **options: Any) -> Any:
        result = hook(*arguments, **options)
        if not found and not _is_finite(result, may_hide=name in LOGITS):
            found.append(_describe(hook) if _is_finite((arguments, options)) else "")
        return result

    return call


def _is_finite(value: Any, *, may_hide: bool = False) -> bool:
    """Return whether all tensors in a value are finite; those that `may_hide` keys may be minus infinity."""
    if isinstance(value, Tensor):
        return bool((value.isfinite() | (value == -torch.inf if may_hide else False)).all())
    if isinstance(value, Mapping):
        value = tuple(value.values())
    return not isinstance(value, list | tuple) or all(_is_finite(part, may_hide=may_hide) for part in value)


def _describe(hook: Callable[..., Any]) -> str:
    """Name a hook as `Class.hook`, with its file and line where it is a user's own."""
    code, is_outside = hook.__func__.__code__, hook.__module__.startswith(OUTSIDE_MODULE)  # type: ignore[attr-defined]
    where = f"{code.co_filename}:{code.co_firstlineno}: " if is_outside else ""
    return f"{where}{hook.__qualname__}"
