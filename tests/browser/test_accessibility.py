"""What axe-core finds, and what a keyboard reaches."""

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
