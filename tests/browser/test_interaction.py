"""What a reader does with a page: point, switch, sort, copy; and without scripts."""

import io
import pathlib
import re

import pandas as pd
import pytest

from reports.page import build
from results.figures import frame
from results.records.models import Failure, Phase, TrialStatus

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"


def _download(page, press):
    with page.expect_download() as waiting:
        press()
    return pathlib.Path(waiting.value.path()).read_bytes()


@pytest.mark.parametrize(
    "is_scripted", [pytest.param(True, marks=pytest.mark.full), False]
)
def test_the_switch_shows_one_quantity_at_a_time(open_page, *, is_scripted):
    """It is made of style sheets only; the full run has scripts as well."""
    page = open_page("default", is_scripted=is_scripted)
    page.locator("label[for=show-throughput]").click()
    page.locator("label[for=show-log]").click()

    assert page.locator(".shown-throughput.shown-log").is_visible()
    assert 1 == page.locator(".switch > .panels:visible").count()


@pytest.mark.parametrize(
    "is_scripted", [True, pytest.param(False, marks=pytest.mark.full)]
)
def test_the_downloaded_data_are_those_of_the_frame(open_page, stores, *, is_scripted):
    """Every row of the figure, with all digits."""
    page = open_page("default", is_scripted=is_scripted)
    link = page.locator("a[download='scaling.csv']")
    found = pd.read_csv(io.BytesIO(_download(page, link.click)))
    points = frame.points_frame(stores("default"))
    expected = points[points.figure == "scaling"]

    assert expected["value"].tolist() == found["value"].tolist()
    assert expected["backend"].tolist() == found["backend"].tolist()
    assert expected["kind"].tolist() == found["kind"].tolist()


def test_a_figure_is_saved_as_svg_and_png(open_page):
    """The file stands alone: no variable of the page is left in it."""
    page = open_page("default", scheme="dark")
    figure = page.locator("figure[data-name=backends]")
    drawing = _download(page, figure.get_by_text("Save as SVG").click).decode()
    picture = _download(page, figure.get_by_text("Save as PNG").click)

    assert drawing.startswith("<svg")
    assert "var(" not in drawing
    assert "www.w3.org/2000/svg" in drawing
    assert picture.startswith(b"\x89PNG")


def test_a_column_is_sorted_by_number(open_page):
    """Ascending, then descending; the heading says which."""
    page = open_page("default")
    table = page.locator("#summary table")
    heading = table.locator("thead th", has_text="Throughput")

    def column():
        values = table.evaluate(
            "t => [...t.tBodies[0].rows].map(row => Number(row.cells[4].dataset.sort))"
        )
        return [float(value) for value in values]

    before = column()
    heading.get_by_role("button").click()
    assert sorted(before) == column()
    assert "ascending" == heading.get_attribute("aria-sort")
    heading.get_by_role("button").click()
    assert sorted(before, reverse=True) == column()
    assert "descending" == heading.get_attribute("aria-sort")


def test_a_table_is_copied_as_tsv(open_page):
    """As many columns in every line, headings first."""
    page = open_page("default")
    text = page.evaluate("tsvOf(document.querySelector('#summary table'))")
    lines = text.strip().split("\n")

    assert lines[0].startswith("Backend\tMode\tReplicas")
    assert 1 == len({line.count("\t") for line in lines})
    assert 1 + 8 == len(lines)


@pytest.mark.parametrize(
    ("text", "copied"),
    [
        ("=1+1", "'=1+1"),
        (" @SUM(A1)", "'@SUM(A1)"),
        ("-2+3", "'-2+3"),
        ("+cmd|' /C calc'!A0", "'+cmd|' /C calc'!A0"),
        ("-5.1 % [-7.0, -3.2]", "-5.1 % [-7.0, -3.2]"),
        ("+3 ms", "+3 ms"),
        ("-", "-"),
        ("in_graph", "in_graph"),
    ],
)
def test_a_copied_cell_is_no_formula(open_page, text, copied):
    """As in the files; figures with a sign stay figures."""
    found = open_page("default").evaluate(
        """text => {
          const table = document.createElement("table");
          table.insertRow().insertCell().textContent = text;
          return tsvOf(table);
        }""",
        text,
    )

    assert f"{copied}\n" == found


def test_without_scripts_everything_is_readable(open_page):
    """No button that does nothing; every table and figure is there."""
    scripted = open_page("default")
    plain = open_page("default", is_scripted=False)

    assert 0 == plain.locator("button").count()
    for selector in ("table", "figure svg[role=img]", "section"):
        assert scripted.locator(selector).count() == plain.locator(selector).count()


