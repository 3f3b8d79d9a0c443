"""Drawings of pages and notebooks: axes, labels, colours, and a smaller text."""

import dataclasses
import itertools
import math
import pathlib
import re

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from study_files import with_results
from synthetic import Lost, interleaving_shape

import reports
from replicator import catalog
from reports import render_section, view_store
from results import points_frame

mpl.use("agg")
NAN = math.nan

plot = reports.plot


def _first_screen(store):
    return render_section("verdict", view_store(store))


def _figure(store):
    """The drawing of the first screen, which more than two sizes have."""
    svgs = re.findall("<svg.*?</svg>", _first_screen(store), re.DOTALL)
    (drawn,) = (svg for svg in svgs if "hero-title" in svg)
    return drawn


def test_the_figure_is_linear_from_zero_and_labels_its_lines(make):
    drawn = _figure(make(replicas=(1, 2, 4)))

    for text in ("in_graph, weak: 100", "tf_mirrored", "replicas", ">0"):
        assert text in drawn


def test_the_ceiling_is_of_programs_that_never_communicate(make):
    controlled = make(interleaving_shape(lost={"in_graph": Lost(contention=0.002)}))
    points = points_frame(controlled)
    found = points.query("quantity == 'efficiency' and kind == 'ceiling'").iloc[0]

    assert found.num_replicas == 2
    assert found.value == pytest.approx(50 / 52, rel=0.02)
    assert "programs that never communicate" in _first_screen(controlled)


def test_a_panel_has_at_most_seven_lines_and_room_for_their_names(make):
    backends = ("in_graph", "tf_mirrored", "multi_worker_in_graph", "async", "x" * 80)
    fields = {"replicas": (1, 2, 4), "repeats": 1}
    store, few = (make(backends=of, **fields) for of in (backends, backends[-3:]))
    drawn, labels = (_figure(of).partition("</desc>")[2] for of in (store, few))

    # Of five backends in two modes.
    assert "3 more lines in the table" in _first_screen(store)
    assert ">multi_worker_in_graph<" in drawn
    assert f">{'x' * 23}\N{HORIZONTAL ELLIPSIS}<" in labels


@pytest.mark.parametrize(
    ("quantity", "is_log", "is_even"),
    [("efficiency", False, True), ("speedup", False, False), ("speedup", True, True)],
)
def test_efficiency_is_over_doublings(make, quantity, is_log, is_even):
    points = points_frame(make(replicas=(1, 2, 4)))
    axes = plot.scaling(points, quantity=quantity, is_log=is_log)
    places = axes.transData.transform([(size, 1.0) for size in (1, 2, 4)])[:, 0]
    plt.close("all")

    assert is_even == (places[2] - places[1] == pytest.approx(places[1] - places[0]))


# Of the height of a figure's axes, a label with one line; another line is as high.
LINE = 11.5 / 177


@settings(max_examples=20)
@given(
    values=st.lists(st.floats(0, 1), min_size=1, max_size=7, unique=True),
    num_lines=st.integers(1, 2),
)
def test_labels_never_overlap_and_stay_within(points, values, num_lines):
    names = ["a" + "\n" * (index % num_lines) for index in range(len(values))]
    frame = _rows_of(points, "learning", values, case=range(len(values)))
    axes = plot.learning(frame.assign(backend=names))
    low, high = axes.get_ylim()
    heights = [LINE * (1 + name.count("\n")) for name in names]
    moved = [(of.xyann[1] - low) / (high - low) for of in axes.texts]
    order = sorted(range(len(values)), key=lambda k: values[k])

    for below, above in itertools.pairwise(order):
        gap = moved[above] - moved[below]
        assert gap >= (heights[above] + heights[below]) / 2 - 1e-9
    assert max(m + h / 2 for m, h in zip(moved, heights, strict=True)) <= 1 + 1e-9
    assert min(m - h / 2 for m, h in zip(moved, heights, strict=True)) >= -1e-9
    if len(values) == 1:
        assert moved[0] == pytest.approx((values[0] - low) / (high - low))
    plt.close(axes.figure)


