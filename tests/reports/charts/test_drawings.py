"""Drawings of a page: axes, labels, colours, heat maps, and a smaller text of each."""

import itertools
import pathlib
import re

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure
from synthetic import interleaving_shape

import reports
from replicator import catalog
from reports import plot, view
from reports.charts import over_replicas, rows, runs, style
from reports.charts.svg import compact
from reports.page import page
from reports.page.sections import overview
from reports.page.sections import steps as steps_lib
from reports.view import view_store
from results.figures import frame

mpl.use("agg")


def _first_screen(store):
    return str(overview.render_verdict(view_store(store)))


def test_the_figure_is_linear_from_zero_and_labels_its_lines(interleaved):
    drawn = over_replicas.draw_first_screen(interleaved)

    for text in ("in_graph, weak: 100", "tf_mirrored", "replicas", ">0"):
        assert text in drawn


def test_the_ceiling_is_of_programs_that_never_communicate(controlled):
    (first, *_) = over_replicas.curves_of_first_screen(view_store(controlled))
    (found,) = first.of_kind("ceiling")

    assert found.num_replicas == 2
    assert found.value == pytest.approx(50 / 52, rel=0.02)
    assert "programs that never communicate" in _first_screen(controlled)


def test_a_panel_has_at_most_seven_lines_and_room_for_their_names(make):
    backends = ("in_graph", "tf_mirrored", "multi_worker_in_graph", "async", "x" * 80)
    store = make(backends=backends)
    drawn = over_replicas.draw_first_screen(view_store(store)).partition("</desc>")[2]
    few = make(backends=backends[-3:])
    labels = over_replicas.draw_first_screen(view_store(few)).partition("</desc>")[2]

    assert len(over_replicas.curves_of_first_screen(view_store(store))) == 10
    large = make(backends=backends, replicas=(1, 2, 4), repeats=1)
    assert "3 more lines in the table" in _first_screen(large)
    assert ">multi_worker_in_graph<" in drawn
    assert f">{'x' * 23}\N{HORIZONTAL ELLIPSIS}<" in labels


@pytest.mark.parametrize(
    ("quantity", "is_log", "is_even"),
    [("efficiency", False, True), ("speedup", False, False), ("speedup", True, True)],
)
def test_efficiency_is_over_doublings(make, quantity, is_log, is_even):
    points = frame.points_frame(make(replicas=(1, 2, 4)))
    axes = plot.scaling(points, quantity=quantity, is_log=is_log)
    places = axes.transData.transform([(size, 1.0) for size in (1, 2, 4)])[:, 0]
    plt.close("all")

    assert is_even == (places[2] - places[1] == pytest.approx(places[1] - places[0]))


@given(st.lists(st.floats(0, 1), min_size=1, max_size=7, unique=True))
def test_labels_never_overlap_and_stay_within(lines):
    heights = [0.1 + 0.02 * (k % 2) for k in range(len(lines))]
    moved = style.spread(lines, heights, 0.0, 1.0)
    order = sorted(range(len(lines)), key=lambda k: lines[k])

    for below, above in itertools.pairwise(order):
        gap = moved[above] - moved[below]
        assert gap >= (heights[above] + heights[below]) / 2 - 1e-9
    assert max(m + h / 2 for m, h in zip(moved, heights, strict=True)) <= 1 + 1e-9
    assert min(m - h / 2 for m, h in zip(moved, heights, strict=True)) >= -1e-9
    if len(lines) == 1 and 0.05 <= lines[0] <= 0.95:
        assert moved[0] == pytest.approx(lines[0])


def test_cells_are_relative_to_the_median_and_binned():
    """A slow process is a slow row; a slow moment is a slow column."""
    times = np.ones((3, 100))
    times[1] = 1.2
    times[:, 96:99] = 2.0
    cells = runs.binned([list(row) for row in times])

    assert cells.shape == (3, 34)
    assert cells[[0, 1, 0], [0, 0, 32]] == pytest.approx([1.0, 1.2, 2.0])
    # A process that was killed has fewer: the steps that all have count.
    assert runs.binned([[1.0] * 7, [1.0] * 5]).shape == (2, 5)


def test_a_slow_process_is_named_in_the_description():
    times = [[1.0] * 20, [1.5] * 20, [1.0] * 20]
    drawn = runs.draw_processes(times, backend="in_graph", name="case")

    assert "process 1 is the slowest with 1.50 of the median" in drawn


