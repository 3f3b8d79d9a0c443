"""The published site in a real browser: accessible, and within the window."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

WIDTHS = (360, 390, 768, 1280)
RUN = """async () => (await axe.run(document)).violations.map(
    (found) => `${found.id}: ${found.nodes[0].html.slice(0, 200)}`)"""


SITE = Path(__file__).resolve().parents[2] / "docs" / "reports"
# The index, and the pages of all studies.
PAGES = [SITE / "index.html", *sorted(SITE.glob("studies/*/index.html"))]


def test_there_are_pages_of_studies() -> None:
    """Beside the index; without them, the tests below would show nothing."""
    assert len(PAGES) > 1


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.parent.name)
def test_axe_finds_nothing_on_any_page(
    open_page: Any, axe: str, path: Path, width: int, scheme: str
) -> None:
    """Each page, each width and each scheme once; the full run has all of them."""
    page = open_page(path, width, scheme=scheme)
    page.evaluate(axe)

    assert [] == page.evaluate(RUN)


def test_nothing_overlaps_and_no_page_scrolls_sideways(
    open_page: Any, measure: str
) -> None:
    """On every page, at every width; the texts of figures, which differ by study."""
    for path in PAGES:
        page = open_page(path, WIDTHS[0])
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": 900})
            found = page.evaluate("document.documentElement.scrollWidth")
            assert found <= width, path
            assert [] == page.evaluate(measure)["found"], (path, width)
