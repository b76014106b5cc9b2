"""HTML that is escaped by construction: whatever is no `Html` yet is text, and is written as text."""

import html
from collections.abc import Mapping

Value = str | int | float | None


class Html(str):
    """Text that is markup already."""


def element(name: str, *children: str, **attributes: Value) -> Html:
    """`<name attributes>children</name>`.

    An attribute that is None is left out. In its name `_` stands for `-`, one at the end for nothing:
    `class_="level"`, `data_line="0-1"`.
    """
    return Html(f"<{name}{_attributes(attributes)}>{join(*children)}</{name}>")


def join(*children: str) -> Html:
    return Html("".join(child if isinstance(child, Html) else html.escape(child) for child in children))


def _attributes(attributes: Mapping[str, Value]) -> str:
    given = {name.rstrip("_").replace("_", "-"): value for name, value in attributes.items()}
    return "".join(
        f' {name}="{html.escape(str(value))}"' for name, value in given.items() if value is not None
    )
