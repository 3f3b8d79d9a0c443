"""Drawings of a page: axes, labels, colours, heat maps, and a smaller text of each."""

import itertools
import pathlib
import re

import numpy as np
import pytest
from matplotlib.figure import Figure
from relay_study import RelayShape, make_store

import reports
from replicator import catalog
from reports.charts import over_replicas, rows, steps, style
from reports.charts.over_replicas import ReplicasAxis
from reports.charts.svg import compact
from reports.page import page
from reports.page.sections import overview
from reports.page.sections import steps as steps_lib
from reports.view import view
from reports.view.view import view_store
from results.records.models import ScalingMode

WEAK, STRONG = ScalingMode.WEAK, ScalingMode.STRONG


def _first_screen(store):
    return str(overview.render_verdict(view_store(store)))


def test_the_figure_is_linear_from_zero_and_labels_its_lines(relay):
    """All in words too; labels name backend and mode."""
    drawn = over_replicas.draw_first_screen(relay)
    assert drawn is not None

    assert "in_graph, weak: 100" in drawn
    for text in ("in_graph", "tf_mirrored", "replicas", ">0"):
        assert text in drawn


def test_the_ceiling_is_that_of_programs_that_never_communicate(controlled):
    """Two programs at 52 ms beside one at 50 ms: 96 %."""
    (first, *_) = over_replicas.curves_of_first_screen(view_store(controlled))
    (found,) = first.of_kind("ceiling")

    assert found.num_replicas == 2
    assert found.value == pytest.approx(50 / 52, rel=0.02)
    assert "Short line: ceiling" in _first_screen(controlled)


def test_a_panel_has_at_most_seven_lines(tmp_path, synthetic):
    """The others are counted in the caption."""
    backends = ("in_graph", "tf_mirrored", "multi_worker", "tf_multi_worker", "async")
    store = synthetic.make_store(tmp_path, synthetic.Shape(backends=backends))

    assert len(over_replicas.curves_of_first_screen(view_store(store))) == 10
    assert "3 more lines below" in _first_screen(store)


def test_replicas_are_linear_up_to_sixteen():
    """Beyond, doublings are equally far apart."""
    few, many = (
        ReplicasAxis(sizes=sizes, is_log=is_log)
        for sizes, is_log in (((1, 2, 16), False), ((1, 2, 64), True))
    )

    assert over_replicas.MOST_LINEAR == 16
    assert 2.0 == few(2) == many(2)
    assert few(2, 0.5) - few(2) == pytest.approx(few(16, 0.5) - few(16))
    assert many(2, 0.5) / many(2) == pytest.approx(many(64, 0.5) / many(64))
    # Of a single number there is no line to draw, and no division by zero.
    axis = ReplicasAxis(sizes=(4,), is_log=False)
    low, high = axis.limits
    assert low < axis(4, -0.1) < axis(4, 0.1) < high


def test_labels_never_overlap_and_stay_within():
    """They move as little as is needed, in the order of their lines."""
    places = [0.9, 0.91, 0.92, 0.2, 0.99]
    heights = [0.1, 0.1, 0.1, 0.1, 0.2]
    moved = style.spread(places, heights, 0.0, 1.0)
    order = sorted(range(5), key=lambda k: places[k])

    assert moved[3] == pytest.approx(0.2)
    for below, above in itertools.pairwise(order):
        gap = moved[above] - moved[below]
        assert gap >= (heights[above] + heights[below]) / 2 - 1e-9
    assert max(m + h / 2 for m, h in zip(moved, heights, strict=True)) <= 1 + 1e-9
    assert min(m - h / 2 for m, h in zip(moved, heights, strict=True)) >= -1e-9


def test_long_names_leave_room_for_the_lines(tmp_path, synthetic):
    """The longest backend of the catalogue is whole, a longer one is cut."""
    shape = synthetic.Shape(backends=("multi_worker_in_graph", "x" * 80))
    drawn = over_replicas.draw_first_screen(
        view_store(synthetic.make_store(tmp_path, shape))
    )
    assert drawn is not None
    labels_of = drawn.partition("</desc>")[2]

    assert ">multi_worker_in_graph<" in labels_of
    assert f">{'x' * 23}\N{HORIZONTAL ELLIPSIS}<" in labels_of


def _plain(text):
    return re.sub(r"\s", " ", text)


def test_cells_are_relative_to_the_median_and_binned():
    """A slow process is a slow row; a slow moment is a slow column."""
    times = np.ones((3, 100))
    times[1] = 1.2
    times[:, 96:99] = 2.0
    cells = steps.binned([list(row) for row in times])

    assert cells.shape == (3, 34)
    assert cells[0, 0] == pytest.approx(1.0)
    assert cells[1, 0] == pytest.approx(1.2)
    assert cells[0, 32] == pytest.approx(2.0)
    # A process that was killed has fewer: the steps that all have count.
    assert steps.binned([[1.0] * 7, [1.0] * 5]).shape == (2, 5)


