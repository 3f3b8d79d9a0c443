"""Figures of step times: what they draw, and when they vanish."""

import re

import numpy as np
import pytest
from relay_study import RelayShape, make_store

from reports.charts import heat
from reports.charts.drawing import look
from reports.page.sections import lost_time, variation
from reports.view.view import view_store


def _plain(text):
    return re.sub(r"\s", " ", text)


def test_cells_are_relative_to_the_median_and_binned():
    """A slow process is a slow row; a slow moment is a slow column."""
    times = np.ones((3, 100))
    times[1] = 1.2
    times[:, 96:99] = 2.0
    cells = heat.binned([list(row) for row in times])

    assert cells.shape == (3, 34)
    assert cells[0, 0] == pytest.approx(1.0)
    assert cells[1, 0] == pytest.approx(1.2)
    assert cells[0, 32] == pytest.approx(2.0)


def test_processes_of_unequal_length_use_the_steps_that_all_have():
    """A process that was killed has fewer."""
    assert heat.binned([[1.0] * 7, [1.0] * 5]).shape == (2, 5)


def test_a_slow_process_is_named_in_the_description():
    """For readers who do not see it."""
    drawn = heat.draw(
        [[1.0] * 20, [1.5] * 20, [1.0] * 20], series=0, name="case", slug="x"
    )

    assert "process 1 is the slowest with 1.50 of the median" in drawn


def test_each_backend_has_its_fewest_and_most_replicas(tmp_path, synthetic):
    """At the most, one for each scaling mode; seven lines in all."""
    shape = synthetic.Shape(backends=("in_graph", "tf_mirrored", "single"))
    shown = _plain(variation.render(view_store(synthetic.make_store(tmp_path, shape))))

    assert "Distribution of step times" in shown
    assert shown.count(": median ") == variation.MOST_LINES
    assert "in_graph x1, batch 8: median" in shown


def test_a_scaling_mode_has_the_line_style_that_it_has_in_all_figures(
    tmp_path, synthetic, monkeypatch
):
    """What both modes are compared with is dotted, as ideal scaling is."""
    drawn = {}

    def draw(samples, **_):
        drawn.update({f"{of.label}, {of.batch}": of.dash for of in samples})
        return "figure"

    monkeypatch.setattr(variation.ecdf, "draw", draw)
    shape = synthetic.Shape(backends=("in_graph",))
    shown = variation.render(view_store(synthetic.make_store(tmp_path, shape)))

    most = max(shape.replicas)
    assert {
        "in_graph x1, 8": ":",
        f"in_graph x{most}, 8": look.dash("weak"),
        f"in_graph x{most}, {8 // most}": look.dash("strong"),
    } == drawn
    assert "Dotted: the fewest replicas" in shown


def test_a_case_of_several_processes_has_a_heat_map(tmp_path):
    """Those of one process have none."""
    several = make_store(tmp_path / "several", RelayShape(num_ranks=2, controls=()))
    one = make_store(tmp_path / "one", RelayShape(controls=()))

    assert "Step time by process and step" in variation.render(view_store(several))
    assert "Step time by process" not in variation.render(view_store(one))


def test_a_study_without_controls_and_cpu_time_explains_no_loss(tmp_path):
    """The section vanishes rather than guess."""
    view = view_store(make_store(tmp_path, RelayShape(controls=())))

    assert [item.lost for item in view.recorded] == [None]
    assert lost_time.render(view) == ""
