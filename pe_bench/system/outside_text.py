r"""Text from outside, such as a name in a stranger's run, escaped for what shows it: a function for each.

`one_line` is for terminals, pages and pictures, which escape markup themselves. What a table says is on one
line from the start (`in_one_line`), and each kind of document then escapes what it would take for a mark.
"""

import dataclasses
import re
from typing import Any, TypeVar

FORMULA = ("=", "+", "-", "@")  # begin what a spreadsheet computes
LATEX_SIGNS = {
    "->": r"$\rightarrow$",
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    "<": "$<$",
    ">": "$>$",
    "≤": r"$\leq$",
    "±": r"$\pm$",
    "…": r"\ldots{}",
    "·": r"$\cdot$",
}
_LATEX_SIGN = re.compile("|".join(map(re.escape, LATEX_SIGNS)))
_MARKDOWN_SIGN = re.compile(r"[\\*\[|~]|(?<!\w)_|_(?!\w)")  # an underscore within a word marks nothing

Value = TypeVar("Value")


def printable(text: str) -> str:
    """Return text with escapes for all that does not show: controls, marks of direction, zero-width ones.

    Line breaks and tabs stay.
    """
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() or sign in "\n\t" else ascii(sign)[1:-1] for sign in text)


def one_line(text: str) -> str:
    """Return text on one line, with escapes for all that does not show."""
    return text if text.isprintable() else printable(" ".join(text.split()))


def in_one_line(value: Value) -> Value:
    """Return a value with each text in it on one line, however deep in dataclasses, lists and dicts."""
    return _in_one_line(value)


def csv_cell(text: str) -> str:
    """Return text that a spreadsheet only shows."""
    text = one_line(text)
    return f"'{text}" if text.startswith(FORMULA) else text


def markdown(text: str) -> str:
    """Return text in which nothing is a mark for GitHub, or a tag of HTML."""
    text = one_line(text).replace("&", "&amp;").replace("<", "&lt;")
    return _MARKDOWN_SIGN.sub(r"\\\g<0>", text)


def latex(text: str) -> str:
    """Return text in which nothing is a command, nor an argument of the line break above it."""
    escaped = _LATEX_SIGN.sub(lambda found: LATEX_SIGNS[found[0]], one_line(text))
    return "{}" + escaped if escaped.startswith(("[", "*")) else escaped


def latex_comment(text: str) -> str:
    """Return a line that LaTeX passes over: one line, because a second would be no comment."""
    return f"% {one_line(text)}"


def _in_one_line(value: Any) -> Any:
    if isinstance(value, str):
        return one_line(value)
    if isinstance(value, (tuple, list)):
        found = [_in_one_line(inner) for inner in value]
        if all(new is old for new, old in zip(found, value, strict=True)):
            return value
        return type(value)(*found) if hasattr(value, "_fields") else type(value)(found)
    if isinstance(value, dict):
        pairs = [(_in_one_line(key), _in_one_line(inner)) for key, inner in value.items()]
        is_same = all(
            key is old_key and inner is old
            for (key, inner), (old_key, old) in zip(pairs, value.items(), strict=True)
        )
        return value if is_same else dict(pairs)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        found = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        changed = {name: new for name, old in found.items() if (new := _in_one_line(old)) is not old}
        return dataclasses.replace(value, **changed) if changed else value
    return value
