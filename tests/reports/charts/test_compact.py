"""The text of an SVG is made smaller, and the drawing stays what it is."""

import pytest

from reports.charts.compact import compact


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("M 0 0 L 1 2 L 1 2 L 1 2 L 3 4", "M0 0L1 2L3 4"),
        ("M 1 2 L 1 2 L 1 2", "M1 2L1 2"),  # a dot, by its round ends
        ("M 0 0 L 1 2 L 1 2.5 L 1 25", "M0 0L1 2L1 2.5L1 25"),
        ("M 0 0 L -1.5 2 L -1.5 2 z", "M0 0L-1.5 2z"),
    ],
)
def test_a_line_to_where_it_is_already_is_left_out(path, expected):
    """Only where the whole point is repeated."""
    assert f'<path d="{expected}"/>' == compact(f'<path d="{path}"/>')
