"""The chart over replicas: axes, labels, ceiling, and how many lines."""

import itertools

import pytest

from reports.charts import hero
from reports.charts.drawing import labels, replicas_axis
from reports.charts.drawing.replicas_axis import ReplicasAxis
from reports.page.sections import verdict
from reports.view.view import view_store
from results.records.models import ScalingMode

WEAK, STRONG = ScalingMode.WEAK, ScalingMode.STRONG


def _first_screen(store):
    return str(verdict.render(view_store(store)))


def test_the_figure_is_linear_from_zero_and_labels_its_lines(relay):
    """All in words too; labels name backend and mode."""
    drawn = hero.draw(relay)
    assert drawn is not None

    assert "in_graph, weak: 100" in drawn
    for text in ("in_graph", "tf_mirrored", "replicas", ">0"):
        assert text in drawn


def test_the_ceiling_is_that_of_programs_that_never_communicate(controlled):
    """Two programs at 52 ms beside one at 50 ms: 96 %."""
    (first, *_) = hero.curves(view_store(controlled))
    (found,) = first.of_kind("ceiling")

    assert found.num_replicas == 2
    assert found.value == pytest.approx(50 / 52, rel=0.02)
    assert "Short line: ceiling" in _first_screen(controlled)


def test_a_panel_has_at_most_seven_lines(tmp_path, synthetic):
    """The others are counted in the caption."""
    backends = ("in_graph", "tf_mirrored", "multi_worker", "tf_multi_worker", "async")
    store = synthetic.make_store(tmp_path, synthetic.Shape(backends=backends))

    assert len(hero.curves(view_store(store))) == 10
    assert "3 more lines below" in _first_screen(store)


@pytest.mark.parametrize("is_from_zero", [True, False])
def test_replicas_are_linear_up_to_sixteen(is_from_zero):
    """Beyond, doublings are equally far apart."""
    few, many = (
        ReplicasAxis(sizes=sizes, is_log=is_log, is_from_zero=is_from_zero)
        for sizes, is_log in (((1, 2, 16), False), ((1, 2, 64), True))
    )

    assert replicas_axis.MOST_LINEAR == 16
    assert 2.0 == few(2) == many(2)
    assert few(2, 0.5) - few(2) == pytest.approx(few(16, 0.5) - few(16))
    assert many(2, 0.5) / many(2) == pytest.approx(many(64, 0.5) / many(64))


def test_a_single_number_of_replicas_is_within_its_axis():
    """There is no line to draw, and no division by zero."""
    axis = ReplicasAxis(sizes=(4,), is_log=False, is_from_zero=False)
    low, high = axis.limits

    assert low < axis(4, -0.1) < axis(4, 0.1) < high


def test_labels_never_overlap_and_stay_within():
    """They move as little as is needed, in the order of their lines."""
    places = [0.9, 0.91, 0.92, 0.2, 0.99]
    heights = [0.1, 0.1, 0.1, 0.1, 0.2]
    moved = labels.spread(places, heights, 0.0, 1.0)
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
    drawn = hero.draw(view_store(synthetic.make_store(tmp_path, shape)))
    assert drawn is not None
    labels_of = drawn.partition("</desc>")[2]

    assert ">multi_worker_in_graph<" in labels_of
    assert f">{'x' * 23}\N{HORIZONTAL ELLIPSIS}<" in labels_of
