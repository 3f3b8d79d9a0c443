"""The published site in a real browser: accessible, and within the window."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

WIDTHS = (360, 390, 768, 1280)
RUN = """async () => (await axe.run(document)).violations.map(
    (found) => `${found.id}: ${found.nodes[0].html.slice(0, 200)}`)"""


@pytest.fixture(scope="module")
def pages() -> list[Path]:
    """The index, and the pages of all studies."""
    folder = Path(__file__).resolve().parents[2] / "docs" / "reports"
    found = [folder / "index.html", *sorted(folder.glob("studies/*/index.html"))]
    assert len(found) > 1
    return found


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_on_any_page(
    open_page: Any, axe: str, pages: list[Path], scheme: str
) -> None:
    """At every width."""
    for path in pages:
        page = open_page(path, WIDTHS[0], scheme=scheme)
        page.evaluate(axe)
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": 900})
            assert [] == page.evaluate(RUN), (path, width)


def test_nothing_overlaps_and_no_page_scrolls_sideways(
    open_page: Any, measure: str, pages: list[Path]
) -> None:
    """On every page, at every width; the texts of figures, which differ by study."""
    for path in pages:
        page = open_page(path, WIDTHS[0])
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": 900})
            found = page.evaluate("document.documentElement.scrollWidth")
            assert found <= width, path
            assert [] == page.evaluate(measure)["found"], (path, width)
