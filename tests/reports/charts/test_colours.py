"""A backend looks the same in every study."""

import pathlib
import re

import pytest

import reports
from replicator import catalog
from reports.charts.drawing import svg
from reports.page import page
from reports.view import view

LEAST_CONTRAST = 3.0
STYLE = pathlib.Path(reports.__file__).parent / "page" / "templates" / "style.css"


def _luminance(color):
    parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [
        c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts
    ]
    return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def _contrast(first, second):
    bright, dark = sorted((_luminance(first), _luminance(second)), reverse=True)
    return (bright + 0.05) / (dark + 0.05)


def test_the_first_ten_backends_of_the_catalogue_have_their_own():
    """No two of them share a colour or a marker; there are no more than ten."""
    chosen = list(view.SERIES_OF_BACKEND.values())

    assert set(view.SERIES_OF_BACKEND) == set(catalog.BACKENDS)
    assert len(set(chosen)) == len(chosen)
    assert set(chosen) <= set(range(view.NUM_SERIES))
    assert len(set(svg.MARKERS)) == len(set(page.SHAPES)) == view.NUM_SERIES


def test_an_unknown_backend_has_one_too():
    """The same in every process."""
    assert view.series_of("mine") == 1
    assert 0 <= view.series_of("") < view.NUM_SERIES


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_marks_stand_out_from_the_paper(scheme):
    """Every colour has at least 3:1, in both schemes."""
    found = re.findall(r"--([\w-]+): (#[0-9a-f]{6});", STYLE.read_text())
    number = len(found) // 2
    colors = dict(found[scheme * number : (scheme + 1) * number])
    shown = [f"series-{index}" for index in range(view.NUM_SERIES)]
    shown += ["muted", "good", "bad", "warn", "accent"]

    assert not {
        name: ratio
        for name in shown
        if (ratio := _contrast(colors[name], colors["paper"])) < LEAST_CONTRAST
    }
