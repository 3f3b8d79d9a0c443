"""Every published page, card and Markdown shows each figure with its interval first."""

import re
from pathlib import Path

import published_studies
import pytest

from reports.exports import exports
from reports.page.sections import verdict
from reports.site.card import make_card
from reports.view.view import view_store
from reports.words import formats
from results.store.study_store import Store

ROOT = Path(__file__).resolve().parents[3]
STUDIES = [published_studies.study(name) for name in published_studies.NAMES]
NUMBER = r"\d[\d.]*"
INTERVAL = re.compile(rf"({NUMBER})(?: %|{formats.TIMES})? \[{NUMBER}, {NUMBER}\]")
FIGURE = re.compile(rf"{NUMBER}(?: %|{formats.TIMES})(?! [Ii]ntervals| \(|, n =)")
"""A percentage or a ratio; "95 % intervals" and "95 %, n = 5" are none."""


def _plain(html):
    text = re.sub(
        r"<svg.*?</svg>|<ul.*?</ul>|<figure.*?</figure>", "", html, flags=re.DOTALL
    )
    # Thousands are apart by a space that is no gap between words.
    text = re.sub(rf"(?<=\d){formats.THIN_SPACE}(?=\d)", "", text)
    return " ".join(re.sub(r"<[^>]+>", " ", text).split())


@pytest.fixture(scope="module", params=STUDIES, ids=lambda path: path.name)
def view(request):
    return view_store(Store.open(request.param))


def _first_screen(view):
    page = ROOT / "docs" / "reports" / "studies" / view.study.plan.study / "index.html"
    text = page.read_text(encoding="utf-8")
    return text[text.index('<section id="verdict"') : text.index("</section>")]


def test_the_first_screen_has_every_interval(view):
    """Rate and efficiency of each backend and mode, the cause, and the comparison."""
    text = _plain(_first_screen(view))
    num_rows = len(view.study.backends) * len(view.study.modes)

    assert len(INTERVAL.findall(text)) >= 2 * num_rows + 1
    assert FIGURE.findall(text)
    for figure in FIGURE.finditer(text):
        assert INTERVAL.match(text, figure.start()), text[figure.start() - 40 :][:90]


def test_the_first_screen_is_that_of_the_records(view):
    """So what was read above is what a build would write."""
    assert _plain(str(verdict.render(view))) in _plain(_first_screen(view))


def test_card_and_markdown_have_every_interval(view):
    """The index of studies, and what is pasted into a pull request."""
    card = make_card(view, "any")
    shown = [_plain(card.verdict), *(_plain(of.text) for of in card.sparks)]
    lines = exports.as_markdown(view.store).splitlines()
    # The badge, the verdict and the table; limits are not figures of the study.
    shown += [
        _plain(line.replace("`", "").replace("\\", ""))
        for line in lines
        if not line.startswith("- ")
    ]

    for text in shown:
        for figure in FIGURE.finditer(text):
            assert INTERVAL.match(text, figure.start()), text


def test_the_readme_has_the_intervals_of_the_default_study():
    """Its table and its picture are of the published study."""
    view = view_store(Store.open(published_studies.study("resnet50-two-cores")))
    readme = (ROOT / "README.md").read_text(encoding="utf-8")

    for point in view.points:
        if point.efficiency is not None:
            text = _plain(formats.estimate(point.efficiency, formats.percent))
            assert f"| {text} |" in readme
