"""Numbers as they are read: few digits, units, no exponents."""

import pytest

from reports.words import formats


def _plain(text):
    return text.replace(formats.THIN_SPACE, " ").replace(formats.HARD_SPACE, " ")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (46.75, "46.8"),
        (1234.5, "1 234"),
        (0.01234, "0.0123"),
        (0, "0"),
        (9.999, "10.0"),
    ],
)
def test_significant_digits(value, expected):
    assert expected == _plain(formats.significant(value))


def test_times_below_one_second_have_three_digits_in_ms_unit():
    assert _plain(formats.seconds(0.3021)) == "302 ms"
    assert _plain(formats.seconds(12.34)) == "12.3 s"


def test_nothing_is_less_than_zero_by_rounding():
    """A part of a step of -0.001 % is 0 %, and one of -0.6 % is -1 %."""
    assert "0 %" == _plain(formats.percent(-1e-5)) == _plain(formats.percent(0.0))
    assert ("-1 %", "0.00") == (_plain(formats.percent(-0.006)), formats.ratio(-1e-3))


def test_no_p_value_is_zero():
    """A test that certain has a bound."""
    assert formats.p_value(0.0004) == formats.p_value(0.0) == "< 0.001"
    assert formats.p_value(0.0416) == "0.042"


def test_the_unit_of_an_interval_is_that_of_its_figure():
    """Unless its ends have two."""
    assert _plain(formats.with_interval(0.9, 0.88, 0.92, formats.percent)) == (
        "90 % [88, 92]"
    )
    assert _plain(formats.interval(0.99, 1.1, formats.seconds)) == "[990 ms, 1.10 s]"
