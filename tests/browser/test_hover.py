"""What a point of a figure says: with a pointer, by keyboard, and without scripts."""

import re

import pytest

from results.figures import frame

PANELS = ".shown-efficiency.shown-linear svg"
HALF_A_DIGIT = 0.5
TEXT = re.compile(
    r"(?P<backend>\w+), (?P<mode>\w+) scaling, (?P<size>\d+) replicas?: "
    r"(?P<what>\w+): (?P<value>[\d.]+)\s?%"
    r"(?:, 95 % interval \[(?P<low>[\d.]+),\s(?P<high>[\d.]+)\], n = (?P<n>\d+)"
    r"|, by definition)"
)


def _check(texts, expected):
    """Compares what points say with the rows of the frame, to the digits shown."""
    found = [match for text in texts if (match := TEXT.fullmatch(text))]
    assert len(texts) == len(found) == len(expected)
    keys = ["backend", "mode", "num_replicas"]
    rows = expected.set_index(keys).sort_index()
    for match in found:
        row = rows.loc[(match["backend"], match["mode"], int(match["size"]))]
        assert "efficiency" == match["what"]
        shown = {"value": match["value"], "low": match["low"], "high": match["high"]}
        for name, text in shown.items():
            if text is None:
                assert row["is_baseline"]
                continue
            digits = len(text.partition(".")[2])
            error = abs(100 * row[name] - float(text))
            assert error <= HALF_A_DIGIT * 10**-digits + 1e-9, (name, match[0])
        if match["n"] is not None:
            assert row["n"] == int(match["n"])


@pytest.fixture(scope="module")
def efficiencies(stores):
    """The estimates of the default study that its first figure draws."""
    points = frame.points_frame(stores("default"))
    of_figure = points[(points.figure == "scaling") & (points.kind == "estimate")]
    return of_figure[of_figure.quantity == "efficiency"]


def test_pointing_at_a_marker_shows_the_row_of_the_frame(open_page, efficiencies):
    """Value, interval and n, in a note within the page; it goes with the pointer."""
    page = open_page("default")
    note = page.locator(".tip-note")
    texts = []
    for point in page.locator(f"{PANELS} .tip").all():
        point.scroll_into_view_if_needed()
        box = point.bounding_box()
        x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
        page.mouse.move(x, y)
        texts.append(note.inner_text())
        seen = note.bounding_box()
        assert seen["x"] >= 0
        assert seen["x"] + seen["width"] <= 1280
    page.mouse.move(2, 2)

    _check(texts, efficiencies)
    assert not note.is_visible()


def test_arrow_keys_say_the_same_as_the_pointer(open_page, efficiencies):
    """A figure is one stop of the tabulator; Escape takes the note away."""
    page = open_page("default")
    note = page.locator(".tip-note")
    texts = []
    for panel in page.locator(PANELS).all():
        panel.focus()
        for _ in range(panel.locator(".tip").count()):
            page.keyboard.press("ArrowRight")
            texts.append(note.inner_text())
        page.keyboard.press("Escape")
        assert not note.is_visible()

    _check(texts, efficiencies)


def test_without_scripts_points_have_titles(open_page, efficiencies):
    """The browser shows them by itself."""
    page = open_page("default", is_scripted=False)
    titles = page.locator(f"{PANELS} .tip > title").all_text_contents()

    _check(titles, efficiencies)


def test_every_marker_of_an_estimate_says_its_n(open_page):
    """In every figure with estimates; a baseline of efficiency is fixed instead."""
    page = open_page("default", is_scripted=False)
    least = {
        ".hero": 8,
        "figure[data-name=scaling]": 6 * 8,
        "figure[data-name=backends]": 3,
        "#startup": 4,
    }
    for figure, number in least.items():
        titles = page.locator(f"{figure} .tip > title").all_text_contents()

        assert len(titles) >= number, figure
        for title in titles:
            assert re.search(r", (n = \d+|by definition)$", title), title


def test_bars_of_a_waterfall_say_part_interval_and_n(open_page):
    """In ms, negative parts too."""
    page = open_page("controls", is_scripted=False)
    titles = page.locator("#lost-time .tip > title").all_text_contents()

    assert len(titles) >= 6
    pattern = (
        r"in_graph x2: [\w :,]+: -?[\d.]+ ms per step, 95 % interval \[-?[\d.]+,\s"
        r"-?[\d.]+\], n = 4"
    )
    for title in titles:
        assert re.fullmatch(pattern, title), title
