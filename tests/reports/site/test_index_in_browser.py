"""The site in a real Chromium: filter, sort, widths, text that overlaps nothing."""

import html
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from reports.site import build, comparison
from results import load_study
from results.judging import gate_metrics

CHROMIUM = next(
    (
        path
        for name in ("chromium", "chromium-browser", "google-chrome")
        if (path := shutil.which(name))
    ),
    None,
)
METRIC = gate_metrics.THROUGHPUT

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed here"),
]

SHOWN = """
const shown = () => [...document.querySelectorAll("ol.studies > li")]
  .filter((item) => item.getBoundingClientRect().height > 0)
  .map((item) => item.dataset.name);
const choose = (name, value) => {
  const form = document.querySelector("form.filter");
  form.elements[name].value = value;
  form.dispatchEvent(new Event("input", {bubbles: true}));
  return [shown(), form.querySelector("output").textContent];
};
"""

MEASURE = Path(__file__).resolve().parents[2] / "browser" / "measure.js"


@pytest.fixture
def evaluate(tmp_path):
    """Returns a function that loads a page and evaluates an expression in it."""

    def run(page, setup, expression, *, width=1280):
        script = (
            f"<script>{setup}\ndocument.body.append(Object.assign("
            "document.createElement('pre'), {id: 'found', textContent:"
            f" JSON.stringify({expression})}}));</script>"
        )
        path = tmp_path / "page.html"
        path.write_text(page.replace("</body>", f"{script}</body>"), encoding="utf-8")
        done = subprocess.run(
            [
                *(str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu"),
                f"--user-data-dir={tmp_path / 'profile'}",
                *(f"--window-size={width},900", "--dump-dom", path.as_uri()),
            ],
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
        )
        match = re.search(r'<pre id="found">(.*?)</pre>', done.stdout, re.DOTALL)
        assert match is not None, done.stdout[-2000:]
        return json.loads(html.unescape(match[1]))

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
    steps = (
        '[shown(), choose("machine", "2 cores of an Other X9"), choose("machine", ""),'
        ' choose("order", "name"), choose("order", "date"), choose("backend",'
        ' "tf_mirrored")]'
    )
    start, machine, every, name, date, backend = evaluate(index, SHOWN, steps)

    assert ["elsewhere", "after", "before"] == start
    assert [["elsewhere"], "1 of 3 studies"] == machine
    assert "3 of 3 studies" == every[1]
    assert ["after", "before", "elsewhere"] == name[0]
    assert ["elsewhere", "after", "before"] == date[0] == backend[0]


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize("width", [500, 768, 1280])
@pytest.mark.parametrize("name", ["compared", "index"])
def test_no_page_scrolls_sideways(request, evaluate, name, width):
    sizes = "[document.documentElement.scrollWidth, innerWidth]"
    content, window = evaluate(request.getfixturevalue(name), "", sizes, width=width)

    assert content <= window


def test_no_text_of_a_figure_overlaps_another(index, compared, evaluate):
    measure = f"const measure = {MEASURE.read_text(encoding='utf-8')};"
    for page in (index, compared):
        assert [] == evaluate(page, measure, "measure().found")