def _steps(make, times):
    """Returns the section of a study whose processes took these times for steps."""
    view = view_store(make(interleaving_shape(num_ranks=len(times), controls=())))

    def ranks(entry):
        if len(entry.result.ranks) == 1:
            return {}
        both = zip(entry.result.ranks, times, strict=True)
        update = [rank.model_copy(update={"step_time_sec": of}) for rank, of in both]
        return {"ranks": tuple(update)}

    study = with_results(view.study, ranks)
    return render_section("steps", dataclasses.replace(view, study=study))


def _cells(section):
    """Returns where the cells of a heat map are, by how dark they are."""
    drawn = section.partition("heat-title")[2]
    color = r"fill: var\(--series-0\)(?:; opacity: ([\d.]+))?"
    cell = rf'<path d="([^"]*)" [^>]*style="{color}"'
    return {
        float(alpha or 1): re.findall(r"M ([\d.]+) ([\d.]+)", path)
        for path, alpha in re.findall(cell, drawn)
    }


def test_cells_are_relative_to_the_median_and_binned(make):
    """A slow process is a slow row; a slow moment is a slow column."""
    times = np.ones((3, 100))
    times[1] = 1.2
    times[:, 96:99] = 2.0
    cells = _cells(_steps(make, times.tolist()))

    assert {0.08: 2 * 33, 0.7: 33, 1.0: 3} == {of: len(cells[of]) for of in cells}
    assert [1, 3] == [len({x for x, _ in cells[1.0]}), len({y for _, y in cells[1.0]})]
    assert 1 == len({y for _, y in cells[0.7]})
    # A process that was killed has fewer: the steps that all have count.
    (both,) = _cells(_steps(make, [[1.0] * 7, [1.0] * 5])).values()
    assert 2 * 5 == len(both)


def test_a_slow_process_is_named_in_the_description(make):
    drawn = _steps(make, [[1.0] * 20, [1.5] * 20, [1.0] * 20])

    assert "Step time by process and step" in drawn
    assert "process 1 is the slowest with 1.50 of the median" in drawn
    assert "Step time by process" not in _steps(make, [[1.0] * 20])


def test_boxes_have_one_height_wherever_the_rows_of_a_backend_are(points):
    for sizes in ((1, 1, 1, 1), (1, 2, 3, 1)):
        names = ["in_graph", *["single"] * 2, "z"] if sizes[1] > 1 else [*"abcd"]
        of = {"backend": np.repeat(names, 4), "num_replicas": np.repeat(sizes, 4)}
        axes = plot.steps(_rows_of(points, "steps", [1.0, 2.0, 3.0, 4.0] * 4, **of))
        boxes = [line for line in axes.lines if len(line.get_xdata()) == 5]

        assert 4 == len(boxes)
        assert {0.42} == {round(float(np.ptp(of.get_ydata())), 6) for of in boxes}


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
    shown = [name for name in colors if name.startswith("series-")]
    for name in (*shown, "muted", "good", "bad", "warn", "accent"):
        dark, bright = sorted(_luminance(colors[of]) for of in (name, "paper"))
        assert (bright + 0.05) / (dark + 0.05) >= LEAST_CONTRAST, name


def test_every_backend_of_the_catalogue_has_its_own_colour_and_marker(make):
    number = len(catalog.BACKENDS)
    store = make(backends=tuple(catalog.BACKENDS), repeats=1)
    screen = render_section("verdict", view_store(store))
    swatches = re.findall(r'series-(\d+)\)">(<\w+ [^>]*/>)</svg>', screen)

    assert set(range(number)) == set(map(reports.series_of, catalog.BACKENDS))
    assert number == len(set(swatches)) == len({shape for _, shape in swatches})
    assert reports.series_of("mine") == 1  # in every process
    assert 0 <= reports.series_of("") < number


EIGHT = tuple(f"backend_{index}" for index in range(8))


@pytest.fixture(scope="module")
def points(make, synthetic):
    fields = {"budget": synthetic.LEARNING, "num_learning_runs": 3}
    return points_frame(make(replicas=(1, 2, 4), **fields))


def _rows_of(points, figure, values, **columns):
    """Returns rows of a figure that have these values."""
    row = points[points["figure"] == figure].tail(1)
    rows = pd.concat([row] * len(values), ignore_index=True)
    return rows.assign(value=values, **columns)