def test_hostile_text_is_shown_and_never_run(open_page, tmp_path, synthetic):
    shape = synthetic.Shape(
        name=HOSTILE,
        backends=("in_graph", HOSTILE),
        modes=(synthetic.WEAK,),
        replicas=(1, 2),
        statuses={("in_graph", synthetic.WEAK, 2, 0): TrialStatus.FAILED},
    )
    failure = Failure(
        phase=Phase.BUILD, reason=HOSTILE, exception_type="E", traceback=HOSTILE
    )
    before = dict(synthetic.synthetic_trial.FAILURES)
    synthetic.synthetic_trial.FAILURES[TrialStatus.FAILED] = failure
    try:
        store = synthetic.make_store(tmp_path / "study", shape)
    finally:
        synthetic.synthetic_trial.FAILURES.update(before)
    page = open_page(build.write_report(store, tmp_path / "index.html"))

    assert 1 == page.locator("script").count()
    assert 0 == page.locator("img[src=x]").count()
    assert HOSTILE in page.locator("body").inner_text()


PANELS = ".shown-efficiency.shown-linear svg"
HALF_A_DIGIT = 0.5
TEXT = re.compile(
    r"(?P<backend>\w+), (?P<mode>\w+) scaling, (?P<size>\d+) replicas?: "
    r"(?P<what>\w+): (?P<value>[\d.]+)\s?%"
    r"(?:, 95 % interval \[(?P<low>[\d.]+),\s(?P<high>[\d.]+)\], n = (?P<n>\d+)"
    r"|, by definition)"
)


def _check(texts, expected):
    """Compares what points say with the rows of the frame, to the digits shown."""
    found = [match for text in texts if (match := TEXT.fullmatch(text))]
    assert len(texts) == len(found) == len(expected)
    keys = ["backend", "mode", "num_replicas"]
    rows = expected.set_index(keys).sort_index()
    for match in found:
        row = rows.loc[(match["backend"], match["mode"], int(match["size"]))]
        assert "efficiency" == match["what"]
        shown = {"value": match["value"], "low": match["low"], "high": match["high"]}
        for name, text in shown.items():
            if text is None:
                assert row["is_baseline"]
                continue
            digits = len(text.partition(".")[2])
            error = abs(100 * row[name] - float(text))
            assert error <= HALF_A_DIGIT * 10**-digits + 1e-9, (name, match[0])
        if match["n"] is not None:
            assert row["n"] == int(match["n"])


@pytest.fixture(scope="module")
def efficiencies(stores):
    """The estimates of the default study that its first figure draws."""
    points = frame.points_frame(stores("default"))
    of_figure = points[(points.figure == "scaling") & (points.kind == "estimate")]
    return of_figure[of_figure.quantity == "efficiency"]


def test_pointing_at_a_marker_shows_the_row_of_the_frame(open_page, efficiencies):
    """Value, interval and n, in a note within the page; it goes with the pointer."""
    page = open_page("default")
    note = page.locator(".tip-note")
    texts = []
    for point in page.locator(f"{PANELS} .tip").all():
        point.scroll_into_view_if_needed()
        box = point.bounding_box()
        x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
        page.mouse.move(x, y)
        texts.append(note.inner_text())
        seen = note.bounding_box()
        assert seen["x"] >= 0
        assert seen["x"] + seen["width"] <= 1280
    page.mouse.move(2, 2)

    _check(texts, efficiencies)
    assert not note.is_visible()


def test_arrow_keys_say_the_same_as_the_pointer(open_page, efficiencies):
    """A figure is one stop of the tabulator; Escape takes the note away."""
    page = open_page("default")
    note = page.locator(".tip-note")
    texts = []
    for panel in page.locator(PANELS).all():
        panel.focus()
        for _ in range(panel.locator(".tip").count()):
            page.keyboard.press("ArrowRight")
            texts.append(note.inner_text())
        page.keyboard.press("Escape")
        assert not note.is_visible()

    _check(texts, efficiencies)


def test_without_scripts_points_have_titles(open_page, efficiencies):
    """The browser shows them by itself."""
    page = open_page("default", is_scripted=False)
    titles = page.locator(f"{PANELS} .tip > title").all_text_contents()

    _check(titles, efficiencies)


def test_every_marker_of_an_estimate_says_its_n(open_page):
    """In every figure with estimates; a baseline of efficiency is fixed instead."""
    page = open_page("default", is_scripted=False)
    least = {
        ".hero": 8,
        "figure[data-name=scaling]": 6 * 8,
        "figure[data-name=backends]": 3,
        "#startup": 4,
    }
    for figure, number in least.items():
        titles = page.locator(f"{figure} .tip > title").all_text_contents()

        assert len(titles) >= number, figure
        for title in titles:
            assert re.search(r", (n = \d+|by definition)$", title), title


def test_bars_of_a_waterfall_say_part_interval_and_n(open_page):
    """In ms, negative parts too."""
    page = open_page("controls", is_scripted=False)
    titles = page.locator("#lost-time .tip > title").all_text_contents()

    assert len(titles) >= 6
    pattern = (
        r"in_graph x2: [\w :,]+: -?[\d.]+ ms per step, 95 % interval \[-?[\d.]+,\s"
        r"-?[\d.]+\], n = 4"
    )
    for title in titles:
        assert re.fullmatch(pattern, title), title
