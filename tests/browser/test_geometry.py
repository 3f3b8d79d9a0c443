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
MOST_SCREENS = 12
A4 = {"width": "210mm", "height": "297mm"}


@pytest.mark.parametrize("name", SHAPES)
def test_no_text_overlaps_or_leaves_its_panel_and_no_page_scrolls_sideways(
    open_page, measure, name
):
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
        assert on_phone["figures"] >= 1
        assert on_phone["smallest"] >= SMALLEST_TEXT


def test_a_default_sweep_prints_on_few_pages(open_page):
    pdf = open_page("default").pdf(
        **A4, margin=dict.fromkeys(("top", "bottom"), "12mm")
    )
    assert len(re.findall(rb"/Type\s*/Page\b", pdf)) <= MOST_PAGES


DESKTOP, PHONE = (1280, 900), (390, 844)

FACTS = {
    "what was measured": (".answer", r"ResNet-50 trains"),
    "how well does it scale": (".answer", r"times as fast on two cores \([\d.]+\s% of"),
    "compared with what": (".answer", r"as fast as MirroredStrategy|in_graph alone"),
    "how sure": (".basis", r"95\s% intervals over \d"),
    "on what machine": ("h1", r"on 2 cores of an? \w+"),
    "what to do": (".next", r"\S+ \S+"),
}
LOWEST = """(selector) => Math.max(...[...document.querySelectorAll(selector)]
    .map((element) => element.getBoundingClientRect().bottom))"""


def _text(page, selector):
    return " ".join(page.locator(selector).inner_text().split())


@pytest.mark.parametrize("name", ["default", "controls"])
def test_six_facts_are_within_the_first_screen(open_page, name):
    page = open_page(name, DESKTOP[0])

    assert page.evaluate(LOWEST, ".first") <= DESKTOP[1]
    for fact, (selector, pattern) in FACTS.items():
        assert re.search(pattern, _text(page, selector)), fact
    assert page.locator(".trust > li").count() >= 1
    page.set_viewport_size({"width": PHONE[0], "height": PHONE[1]})
    for selector in ("h1", ".answer", ".measured", ".basis"):
        assert page.evaluate(LOWEST, selector) <= PHONE[1], selector
    if page.locator(".hero").count():
        assert page.evaluate(LOWEST, ".next") <= page.evaluate(LOWEST, ".hero")


@pytest.mark.parametrize("name", ["large", "broken"])
def test_a_large_study_is_short_and_its_figure_comes_first(open_page, name):
    page = open_page(name, DESKTOP[0])
    lowest = page.evaluate(LOWEST, ".hero")

    assert lowest <= 1.5 * DESKTOP[1]
    height = page.evaluate("document.documentElement.scrollHeight")
    assert height <= MOST_SCREENS * DESKTOP[1]


def test_if_all_failed_the_first_screen_says_why_and_what_to_do(open_page):
    page = open_page("all failed", DESKTOP[0])
    verdict = _text(page, ".answer")

    assert re.match(
        r"Nothing was measured: .+ \(\d+ of \d+ planned trials\)\.", verdict
    )
    assert re.match(r".* sweep --study \S+ --retry failed", _text(page, ".next"))
    for width, height in (DESKTOP, PHONE):
        page.set_viewport_size({"width": width, "height": height})
        assert page.evaluate(LOWEST, ".first") <= height