@pytest.fixture(autouse=True)
def _no_figures_left():
    """Closes what pyplot opened."""
    yield
    plt.close("all")


@pytest.mark.parametrize(
    "draw",
    [
        plot.scaling,
        plot.forest,
        plot.learning,
        plot.steps,
    ],
)
def test_a_figure_is_drawn_on_new_axes_or_on_given_ones(points, draw):
    made = draw(points)
    _, given = plt.subplots()

    assert made.has_data()
    assert given is draw(points, given)
    assert given.has_data()


def test_a_waterfall_is_drawn_of_a_study_with_controls(make):
    store = make(interleaving_shape(lost={"in_graph": Lost(contention=0.006)}))
    points = points_frame(store)
    axes = plot.waterfall(points, backend="in_graph", num_replicas=2)
    whole = points.query("figure == 'waterfall' and quantity == 'step'")["value"]

    labels = [of.get_text() for of in axes.get_yticklabels()]
    assert ["2 \N{MULTIPLICATION SIGN} 8"] == labels
    widths = [patch.get_width() for patch in axes.patches]
    assert sum(widths) == pytest.approx(1000 * whole.iloc[0])


@pytest.mark.parametrize("quantity", ["efficiency", "speedup", "throughput"])
def test_values_begin_at_zero_and_panels_share_their_axis(points, quantity):
    weak, strong = (
        plot.scaling(points, quantity=quantity, mode=of) for of in ("weak", "strong")
    )
    logarithmic = plot.scaling(points, quantity=quantity, is_log=True)

    assert 0 == weak.get_ylim()[0]
    assert weak.get_ylim() == strong.get_ylim()
    assert "linear" == weak.get_yscale()
    assert ("log" if quantity == "efficiency" else "linear") == weak.get_xscale()
    assert "log" == logarithmic.get_xscale()


def test_the_drawn_values_are_in_the_frame(points):
    chosen = points.query(
        "quantity == 'efficiency' and kind == 'estimate' and mode == 'weak'"
    )
    lines = plot.scaling(points, quantity="efficiency").lines
    drawn = {round(y, 9) for of in lines for y in np.atleast_1d(of.get_ydata())}
    ratios = plot.forest(points)

    assert {round(value, 9) for value in chosen["value"]} <= drawn
    assert "log" == ratios.get_xscale()
    assert math.prod(ratios.get_xlim()) == pytest.approx(1)


def test_several_seeds_are_a_median_and_a_band(points):
    axes = plot.learning(points)
    lines = [line for line in axes.lines if line.get_marker() != "None"]
    widths = {}
    for line in lines:  # the others lead to their names
        widths.setdefault(line.get_color(), []).append(line.get_linewidth())

    assert 6 == len(lines) == len(axes.collections)
    assert {"-"} == {line.get_linestyle() for line in lines}
    assert [3, 3] == [len(set(of)) for of in widths.values()]
    assert all(of == sorted(of) for of in widths.values())


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (
            plot.waterfall,
            r"no rows of figure 'waterfall', only of scaling, forest,",
        ),
        (
            lambda points: plot.scaling(points, mode="both"),
            r"mode 'both' is not in the frame, which has weak, strong: pass one of",
        ),
        (
            lambda points: plot.scaling(points, quantity="speed"),
            r"quantity 'speed' is not in .* efficiency, speedup, throughput: pass one",
        ),
        (
            lambda points: plot.learning(points, metric="fid"),
            r"metric 'fid' is not in the frame, which has top_1: pass one of these",
        ),
        (
            lambda points: plot.steps(points, kind="violin"),
            r"kind 'violin' is not in the frame, which has box, ecdf: pass one of",
        ),
    ],
)
def test_what_a_frame_has_not_is_an_error(points, act, message):
    with pytest.raises(ValueError, match=message):
        act(points)


def test_of_many_ratios_those_of_most_replicas_are_drawn(make):
    found = points_frame(make(backends=EIGHT, repeats=1))
    labels = [of.get_text() for of in plot.forest(found).get_yticklabels()]

    assert 28 * 2 < len(found[found.figure == "forest"])
    assert 20 == len(labels)
    assert {"N = 2"} == {label.partition(",")[0] for label in labels}


