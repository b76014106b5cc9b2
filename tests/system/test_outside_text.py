"""Text from outside is only shown: by a terminal, a spreadsheet, GitHub, LaTeX."""

from dataclasses import dataclass

import pytest

from pe_bench.system.terminal import csv_cell, in_one_line, latex, markdown, one_line, printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("rope factor=4", "rope factor=4"),
        ("\u0391\u03bb\u03af\u03bc\u03c0\u03b9 日本", "\u0391\u03bb\u03af\u03bc\u03c0\u03b9 日本"),
        ("a\nb\r\nc\u2028d\te", "a b c d e"),
        ("\x1b[2Jx", "\\x1b[2Jx"),
        ("a\u202eb\u2066c\u061cd", "a\\u202eb\\u2066c\\u061cd"),
        ("a\u200bb\ufeffc\u00add", "a\\u200bb\\ufeffc\\xadd"),
        ("a\ud800", "a\\ud800"),
    ],
)
def test_a_line_shows_every_sign(text: str, shown: str) -> None:
    assert one_line(text) == shown
    assert one_line(text).isprintable()


def test_a_message_keeps_its_lines() -> None:
    assert printable("a\nb\tc\x1b") == "a\nb\tc\\x1b"


@pytest.mark.parametrize("text", ["=cmd()", "+1", "-1", "@x", "\t=1"])
def test_a_spreadsheet_computes_nothing(text: str) -> None:
    assert csv_cell(text) == f"'{text.strip()}"


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("a|b", r"a\|b"),
        ("a\\|b", r"a\\\|b"),
        ("<script>&amp;", "&lt;script>&amp;amp;"),
        ("![x](http://y)", r"!\[x](http://y)"),
        ("**a** _b_ ~~c~~", r"\*\*a\*\* \_b\_ \~\~c\~\~"),
        ("kerple_log_2", "kerple_log_2"),
    ],
)
def test_markdown_has_no_marks_from_outside(text: str, written: str) -> None:
    assert markdown(text) == written


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("\\input{/etc/passwd}", r"\textbackslash{}input\{/etc/passwd\}"),
        ("50 % of $x_1$ & #2", r"50 \% of \$x\_1\$ \& \#2"),
        ("[red]", "{}[red]"),
        ("*", "{}*"),
        ("a\n\\end", r"a \textbackslash{}end"),
    ],
)
def test_latex_has_no_commands_from_outside(text: str, written: str) -> None:
    assert latex(text) == written


@dataclass(frozen=True)
class _Inner:
    name: str
    number: float


@dataclass(frozen=True)
class _Outer:
    inner: tuple[_Inner, ...]
    by_name: dict[str, _Inner]


def test_text_is_found_wherever_it_is_in_a_value() -> None:
    inner = _Inner("a\nb", 1.0)
    assert in_one_line(_Outer((inner,), {"c\nd": inner})) == _Outer(
        (_Inner("a b", 1.0),), {"c d": _Inner("a b", 1.0)}
    )


def test_a_value_without_such_text_is_the_same_one() -> None:
    value = _Outer((_Inner("a", 1.0),), {"b": _Inner("c", 2.0)})
    assert in_one_line(value) is value
