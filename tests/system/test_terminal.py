"""Text for people fits the terminal and breaks between words; text for programs is not cut."""

import io
import pty
import subprocess
import sys
import termios

import pytest

from pe_bench.render.grid import Cell, Column, Grid
from pe_bench.system import terminal
from pe_bench.system.terminal import (
    csv_cell,
    escape_latex,
    markdown,
    one_line,
    one_line_texts,
    printable,
    wrap,
)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_lines_break_between_words_and_continue_with_the_same_indent():
    text = wrap(f"short\n  failed: {'word ' * 6}", 25, hanging=2)
    assert text.splitlines() == ["short", "  failed: word word word", "    word word word"]
    path = "/a/long-path/" * 10
    assert path in wrap(f"wrote {path} and more", 40).splitlines(), "a longer word stays whole"


def test_a_command_in_a_sentence_stays_in_one_line_where_it_fits():
    command = "pe-bench eval alibi rope --targets 96"
    sentence = f"four times as many would narrow these: {command}; the rest is as it was"
    assert any(command in line for line in wrap(sentence, 50).splitlines())
    assert max(map(len, wrap(sentence, 30).splitlines())) <= 30, "a longer one is broken like other text"


def test_a_message_is_wrapped_on_a_terminal_alone(monkeypatch):
    message = "warning: " + "some words of a message " * 6
    assert terminal.width_of(io.StringIO()) == terminal.PIPED_WIDTH
    leader, follower = pty.openpty()
    termios.tcsetwinsize(follower, (40, 60))
    with open(leader), open(follower, "w") as stream:
        assert terminal.width_of(stream) == 60, "where standard output is no terminal, too"
    monkeypatch.setenv("COLUMNS", "50")
    assert terminal.width_of(io.StringIO()) == 50
    for stream in (Terminal(), io.StringIO()):
        monkeypatch.setattr(sys, "stderr", stream)
        terminal.say(message)
        text = stream.getvalue()
        assert max(map(len, text.splitlines())) <= 50 if stream.isatty() else text == f"{message}\n"


def test_closed_streams_are_no_error():
    command = f"{sys.executable} -m pe_bench --version >&- 2>&-"
    assert subprocess.run(command, shell=True).returncode == 0


def test_a_terminal_gets_a_bar_without_colours_and_a_file_the_lines_alone(monkeypatch, capsys):
    assert [terminal.bar_text(share) for share in (0.0, 1.0, 1.2)] == ["·" * 10, "━" * 10, "━" * 10]
    monkeypatch.setenv("FORCE_COLOR", "1")  # as a notebook sets it for its commands
    with terminal.progress_bar("train", 4) as bar:
        bar.show(1, "step 1 of 4")
        bar.show(2, "step 2 of 4", "half of it")
    assert capsys.readouterr().err == "train: half of it\n"
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr(sys, "stderr", stream := Terminal())
    with terminal.progress_bar("train", 4) as bar:
        bar.show(2, "step 2 of 4")
    assert "train ━━━━━····· step 2 of 4" in stream.getvalue()


def test_brackets_in_a_label_are_no_markup_of_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr(sys, "stderr", stream := Terminal())
    with terminal.progress_bar("mine mode=[/a] kind=[red]", 4) as bar:
        bar.show(2, "[b] of 4")
    assert "mine mode=[/a] kind=[red] ━━━━━····· [b] of 4" in stream.getvalue()


@pytest.mark.parametrize(
    ("shown_by", "text", "shown"),
    [
        (one_line, "rope factor=4 日本", "rope factor=4 日本"),
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
        (escape_latex, "\\input{/etc/passwd}", r"\textbackslash{}input\{/etc/passwd\}"),
        (escape_latex, "50 % of $x_1$ & #2", r"50 \% of \$x\_1\$ \& \#2"),
        (escape_latex, "[red]", "{}[red]"),
        (escape_latex, "*", "{}*"),
        (escape_latex, "a\n\\end", r"a \textbackslash{}end"),
    ],
)
def test_every_sign_is_shown_and_none_is_obeyed(shown_by, text, shown) -> None:
    assert shown_by(text) == shown


def test_text_is_found_wherever_it_is_in_a_value_and_a_value_without_any_is_the_same_one() -> None:
    grid = Grid([Column("a\nb")], [[Cell("c\td")]])
    same = Grid([Column("a b")], [[Cell("c d")]])
    assert one_line_texts({"e\nf": grid}) == {"e f": same}
    assert one_line_texts(same) is same
