"""What a reader does with a page: point, sort, copy, save; and without scripts."""

import io
import pathlib
import re

import pandas as pd
import pytest

import reports
from results import Failure, Phase, TrialStatus, points_frame

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"


def _download(page, press):
    with page.expect_download() as waiting:
        press()
    return pathlib.Path(waiting.value.path()).read_bytes()


def test_data_and_figures_are_saved(open_page, stores):
    page = open_page("default", scheme="dark")
    link = page.locator("a[download='scaling.csv']")
    found = pd.read_csv(io.BytesIO(_download(page, link.click)))
    points = points_frame(stores("default"))
    expected = points[points.figure == "scaling"]
    figure = page.locator("figure[data-name=step-times]")
    drawing = _download(page, figure.get_by_text("Save as SVG").click).decode()
    picture = _download(page, figure.get_by_text("Save as PNG").click)

    for column in ("value", "backend", "kind"):
        assert expected[column].tolist() == found[column].tolist()
    assert drawing.startswith("<svg")
    assert "var(" not in drawing
    assert "www.w3.org/2000/svg" in drawing
    assert picture.startswith(b"\x89PNG")


def test_a_table_is_sorted_by_number_and_copied_as_tsv(open_page):
    page = open_page("default")
    table = page.locator("#steps table")
    heading = table.locator("thead th", has_text="Peak memory")

    def column():
        values = table.evaluate(
            "t => [...t.tBodies[0].rows].map(row => Number(row.cells[6].dataset.sort))"
        )
        return [float(value) for value in values]

    # As text, 11 would come before 2.
    table.evaluate(
        "t => [...t.tBodies[0].rows].forEach("
        "(row, i) => { row.cells[6].dataset.sort = (7 * i) % 12; })"
    )
    before = column()
    for direction, is_down in (("ascending", False), ("descending", True)):
        heading.get_by_role("button").click()
        assert sorted(before, reverse=is_down) == column()
        assert direction == heading.get_attribute("aria-sort")
    text = page.evaluate("tsvOf(document.querySelector('#steps table'))")
    lines = text.strip().split("\n")
    assert lines[0].startswith("Case (replicas")
    assert 1 == len({line.count("\t") for line in lines})
    assert 1 + 6 == len(lines)


def test_a_copied_cell_is_no_formula(open_page):
    page = open_page("default")
    for text, copied in {
        "=1+1": "'=1+1",
        " @SUM(A1)": "'@SUM(A1)",
        "-2+3": "'-2+3",
        "+cmd|' /C calc'!A0": "'+cmd|' /C calc'!A0",
        "-5.1 % [-7.0, -3.2]": "-5.1 % [-7.0, -3.2]",
        "+3 ms": "+3 ms",
        "-": "-",
        "in_graph": "in_graph",
    }.items():
        found = page.evaluate(
            """text => {
              const table = document.createElement("table");
              table.insertRow().insertCell().textContent = text;
              return tsvOf(table);
            }""",
            text,
        )
        assert f"{copied}\n" == found


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
    page = open_page(reports.write_report(store, tmp_path / "index.html"))

    assert 1 == page.locator("script").count()
    assert 0 == page.locator("img[src=x]").count()
    assert HOSTILE in page.locator("body").inner_text()


PANELS = ".hero svg[role=img]"
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
    """The estimates of a study of three sizes that its first figure draws."""
    points = points_frame(stores("three sizes"))
    of_figure = points[(points.figure == "scaling") & (points.kind == "estimate")]
    return of_figure[of_figure.quantity == "efficiency"]


def test_pointing_at_a_marker_shows_the_row_of_the_frame(open_page, efficiencies):
    page = open_page("three sizes")
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
    page = open_page("three sizes")
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


def test_without_scripts_everything_is_there(open_page, efficiencies):
    scripted = open_page("three sizes")
    plain = open_page("three sizes", is_scripted=False)

    assert 0 == plain.locator("button").count()
    for selector in ("table", "figure svg[role=img]", "section"):
        assert scripted.locator(selector).count() == plain.locator(selector).count()
    _check(plain.locator(f"{PANELS} .tip > title").all_text_contents(), efficiencies)


def test_parts_of_a_step_say_part_interval_and_n(open_page):
    page = open_page("controls", is_scripted=False)
    titles = page.locator(".hero .tip > title").all_text_contents()

    assert len(titles) >= 5
    pattern = (
        r"in_graph, 2 replicas x 8: [\w :,]+: -?[\d.]+ ms per step, 95 % interval"
        r" \[-?[\d.]+,\s-?[\d.]+\], n = 4"
    )
    for title in titles:
        assert re.fullmatch(pattern, title), title
