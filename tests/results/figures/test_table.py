"""The table of figures: every cell has an estimate, a fixed value, or a reason."""

import pytest

from results.figures import points, scaling, summary, table
from results.study.cases import load_study


@pytest.fixture(scope="module")
def study(tmp_path_factory, synthetic):
    path = tmp_path_factory.mktemp("study")
    store = synthetic.make_store(path, synthetic.Shape(replicas=(1, 2, 4)))
    found = load_study(store)
    for entry in found.cases[-1].entries:
        (path / "trials" / entry.trial_id / "status.json").unlink()
    return load_study(store)


def test_no_cell_is_empty_without_a_reason(study):
    cells = [
        figure
        for point in scaling.points(study)
        for figure in table.of_point(point).values()
    ]

    assert len(cells) == 7 * len(scaling.points(study))
    assert [] == [cell for cell in cells if cell.estimate is None and not cell.why_not]
    assert any(cell.why_not == "no trial of this case is ok" for cell in cells)


def test_the_baseline_has_ratios_by_definition(study):
    """They are no estimates, so they have no interval."""
    (point, *_) = scaling.points(study)
    row = table.of_point(point)

    assert (1.0, 1.0) == (row["speedup"].value, row["efficiency"].value)
    assert row["speedup"].estimate is None
    assert "this is the baseline" == row["speedup"].why_not


def test_the_best_baseline_is_all_of_itself(study):
    """Of both baselines of a mode, the faster one; the other has an estimate."""
    rows = [
        table.of_point(point)["efficiency_of_best"]
        for point in scaling.points(study)
        if point.is_baseline and point.mode.value == "weak"
    ]

    assert {1.0, None} == {row.fixed for row in rows}
    assert all((row.fixed is None) == (row.estimate is not None) for row in rows)


def test_throughput_of_trials_is_that_of_the_point(study):
    """With the unit of the workload, and the value of each trial."""
    (point, *_) = scaling.points(study)
    cell = table.of_trials(point.case, "throughput")

    assert point.throughput == cell.estimate
    assert cell.values == tuple(
        table.of_trial(entry, "throughput") for entry in point.case.ok_entries
    )


def test_frame_and_summary_have_the_numbers_of_the_table(study):
    frame = points.points_frame(study)
    drawn = frame[(frame["figure"] == "scaling") & (frame["kind"] == "estimate")]
    data = summary.summarize(study)["points"]

    for point, facts in zip(scaling.points(study), data, strict=True):
        row = table.of_point(point)
        for name, figure in row.items():
            shown = None if figure.estimate is None else figure.estimate.value
            assert shown == (facts[name] and facts[name]["value"])
        here = drawn[
            (drawn["backend"] == point.backend)
            & (drawn["mode"] == point.mode.value)
            & (drawn["num_replicas"] == point.num_replicas)
        ].set_index("quantity")["value"]
        for name in points.QUANTITIES:
            assert row[name].value == here.get(name)
