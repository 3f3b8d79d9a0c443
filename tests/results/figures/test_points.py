"""The frame that the figures draw: its numbers are those of the report."""

import contextlib
import io
import os
import pathlib
import re

import pytest

from results.figures import frame, points, summary

README = pathlib.Path(__file__).parents[3] / "results" / "README.md"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("notebook")


@pytest.fixture(scope="module")
def store(folder, synthetic):
    shape = synthetic.Shape(budget=synthetic.LEARNING, num_learning_runs=3)
    return synthetic.make_store(folder / "runs" / "example", shape)


@pytest.fixture(scope="module")
def found(store):
    return frame.points_frame(store)


def test_the_pandas_example_prints_the_throughput_of_the_report(folder, store):
    """Quality runs are in no mean of it."""
    text = README.read_text(encoding="utf-8").partition("## Reading with pandas")[2]
    code = re.findall(r"```python\n(.*?)```", text, re.DOTALL)[0]
    printed = io.StringIO()
    here = pathlib.Path.cwd()
    os.chdir(folder)
    try:
        with contextlib.redirect_stdout(printed):
            exec(code, {"__name__": "__main__"})
    finally:
        os.chdir(here)

    expected = summary.summary(store)["points"]
    assert len(expected) == 8
    for point in expected:
        assert f"{point['throughput']['value']:.6f}" in printed.getvalue()


def test_estimates_are_those_of_the_summary(store, found):
    """Value and interval of every quantity at every point."""
    for point in summary.summary(store)["points"]:
        for quantity in points.QUANTITIES:
            rows = found[
                (found.figure == "scaling")
                & (found.quantity == quantity)
                & (found.kind == "estimate")
                & (found["mode"] == point["mode"])
                & (found.backend == point["backend"])
                & (found.num_replicas == point["num_replicas"])
            ]
            assert len(rows) == 1
            if point[quantity] is not None:
                expected = point[quantity]
                assert [expected["value"], expected["low"], expected["high"]] == rows[
                    ["value", "low", "high"]
                ].iloc[0].tolist()


def test_quality_runs_are_rows_of_learning_only(store, found):
    """A mean over rows of one quantity is never a mean of different things."""
    runs = {
        trial_id
        for run in summary.summary(store)["quality_runs"]
        for trial_id in run["trial_ids"]
    }
    of_runs = found[found.trial_id.isin(runs)]

    assert {"learning"} == set(of_runs.figure)
    assert 2 * 2 * 3 * 5 == len(of_runs)
    assert {"evaluation"} == set(of_runs.kind)


def test_every_figure_of_the_report_has_rows(tmp_path, synthetic, found):
    """Ratios, steps and evaluations too; nothing of them without an ok trial."""
    assert {"scaling", "forest", "learning", "steps"} == set(found.figure)
    assert list(points.POINT_COLUMNS) == list(found.columns)
    steps = found[found.figure == "steps"]
    assert {"warmup", "measure"} == set(steps.phase)
    assert (steps[steps.phase == "measure"].groupby("trial_id").size() == 16).all()
    every = {
        (backend, mode, n, repetition): None
        for backend in ("in_graph", "tf_mirrored")
        for mode in synthetic.Shape().modes
        for n in (1, 2)
        for repetition in range(3)
    }
    empty = frame.points_frame(
        synthetic.make_store(tmp_path / "empty", synthetic.Shape(statuses=every))
    )
    assert empty.empty
    assert list(points.POINT_COLUMNS) == list(empty.columns)


def test_trials_say_which_of_them_are_no_figures_of_scaling(store):
    """Quality runs, controls and other revisions have columns that tell them."""
    trials = frame.trials_frame(store)
    plain = trials[
        trials.budget.isna() & (trials.control == "none") & (trials.revision == "")
    ]

    assert 12 == (trials.budget.notna()).sum()
    assert len(trials) - 12 == len(plain)
