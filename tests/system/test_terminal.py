"""Text for people fits the terminal and breaks between words; text for programs is not cut."""

import io
import os
import pty
import subprocess
import sys

from pe_bench.system.terminal import PIPED_WIDTH, UNKNOWN_WIDTH, say, width_of, wrap

MESSAGE = "warning: " + "some words of a message " * 6


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_lines_break_between_words_and_continue_with_the_same_indent():
    text = wrap(f"short\n  failed: {'word ' * 30}", 40, hanging=2)
    first, second, *rest = text.splitlines()
    assert first == "short" and second.startswith("  failed: word")
    assert len(rest) > 2 and all(line.startswith("    word") for line in rest)
    assert max(map(len, text.splitlines())) <= 40
    assert text.split() == ["short", "failed:", *["word"] * 30], "nothing is lost"
    path = "/a/long-path/" * 10
    assert path in wrap(f"wrote {path} and more", 40).splitlines(), "a longer word stays whole"


def test_a_command_in_a_sentence_stays_in_one_line_where_it_fits():
    command = "pe-bench eval alibi rope --targets 96"
    sentence = f"four times as many would narrow these: {command}; the rest is as it was"
    assert any(command in line for line in wrap(sentence, 50).splitlines())
    assert "\u00a0" not in wrap(sentence, 50)
    assert max(map(len, wrap(sentence, 30).splitlines())) <= 30, "a longer one is broken like other text"


def test_a_message_is_wrapped_on_a_terminal_alone_and_a_command_to_be_copied_nowhere(monkeypatch):
    monkeypatch.setenv("COLUMNS", "50")
    for stream, unbroken, is_whole in [
        (Terminal(), False, False),
        (Terminal(), True, True),
        (io.StringIO(), False, True),
    ]:
        monkeypatch.setattr(sys, "stderr", stream)
        say(MESSAGE, unbroken=unbroken)
        text = stream.getvalue()
        assert text == f"{MESSAGE}\n" if is_whole else max(map(len, text.splitlines())) <= 50


def test_the_width_is_what_columns_says_or_the_terminals_and_fixed_where_there_is_neither(monkeypatch):
    assert width_of(io.StringIO()) == PIPED_WIDTH
    for columns, width in [("63", 63), ("abc", UNKNOWN_WIDTH), ("0", UNKNOWN_WIDTH), ("-3", UNKNOWN_WIDTH)]:
        monkeypatch.setenv("COLUMNS", columns)
        assert width_of(Terminal()) == width
    monkeypatch.delenv("COLUMNS")
    leader, follower = pty.openpty()
    with os.fdopen(leader, "w"), os.fdopen(follower, "w") as stream:
        assert width_of(stream) == UNKNOWN_WIDTH, "a terminal of no columns does not know"


def test_closed_streams_are_no_error():
    command = f"{sys.executable} -m pe_bench --version >&- 2>&-"
    assert subprocess.run(command, shell=True).returncode == 0
