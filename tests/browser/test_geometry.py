"""Where things lie in a real browser: nothing overlaps, is cut off or too far below."""

import re

import pytest

SHAPES = (
    "default",
    "controls",
    "large",
    pytest.param("many trials", marks=pytest.mark.full),
    "broken",
    "single N",
    "single repetition",
    "all failed",
)
SMALLEST_TEXT = 11.0
MOST_PAGES = 8
MOST_SCREENS = 15
A4 = {"width": "210mm", "height": "297mm"}


@pytest.mark.parametrize("name", SHAPES)
def test_no_text_overlaps_or_leaves_its_panel_and_no_page_scrolls_sideways(
    open_page, measure, name
):
    """On phones, where figures are smallest, and on desktops; on both scales."""
    page = open_page(name, 360)
    measured = {}
    for width in (360, 390, 768, 1280):
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        if width in (390, 1280):
            measured[width] = page.evaluate(measure)
    on_phone, on_desktop = measured.values()

    assert [] == on_phone["found"]
    assert [] == on_desktop["found"]
    if name == "all failed":
        assert 0 == on_phone["figures"]
    else:
        assert on_phone["figures"] >= 4
        assert on_phone["smallest"] >= SMALLEST_TEXT


@pytest.mark.parametrize(
    "name", [pytest.param("default", marks=pytest.mark.full), "large"]
)
def test_no_text_overlaps_in_any_view_of_the_switch(open_page, measure, name):
    """Speedup and throughput, linear and logarithmic."""
    page = open_page(name, 390)
    for quantity in ("efficiency", "speedup", "throughput"):
        for scale in ("linear", "log"):
            page.locator(f"label[for=show-{quantity}]").click()
            page.locator(f"label[for=show-{scale}]").click()
            assert [] == page.evaluate(measure)["found"], (quantity, scale)


def test_panels_share_their_axis_and_a_default_sweep_prints_on_few_pages(open_page):
    """Weak and strong scaling are compared by eye. A4."""
    page = open_page("default")
    labels = page.evaluate(
        """() => [...document.querySelectorAll('.shown-efficiency.shown-linear svg')]
        .map(svg => [...svg.querySelectorAll('text')].map(text => text.textContent)
        .filter(text => text.includes('%')))"""
    )

    assert 2 == len(labels)
    assert labels[0] == labels[1]
    assert re.match(r"0\s%", labels[0][0])
    pdf = page.pdf(**A4, margin=dict.fromkeys(("top", "bottom"), "12mm"))
    assert len(re.findall(rb"/Type\s*/Page\b", pdf)) <= MOST_PAGES


DESKTOP, PHONE = (1280, 900), (390, 844)

FACTS = {
    "how well, with its interval": r"[\d.]+\s% \[[\d.]+, [\d.]+\]",
    "at which number": r"(weak|strong) \d+ ",
    "weak or strong": r"weak|strong",
    "what limits it": (
        r"Most of what in_graph loses|no single cause is shown|Causes were not recorded"
    ),
    "which backend is faster": (
        r"as fast as \w+|Only \w+ was measured|[Ii]nconclusive|the fastest of|"
        r"Faster than \d|others, \d|No comparison with"
    ),
}
HOW_SURE = r"^(Reliable|Caution: [\w ,]+|Not reliable: [\w ,]+)\.$"
LOWEST = """(selector) => Math.max(...[...document.querySelectorAll(selector)]
    .map((element) => element.getBoundingClientRect().bottom))"""


def _text(page, selector):
    return " ".join(page.locator(selector).inner_text().split())


@pytest.mark.parametrize("name", ["default", "controls"])
def test_five_facts_are_within_the_first_screen(open_page, name):
    """In the words of the verdict; with how sure that is, and what to do next."""
    page = open_page(name, DESKTOP[0])
    verdict = f"{_text(page, '.measured')} {_text(page, '.brief')}"

    assert page.evaluate(LOWEST, ".hero") <= DESKTOP[1]
    for fact, pattern in FACTS.items():
        assert re.search(pattern, verdict), (fact, verdict)
    assert re.search(HOW_SURE, _text(page, ".brief > b"))
    assert re.match(r"Next: \S.*\.$", _text(page, ".brief .next"))
    assert re.search(r"n = \d", _text(page, ".basis"))
    assert 7 == page.locator(".trust li").count()
    for width, height in (DESKTOP, PHONE):
        page.set_viewport_size({"width": width, "height": height})
        for selector in ("h1", ".measured", ".brief", ".basis", ".trust li"):
            assert page.evaluate(LOWEST, selector) <= height, selector


@pytest.mark.parametrize("name", ["large", "broken"])
def test_a_large_study_is_short_and_its_figure_comes_first(open_page, name):
    """With details closed, on a desktop: at most 15 screens."""
    page = open_page(name, DESKTOP[0])
    lowest = page.evaluate(LOWEST, ".hero")
    page.evaluate("document.querySelectorAll('details').forEach(d => d.open = false)")

    assert lowest <= DESKTOP[1]
    height = page.evaluate("document.documentElement.scrollHeight")
    assert height <= MOST_SCREENS * DESKTOP[1]


def test_if_all_failed_the_first_screen_says_why_and_what_to_do(open_page):
    page = open_page("all failed", DESKTOP[0])
    verdict = _text(page, ".brief")

    assert re.match(
        r"Nothing was measured: .+ \(\d+ of \d+ planned trials\)\.", verdict
    )
    assert re.match(
        r"Next: .* sweep --study \S+ --retry failed", _text(page, ".brief .next")
    )
    for width, height in (DESKTOP, PHONE):
        page.set_viewport_size({"width": width, "height": height})
        assert page.evaluate(LOWEST, ".brief") <= height
        assert page.evaluate(LOWEST, ".trust li") <= height
