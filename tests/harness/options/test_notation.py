"""Lists and ranges of counts parse, or say what is wrong."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import ParseError
from harness.options.kinds import (
    duration,
    parse_counts,
    parse_duration,
    parse_names,
    write_duration,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1", (1,)),
        ("4,1,2", (1, 2, 4)),
        ("1..4", (1, 2, 3, 4)),
        ("1-4", (1, 2, 3, 4)),
        ("1-16x2", (1, 2, 4, 8, 16)),
        ("1..16x2", (1, 2, 4, 8, 16)),
        ("3..20x3", (3, 9)),
        ("1..2, 8,2", (1, 2, 8)),
    ],
)
def test_counts_are_distinct_and_ascending(text, expected):
    """Lists, ranges and geometric ranges can be mixed."""
    counts = parse_counts(text, what="--replicas")

    assert expected == counts


@given(st.lists(st.integers(1, 999), min_size=1))
def test_any_list_of_counts_parses_to_its_set(counts):
    """Order and repetition do not matter."""
    text = ",".join(str(count) for count in counts)

    assert tuple(sorted(set(counts))) == parse_counts(text, what="--replicas")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0", r"--replicas: '0' is not positive; allowed are positive integers"),
        ("1.5", r"'1.5' is not an integer; allowed"),
        ("", r"'' is not an integer"),
        ("1,,2", r"'' in '1,,2' is not an integer"),
        ("8..1", r"'8..1' ends before it starts \(1 < 8\); write 1..8"),
        ("1..8x1", r"'1..8x1' multiplies by 1 and would never end"),
        ("1..99999999", r"'99999999' in .* is more than 65536"),
    ],
)
def test_bad_counts_say_what_is_wrong(text, message):
    with pytest.raises(ParseError, match=message):
        parse_counts(text, what="--replicas")


def test_an_empty_name_is_refused():
    """A doubled comma is a typing error."""
    with pytest.raises(ParseError, match=r"--backends: 'a,,b' has an empty name"):
        parse_names("a,,b", what="--backends")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("12min", 720), ("2h", 7200), ("1.5h", 5400), (" 2 min ", 120)],
)
def test_a_duration_is_a_number_with_a_unit(text, seconds):
    assert seconds == parse_duration(text, what="--x")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0", r"^--x: '0' is not a duration; allowed are numbers above 0 with a unit"),
        ("-5s", r"'-5s' is not a duration"),
        ("2 days", r"\(90s, 12min, 2h\), at most 1e\+09s$"),
        ("30", r"'30' is not a duration; it has no unit: write 30s or 30min; allowed"),
        ("1e3", r"'1e3' is not a duration; allowed"),
        ("1e3s", r"'1e3s' is not a duration"),
        ("\N{ARABIC-INDIC DIGIT THREE}s", r"is not a duration"),
        ("02:00:00", r"'02:00:00' is not a duration; write 2h; allowed"),
        ("00:00:00", r"'00:00:00' is not a duration; allowed"),
        ("9" * 500, r"9\.\.\. is not a duration"),
    ],
)
def test_what_is_no_duration_is_refused_in_one_line(text, message):
    """With what was passed, what is allowed, and what a clock's notation is here."""
    with pytest.raises(ParseError, match=message):
        parse_duration(text, what="--x")


@given(st.integers(1, 10**8))
def test_what_is_written_is_read_again(seconds):
    """In the largest unit that is whole."""
    assert seconds == parse_duration(write_duration(seconds), what="--x")


@pytest.mark.parametrize(
    ("value", "text"), [(12.0, "12min"), (1.5, "90s"), (120, "2h")]
)
def test_a_default_is_shown_with_its_unit(value, text):
    """As a user can write it."""
    assert text == duration("min").write(value)
