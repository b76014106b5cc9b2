"""Text from outside is only shown: by a terminal, a spreadsheet, GitHub, LaTeX."""

from dataclasses import dataclass

import pytest

from pe_bench.system.terminal import csv_cell, in_one_line, latex, markdown, one_line, printable

GREEK = "\u0391\u03bb\u03af\u03bc\u03c0\u03b9 日本"


@pytest.mark.parametrize(
    ("shown_by", "text", "shown"),
    [
        (one_line, f"rope factor=4 {GREEK}", f"rope factor=4 {GREEK}"),
        (one_line, "a\nb\r\nc\u2028d\te", "a b c d e"),
        (one_line, "\x1b[2Jx", "\\x1b[2Jx"),
        (one_line, "a\u202eb\u2066c\u061cd", "a\\u202eb\\u2066c\\u061cd"),
        (one_line, "a\u200bb\ufeffc\u00add", "a\\u200bb\\ufeffc\\xadd"),
        (one_line, "a\ud800", "a\\ud800"),
        (printable, "a\nb\tc\x1b", "a\nb\tc\\x1b"),
        *((csv_cell, text, f"'{text.strip()}") for text in ("=cmd()", "+1", "-1", "@x", "\t=1")),
        (markdown, "a|b", r"a\|b"),
        (markdown, "a\\|b", r"a\\\|b"),
        (markdown, "<script>&amp;", "&lt;script>&amp;amp;"),
        (markdown, "![x](http://y)", r"!\[x](http://y)"),
        (markdown, "**a** _b_ ~~c~~", r"\*\*a\*\* \_b\_ \~\~c\~\~"),
        (markdown, "kerple_log_2", "kerple_log_2"),
        (latex, "\\input{/etc/passwd}", r"\textbackslash{}input\{/etc/passwd\}"),
        (latex, "50 % of $x_1$ & #2", r"50 \% of \$x\_1\$ \& \#2"),
        (latex, "[red]", "{}[red]"),
        (latex, "*", "{}*"),
        (latex, "a\n\\end", r"a \textbackslash{}end"),
    ],
)
def test_every_sign_is_shown_and_none_is_obeyed(shown_by, text, shown) -> None:
    assert shown_by(text) == shown


@dataclass(frozen=True)
class Named:
    name: str
    inner: "tuple[Named, ...] | dict[str, Named]" = ()


def test_text_is_found_wherever_it_is_in_a_value_and_a_value_without_any_is_the_same_one() -> None:
    changed = Named("x", {"c\nd": Named("a\nb", (Named("e\tf"),))})
    assert in_one_line(changed) == Named("x", {"c d": Named("a b", (Named("e f"),))})
    same = Named("x", {"c": Named("a", (Named("b"),))})
    assert in_one_line(same) is same
