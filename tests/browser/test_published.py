"""What axe-core finds, on pages of every shape and on those of the published site."""

import itertools
from pathlib import Path

import covering
import pytest

# Nothing is written down of what passed, which nobody reads.
RUN = """async () =>
    (await axe.run(document, {resultTypes: ["violations"]})).violations.map(
    (found) => `${found.id}: ${found.nodes[0].html.slice(0, 200)}`)"""


CASES = [
    ("default", "dark", 360),
    ("broken", "light", 390),
    ("all failed", "dark", 1280),
    ("controls", "light", 768),
]
REST = [
    *(("default", "light", width) for width in (360, 390, 768, 1280)),
    *(("default", "dark", width) for width in (390, 768, 1280)),
    ("all failed", "dark", 390),
    ("controls", "light", 390),
]


@pytest.mark.parametrize(
    ("name", "scheme", "width"),
    [*CASES, *(pytest.param(*case, marks=pytest.mark.full) for case in REST)],
)
def test_axe_finds_nothing(open_page, axe, name, scheme, width):
    """Each width and scheme, and failures; the full run has every width in both."""
    page = open_page(name, width, scheme=scheme)
    page.evaluate(axe)

    assert [] == page.evaluate(RUN)


def test_the_switch_is_worked_by_keyboard(open_page):
    """Arrow keys choose the quantity."""
    page = open_page("default")
    page.locator("#show-efficiency").focus()
    page.keyboard.press("ArrowRight")

    assert page.locator("#show-speedup").is_checked()
    assert page.locator(".shown-speedup.shown-linear").is_visible()
    assert not page.locator(".shown-efficiency.shown-linear").is_visible()


WIDTHS = (360, 390, 768, 1280)

TABLE = """(() => { const table = document.querySelector(".scroll:has(.measured)");
    return [table.clientWidth, table.scrollWidth]; })()"""
ROWS = "document.querySelectorAll('.scroll:has(.measured) tbody tr').length"
LOWEST_MARK = """Math.max(...[...document.querySelectorAll(".trust li")]
    .map((element) => element.getBoundingClientRect().bottom))"""

MOST_ROWS = 4
SITE = Path(__file__).resolve().parents[2] / "docs" / "reports"
# The index, and the pages of all studies.
PAGES = [SITE / "index.html", *sorted(SITE.glob("studies/*/index.html"))]
SMALLEST = min(PAGES[1:], key=lambda path: path.stat().st_size, default=None)
# Page, width, scheme.
IN_SHORT = {(PAGES[0], 360, "light"), (SMALLEST, 1280, "dark")}


@pytest.mark.parametrize(
    ("path", "width", "scheme"),
    [
        pytest.param(*case, marks=[] if case in IN_SHORT else pytest.mark.full)
        for case in itertools.product(PAGES, WIDTHS, ("light", "dark"))
    ],
    ids=lambda value: value.parent.name if isinstance(value, Path) else str(value),
)
def test_axe_finds_nothing_on_any_page(open_page, axe, path, width, scheme):
    """The index and one study, whose figures all have; the full run has every page.

    At every width, in both schemes.
    """
    page = open_page(path, width, scheme=scheme)
    page.evaluate(axe)

    assert [] == page.evaluate(RUN)


@pytest.mark.parametrize("path", PAGES[1:], ids=lambda path: path.parent.name)
def test_the_first_screen_of_a_phone_is_whole(open_page, path):
    """Its table is not cut at the right, and the marks below it are on it.

    Unless there are more backends and modes than fit above them.
    """
    width, height = (390, 844)
    page = open_page(path, width)
    page.set_viewport_size({"width": width, "height": height})
    shown, whole = page.evaluate(TABLE)
    lowest = page.evaluate(LOWEST_MARK)

    assert whole <= shown
    assert lowest <= height or page.evaluate(ROWS) > MOST_ROWS


def test_nothing_overlaps_and_no_page_scrolls_sideways(open_page, measure):
    """On every page; the texts of figures, which differ by study."""
    assert len(PAGES) > 1
    measured = WIDTHS if covering.is_full() else (WIDTHS[0], WIDTHS[-1])
    for path in PAGES:
        page = open_page(path, WIDTHS[0])
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": 900})
            found = page.evaluate("document.documentElement.scrollWidth")
            assert found <= width, path
            if width in measured:
                assert [] == page.evaluate(measure)["found"], (path, width)
