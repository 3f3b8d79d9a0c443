"""The site in a real Chromium: filter, sort, widths, text that overlaps nothing."""

from pathlib import Path

import pytest

from reports.site import build, comparison
from results import load_study
from results.judging import gate_metrics

METRIC = gate_metrics.THROUGHPUT
MEASURE = Path(__file__).resolve().parents[2] / "browser" / "measure.js"

pytestmark = pytest.mark.processes

STEPS = """
const shown = () => [...document.querySelectorAll("ol.studies > li")]
  .filter((item) => item.getBoundingClientRect().height > 0)
  .map((item) => item.dataset.name);
const choose = (name, value) => {
  const form = document.querySelector("form.filter");
  form.elements[name].value = value;
  form.dispatchEvent(new Event("input", {bubbles: true}));
  return [shown(), form.querySelector("output").textContent];
};
return [shown(), choose("machine", "2 cores of an Other X9"), choose("machine", ""),
  choose("order", "name"), choose("order", "date"), choose("backend", "tf_mirrored")];
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
def index(first, second, elsewhere, page_of_a_study):
    """The index of three studies on two machines."""
    return dict(build.pages([first, second, elsewhere], METRIC))["index.html"]


@pytest.fixture(scope="module")
def compared(first, second):
    """The page of two of them."""
    found = comparison.compare_studies(load_study(first), load_study(second), METRIC)
    return comparison.build(found)


def test_studies_are_filtered_and_sorted(index, evaluate):
    start, machine, every, name, date, backend = evaluate(index, STEPS)

    assert ["elsewhere", "after", "before"] == start
    assert [["elsewhere"], "1 of 3 studies"] == machine
    assert "3 of 3 studies" == every[1]
    assert ["after", "before", "elsewhere"] == name[0]
    assert ["elsewhere", "after", "before"] == date[0] == backend[0]


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
