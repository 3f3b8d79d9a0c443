"""The site in a real Chromium: filter, sort, widths, text that overlaps nothing."""

from pathlib import Path

import pytest

from reports import compare_studies, comparison_page
from results import load_study
from results.judging import metric_of
from tests.reports.conftest import site_of

MEASURE = Path(__file__).resolve().parents[2] / "browser" / "measure.js"

pytestmark = pytest.mark.processes

STEPS = """
const rows = () => [...document.querySelectorAll("table.studies tbody tr")]
  .filter((row) => row.getBoundingClientRect().height > 0)
  .map((row) => row.dataset.name);
const filter = (words) => {
  const form = document.querySelector("form.filter");
  form.elements.words.value = words;
  form.dispatchEvent(new Event("input", {bubbles: true}));
  return [rows(), form.querySelector("output").textContent];
};
const sort = (name) => {
  [...document.querySelectorAll("table.studies th button")]
    .find((one) => one.textContent === name).click();
  return rows();
};
const tick = (name) => {
  document.querySelector(`tr[data-name=${name}] input`).click();
  const panel = document.querySelector(".compare");
  const link = panel.querySelector("a[href^=compare]");
  return [panel.innerText, link?.getAttribute("href")];
};
return [rows(), filter("other x9"), filter(""), sort("Study"), sort("Date"),
  tick("before"), tick("after"), tick("elsewhere")];
"""


@pytest.fixture(scope="module")
def evaluate(browser):
    """Returns a function that loads a page and evaluates the body of a function."""

    def run(page, body, *, width=1280):
        tab = browser.new_page(viewport={"width": width, "height": 900})
        tab.set_content(page)
        found = tab.evaluate(f"() => {{ {body} }}")
        tab.close()
        return found

    return run


@pytest.fixture(scope="module")
def index(first, second, elsewhere, page_of_a_study, tmp_path_factory):
    """The index of three studies on two machines."""
    folder = tmp_path_factory.mktemp("site")
    return site_of([first, second, elsewhere], folder)["index.html"]


@pytest.fixture(scope="module")
def compared(first, second):
    """The page of two of them."""
    studies = map(load_study, (first, second))
    return comparison_page(compare_studies(*studies, metric_of("throughput")))


def test_studies_are_filtered_sorted_and_compared_by_ticking_two(index, evaluate):
    start, other, every, name, date, one, two, three = evaluate(index, STEPS)

    assert ["elsewhere", "after", "before"] == start
    assert [["elsewhere"], "1 of 3 studies"] == other
    assert "3 of 3 studies" == every[1]
    assert ["after", "before", "elsewhere"] == name
    assert ["before", "after", "elsewhere"] == date
    assert "" == one[0]
    assert "compare/after-and-before.html" == two[1]
    assert {"before", "after"} <= set(two[0].split())
    assert "elsewhere" in three[0]
    assert three[1] is None


@pytest.mark.parametrize("width", [500, 768, 1280])
@pytest.mark.parametrize("name", ["compared", "index"])
def test_no_page_scrolls_sideways(request, evaluate, name, width):
    sizes = "return [document.documentElement.scrollWidth, innerWidth];"
    content, window = evaluate(request.getfixturevalue(name), sizes, width=width)

    assert content <= window == width


def test_no_text_of_a_figure_overlaps_another(index, compared, evaluate):
    measure = f"return ({MEASURE.read_text(encoding='utf-8')})().found;"
    for page in (index, compared):
        assert [] == evaluate(page, measure)