def test_a_slow_process_is_named_in_the_description():
    """For readers who do not see it."""
    times = [[1.0] * 20, [1.5] * 20, [1.0] * 20]
    drawn = steps.draw_processes(times, backend="in_graph", name="case")

    assert "process 1 is the slowest with 1.50 of the median" in drawn


def test_boxes_have_one_height_wherever_the_rows_of_a_backend_are():
    """Rows of other backends are between them, and are not covered."""
    items = [
        rows.Row(label=name, backend=name, dots=(1.0, 2.0, 3.0, 4.0))
        for name in ("in_graph", "single", "single", "in_graph")
    ]
    axes = Figure().subplots()
    steps.draw_boxes(axes, items, axis_label="ms", look=style.NOTEBOOK)
    heights = {
        round(float(np.ptp(of.get_ydata())), 6)
        for of in axes.lines
        if len(of.get_xdata()) == 5
    }

    assert {steps.BOX_WIDTH} == heights


def test_each_backend_has_its_fewest_and_most_replicas(tmp_path, synthetic):
    """At the most, one for each scaling mode; seven lines in all."""
    shape = synthetic.Shape(backends=("in_graph", "tf_mirrored", "single"))
    shown = _plain(
        steps_lib.render_variation(view_store(synthetic.make_store(tmp_path, shape)))
    )

    assert "Distribution of step times" in shown
    assert shown.count(": median ") == style.MOST_LINES
    assert "in_graph x1, batch 8: median" in shown


def test_a_scaling_mode_has_the_line_style_that_it_has_in_all_figures(
    tmp_path, synthetic, monkeypatch
):
    """What both modes are compared with is dotted, as ideal scaling is."""
    drawn = {}

    def draw(items, dashes):
        drawn.update(zip((item.label for item in items), dashes, strict=True))
        return "figure"

    monkeypatch.setattr(steps_lib.charts, "draw_distribution", draw)
    shape = synthetic.Shape(backends=("in_graph",))
    shown = steps_lib.render_variation(
        view_store(synthetic.make_store(tmp_path, shape))
    )

    most = max(shape.replicas)
    assert {
        "in_graph x1\nbatch 8": ":",
        f"in_graph x{most}\nbatch 8": style.DASHES["weak"],
        f"in_graph x{most}\nbatch {8 // most}": style.DASHES["strong"],
    } == drawn
    assert "Dotted: the fewest replicas" in shown


def test_a_case_of_several_processes_has_a_heat_map(tmp_path):
    several = make_store(tmp_path / "several", RelayShape(num_ranks=2, controls=()))
    one = make_store(tmp_path / "one", RelayShape(controls=()))

    assert "Step time by process and step" in steps_lib.render_variation(
        view_store(several)
    )
    assert "Step time by process" not in steps_lib.render_variation(view_store(one))


LEAST_CONTRAST = 3.0
STYLE = pathlib.Path(reports.__file__).parent / "page" / "templates" / "style.css"


def _luminance(color):
    parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [
        c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts
    ]
    return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def _contrast(first, second):
    bright, dark = sorted((_luminance(first), _luminance(second)), reverse=True)
    return (bright + 0.05) / (dark + 0.05)


def test_the_first_ten_backends_of_the_catalogue_have_their_own():
    """No two of them share a colour or a marker; there are no more than ten."""
    chosen = list(view.SERIES_OF_BACKEND.values())

    assert set(view.SERIES_OF_BACKEND) == set(catalog.BACKENDS)
    assert len(set(chosen)) == len(chosen)
    assert set(chosen) <= set(range(view.NUM_SERIES))
    assert len(set(style.MARKERS)) == len(set(page.SHAPES)) == view.NUM_SERIES


def test_an_unknown_backend_has_one_too():
    """The same in every process."""
    assert view.series_of("mine") == 1
    assert 0 <= view.series_of("") < view.NUM_SERIES


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_marks_stand_out_from_the_paper(scheme):
    """Every colour has at least 3:1, in both schemes."""
    found = re.findall(r"--([\w-]+): (#[0-9a-f]{6});", STYLE.read_text())
    number = len(found) // 2
    colors = dict(found[scheme * number : (scheme + 1) * number])
    shown = [f"series-{index}" for index in range(view.NUM_SERIES)]
    shown += ["muted", "good", "bad", "warn", "accent"]

    assert not {
        name: ratio
        for name in shown
        if (ratio := _contrast(colors[name], colors["paper"])) < LEAST_CONTRAST
    }


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("M 0 0 L 1 2 L 1 2 L 1 2 L 3 4", "M0 0L1 2L3 4"),
        ("M 1 2 L 1 2 L 1 2", "M1 2L1 2"),  # a dot, by its round ends
        ("M 0 0 L 1 2 L 1 2.5 L 1 25", "M0 0L1 2L1 2.5L1 25"),
        ("M 0 0 L -1.5 2 L -1.5 2 z", "M0 0L-1.5 2z"),
    ],
)
def test_a_line_to_where_it_is_already_is_left_out(path, expected):
    """Only where the whole point is repeated."""
    assert f'<path d="{expected}"/>' == compact(f'<path d="{path}"/>')
