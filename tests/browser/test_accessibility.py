"""What axe-core finds, and what a keyboard reaches."""

from __future__ import annotations

from typing import Any

import pytest

RUN = """async () => (await axe.run(document)).violations.map(
    (found) => `${found.id}: ${found.nodes[0].html.slice(0, 200)}`)"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["default", "broken"])
def test_axe_finds_nothing(open_page: Any, axe: str, name: str, scheme: str) -> None:
    """At every width, in both schemes."""
    page = open_page(name, 360, scheme=scheme)
    page.evaluate(axe)
    for width in (360, 1280) if name == "broken" else (360, 390, 768, 1280):
        page.set_viewport_size({"width": width, "height": 900})
        assert [] == page.evaluate(RUN), width


def test_the_switch_is_worked_by_keyboard(open_page: Any) -> None:
    """Arrow keys choose the quantity."""
    page = open_page("default")
    page.locator("#show-efficiency").focus()
    page.keyboard.press("ArrowRight")

    assert page.locator("#show-speedup").is_checked()
    assert page.locator(".shown-speedup.shown-linear").is_visible()
    assert not page.locator(".shown-efficiency.shown-linear").is_visible()
