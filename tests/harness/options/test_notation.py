"""Lists and ranges of counts parse, or say what is wrong."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import ParseError
from harness.options.notation import parse_counts, parse_names


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1", (1,)),
        ("4,1,2", (1, 2, 4)),
        ("1..4", (1, 2, 3, 4)),
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
        ("1,-2", r"'-2' in '1,-2' is not positive"),
        ("1.5", r"'1.5' is not an integer; allowed"),
        ("two", r"'two' is not an integer"),
        ("", r"'' is not an integer"),
        ("1,,2", r"'' in '1,,2' is not an integer"),
        ("8..1", r"'8..1' ends before it starts \(1 < 8\); write 1..8"),
        ("1..8x1", r"'1..8x1' multiplies by 1 and would never end"),
        ("0..4", r"'0' in '0..4' is not positive"),
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
