"""Numbers in what a terminal shows, however a program writes it."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.command import metric
from harness.command.reader import LineReader
from harness.command.terminal_line import TerminalLine

MOVES = ("back", "forward", "to", "blank")
PATTERN = r"rate: ([0-9.]+)"


def read(*chunks, pattern=PATTERN):
    of = metric.parse(f"throughput={pattern}")
    assert of.pattern is not None
    reader = LineReader(of.pattern)
    return [one.value for chunk in (*chunks, b"") for one in reader.feed(chunk, 1)]


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("\x1b[1;32mrate:\x1b[0m \x1b[38;5;4m64\x1b[1m0\x1b[0m\n", [640]),
        ("\x1b[?25lrate: 640\x1b[?25h\x1b[K\n", [640]),
        ("rate: \x1b]8;;https://a/rate: 7\x07640\x1b]8;;\x07\n", [640]),
        ("\x1b]0;rate: 7\x1b\\rate: 640\n", [640]),
        ("rate: 650\b\b40\n", [640]),
        ("rate: 9\b640\n", [640]),
        ("rate: 1\rrate: 22\rrate: 3\n", [1, 22, 3]),
        ("rate: 12345\rrate: 7\n", [12345, 7]),
        ("rate: 12345\r\x1b[6C700\n", [12345, 700]),
        ("rate: 12345\x1b[7G800\n", [80045]),
        ("rate: 12345\x1b[2K\x1b[1Grate: 7\r\n", [12345, 7]),
        ("rate: 12345\x1b[3D\x1b[K\n", [12]),
        ("a\x1b[A\x1b[2Krate: 5\n\nrate: 6\x1b[1Brate: 7\n", [5, 6, 7]),
        ("rate: 1\r\nrate: 2\r\n", [1, 2]),
        ("\x1b(Brate: 640\x0f\n", [640]),
        ("rate:\t5\n", []),
    ],
)
def test_what_is_shown_is_read(text, values):
    """Also where chunks divide sequences."""
    data = text.encode()

    assert values == read(data)
    assert values == read(*(data[i : i + 1] for i in range(len(data))))


def test_a_tab_stays_a_tab():
    """Patterns ask for it."""
    assert [5.0] == read(b"rate\t5\n", pattern="rate\\t([0-9.]+)")


def shown(parts):
    """What stands on the line in the end, cell by cell, by the slowest means."""
    line, column = {}, 0
    for what, number in parts:
        if what == "back":
            column = max(1, column - number)  # the beginning would end the line
        elif what == "forward":
            column += number
        elif what == "to":
            column = number
        elif what == "erase":
            line = {at: one for at, one in line.items() if at < column}
        elif what == "blank":
            for at in range(column, column + number):
                if at in line:
                    line[at] = " "
        else:
            for one in what:
                line[column] = one
                column += 1
    last = max(line, default=-1)
    return "".join(line.get(at, " ") for at in range(last + 1))


def written(parts):
    text, column = "", 0
    for what, number in parts:
        if what == "back":
            far = max(0, min(number, column - 1))
            text += ("\b" * far, f"\x1b[{far}D")[far % 2]
            column -= far
        elif what == "forward":
            text, column = text + f"\x1b[{number}C", column + number
        elif what == "to":
            text, column = text + f"\x1b[{number + 1}G", number
        elif what == "erase":
            text += "\x1b[K"
        elif what == "blank":
            text += f"\x1b[{number}X"
        else:
            text += f"\x1b[3{len(what) % 8}m{what}\x1b[m"
            column += len(what)
    return text.encode()


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(MOVES), st.integers(1, 9))
        | st.tuples(st.just("erase"), st.just(0))
        | st.tuples(st.text("0123456789abc", min_size=1, max_size=5), st.just(0)),
        max_size=12,
    ),
    st.integers(1, 7),
)
def test_a_line_is_that_of_a_terminal(parts, size):
    """Whatever moves the cursor within it, and however it is divided."""
    parts = [("=", 0), *parts]
    data = written(parts) + b"\n"
    line = TerminalLine()
    chunks = [data[i : i + size] for i in range(0, len(data), size)]
    found = [text for chunk in (*chunks, b"") for text in line.feed(chunk)]

    assert [shown(parts).rstrip() or "="] == [text.rstrip() or "=" for text in found]