def test_boxes_have_one_height_wherever_the_rows_of_a_backend_are():
    items = [
        rows.Row(label=name, backend=name, dots=(1.0, 2.0, 3.0, 4.0))
        for name in ("in_graph", "single", "single", "in_graph")
    ]
    axes = Figure().subplots()
    runs.draw_boxes(axes, items, axis_label="ms", look=style.NOTEBOOK)
    boxes = [of for of in axes.lines if len(of.get_xdata()) == 5]

    assert {runs.BOX_WIDTH} == {round(float(np.ptp(of.get_ydata())), 6) for of in boxes}


def test_a_case_of_several_processes_has_a_heat_map(make):
    several, one = (
        steps_lib.render_steps(
            view_store(make(interleaving_shape(num_ranks=number, controls=())))
        )
        for number in (2, 1)
    )

    assert "Step time by process and step" in several
    assert "Step time by process" not in one


LEAST_CONTRAST = 3.0
STYLE = pathlib.Path(reports.__file__).parent / "page" / "templates" / "style.css"


def _luminance(color):
    parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [
        c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts
    ]
    return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_marks_stand_out_from_the_paper(scheme):
    found = re.findall(r"--([\w-]+): (#[0-9a-f]{6});", STYLE.read_text())
    number = len(found) // 2
    colors = dict(found[scheme * number : (scheme + 1) * number])
    shown = [f"series-{index}" for index in range(view.NUM_SERIES)]
    for name in (*shown, "muted", "good", "bad", "warn", "accent"):
        dark, bright = sorted(_luminance(colors[of]) for of in (name, "paper"))
        assert (bright + 0.05) / (dark + 0.05) >= LEAST_CONTRAST, name


def test_the_first_ten_backends_of_the_catalogue_have_their_own():
    chosen = list(view.SERIES_OF_BACKEND.values())

    assert set(view.SERIES_OF_BACKEND) == set(catalog.BACKENDS)
    assert len(set(chosen)) == len(chosen)
    assert set(chosen) <= set(range(view.NUM_SERIES))
    assert len(set(style.MARKERS)) == len(set(page.SHAPES)) == view.NUM_SERIES
    assert view.series_of("mine") == 1  # in every process
    assert 0 <= view.series_of("") < view.NUM_SERIES


MARK = '<use href="#m" x="{}" y="2" style="fill: {}"/>\n'
ONE, TWO, OTHER = (MARK.format(*of) for of in ((1, "red"), (2, "red"), (2, "blue")))


@pytest.mark.parametrize(
    ("drawing", "smaller"),
    [
        # A line to where it is already is left out, where the whole point is repeated.
        ('<path d="M 0 0 L 1 2 L 1 2 L 1 2 L 3 4"/>', '<path d="M0 0L1 2L3 4"/>'),
        # A dot, by its round ends.
        ('<path d="M 1 2 L 1 2 L 1 2"/>', '<path d="M1 2L1 2"/>'),
        ('<path d="M 0 0 L 1 2 L 1 2.5 L 1 25"/>', '<path d="M0 0L1 2L1 2.5L1 25"/>'),
        ('<path d="M 0 0 L -1.5 2 L -1.5 2 z"/>', '<path d="M0 0L-1.5 2z"/>'),
        ('<g/>\n<path d="M 0 0 \nL 1 2 \n"/>', '<path d="M0 0L1 2"/>'),
        # Texts keep their spaces; marks of one style share it, others keep theirs.
        ("<g>\n<text>a, b: c; d</text>\n</g>", "<text>a, b: c; d</text>"),
        (
            f'<g clip-path="url(#a)">\n{ONE}{TWO}</g>',
            f'<g clip-path="url(#a)" style="fill:red">\n{ONE}{TWO}</g>'.replace(
                ' style="fill: red"', ""
            ).replace(">\n<use", "><use", 1),
        ),
        (
            f'<g clip-path="url(#a)">\n{ONE}{OTHER}</g>',
            f"{ONE}{OTHER}".replace(": ", ":"),
        ),
    ],
)
def test_a_drawing_is_smaller_and_says_the_same(drawing, smaller):
    assert smaller in compact(drawing)