def test_headings_have_rows_of_their_own_and_long_labels_are_cut(points):
    others = {"backend": ["a", "a", "b"], "other_backend": "c", "mode": "x" * 90}
    axes = plot.forest(_rows_of(points, "forest", [1.0] * 3, **others))
    headings = {of.get_text(): of.xy[1] for of in axes.texts if " / " in of.get_text()}

    assert [1, 2, 4] == axes.get_yticks().tolist()
    assert {"a / c": 0, "b / c": 3} == headings
    cut = "x" * 12 + "\N{HORIZONTAL ELLIPSIS}"
    assert f"N = 4, {cut}" == axes.get_yticklabels()[2].get_text()


@pytest.fixture
def limits(points):
    """Returns a function that draws values with intervals, and returns the limits."""

    def limits_of(quantity, values, lows, highs):
        of = {"low": lows, "high": highs}
        if quantity == "quality":
            return plot.learning(_rows_of(points, "learning", values, **of)).get_ylim()
        of |= {"num_replicas": range(1, len(values) + 1), "is_baseline": False}
        if quantity == "ratio":
            return plot.forest(_rows_of(points, "forest", values, **of)).get_xlim()
        of |= {"quantity": quantity, "mode": "weak", "kind": "estimate"}
        rows = _rows_of(points, "scaling", values, **of)
        is_log = quantity == "throughput"
        return plot.scaling(rows, quantity=quantity, is_log=is_log).get_ylim()

    return limits_of


def test_limits_of_ratios_are_symmetric_and_those_from_zero_hold_everything(limits):
    assert limits("ratio", [1.01], [NAN], [NAN]) == pytest.approx((1 / 1.1, 1.1))
    low, high = limits("ratio", [0.5, 1.2], [0.3, NAN], [1.5, NAN])
    assert low * high == pytest.approx(1)
    assert low < 0.5
    low, high = limits("ratio", [0.0, 1e300], [0.0, NAN], [1e308, NAN])
    assert 0 < low < high < 2000
    bottom, top = limits("efficiency", [2.0, 5.0], [NAN, NAN], [900.0, NAN])
    assert 0 == bottom
    assert 5 < top < 10
    assert (0.0, 1.06) == limits("efficiency", [NAN], [NAN], [NAN])


def test_ticks_of_ratios_are_mirrored_at_1(points):
    for reach in (1.1, 1.5, 4, 10, 300):
        axes = plot.forest(_rows_of(points, "forest", [reach]))
        low, high = axes.get_xlim()
        ticks = axes.get_xticks()
        assert low < 1 / ticks.max() < ticks.max() < high
        assert 1 in ticks
        assert len(ticks) % 2 == 1
        assert len(ticks) >= 3
        assert (1 / ticks[::-1]).tolist() == pytest.approx(ticks.tolist())


def test_data_in_a_link_are_a_table_without_empty_columns(complete, failed):
    links = [
        re.findall(r'<a download="scaling.csv" href="([^"]+)"', section)
        for section in (
            render_section("method", view_store(store)) for store in (complete, failed)
        )
    ]
    ((link,), nothing) = links

    assert link.startswith("data:text/csv;charset=utf-8,")
    assert "efficiency" in link
    assert "train_time_sec" not in link
    assert [] == nothing


def test_modest_intervals_are_whole_and_absurd_ones_squeeze_nothing(limits):
    for quantity in ("throughput", "quality"):
        low, high = limits(quantity, [20.0, 40.0], [19.0, NAN], [42.0, NAN])
        assert low < 19.0
        assert high > 42.0
        low, high = limits(quantity, [20.0, 40.0], [0.0, NAN], [40_000.0, NAN])
        assert low < 20.0
        assert 40.0 < high < 80.0
        low, high = limits(quantity, [3.0], [NAN], [NAN])
        assert low < 3.0 < high
    # Zero ends come from underflow and must not reach the axis.
    assert limits("throughput", [1e-3], [0.0], [5.0])[0] > 0
