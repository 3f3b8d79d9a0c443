"""What axe-core finds, and what a keyboard reaches."""

from __future__ import annotations

from typing import Any

import pytest

RUN = """async () => (await axe.run(document)).violations.map(
    (found) => `${found.id}: ${found.nodes[0].html.slice(0, 200)}`)"""


@pytest.mark.parametrize(
    ("name", "scheme", "widths"),
    [
        ("default", "light", (360, 390, 768, 1280)),
        ("default", "dark", (360, 390, 768, 1280)),
        ("broken", "light", (390,)),
        ("all failed", "dark", (390,)),
        ("controls", "light", (390,)),
    ],
)
def test_axe_finds_nothing(
    open_page: Any, axe: str, name: str, scheme: str, widths: tuple[int, ...]
) -> None:
    """At every width, in both schemes, and with failures."""
    page = open_page(name, widths[0], scheme=scheme)
    page.evaluate(axe)
    for width in widths:
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
