"""What a reader sees without scrolling answers five questions, on desktop and phone."""

import re

import pytest

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
HOW_SURE = r"^(Reliable|With caution \([\w ,]+\)|Not reliable \([\w ,]+\)):$"
LOWEST = """(selector) => Math.max(...[...document.querySelectorAll(selector)]
    .map((element) => element.getBoundingClientRect().bottom))"""


def _text(page, selector):
    return " ".join(page.locator(selector).inner_text().split())


@pytest.mark.parametrize("name", ["default", "controls"])
def test_five_facts_are_within_the_first_screen(open_page, name):
    """In the words of the verdict; with how sure that is, and what to do next."""
    page = open_page(name, DESKTOP[0])
    verdict = f"{_text(page, '.measured')} {_text(page, '.brief')}"

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


@pytest.mark.parametrize("name", ["default", "controls", "large", "broken"])
def test_the_figure_is_within_the_first_screen_of_a_desktop(open_page, name):
    page = open_page(name, DESKTOP[0])

    assert page.evaluate(LOWEST, ".hero") <= DESKTOP[1]


def test_if_all_failed_the_first_screen_says_why_and_what_to_do(open_page):
    """The reason, how often, and the verb that continues."""
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
