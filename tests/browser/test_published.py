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
    page = open_page(name, width, scheme=scheme)
    page.evaluate(axe)

    assert [] == page.evaluate(RUN)


WIDTHS = (360, 390, 768, 1280)

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
    page = open_page(path, width, scheme=scheme)
    page.evaluate(axe)

    assert [] == page.evaluate(RUN)


MOST = {"words": 1_800, 1280: 6.5, 390: 14}
SCREEN = {1280: 900, 390: 844}


@pytest.mark.parametrize("path", PAGES[1:], ids=lambda path: path.parent.name)
def test_a_page_is_short(open_page, path):
    page = open_page(path)
    words = page.locator("body").inner_text().split()

    assert len(words) <= MOST["words"]
    for width, height in SCREEN.items():
        page.set_viewport_size({"width": width, "height": height})
        shown = page.evaluate("document.documentElement.scrollHeight")
        assert shown <= MOST[width] * height, width


def test_nothing_overlaps_and_no_page_scrolls_sideways(open_page, measure):
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
