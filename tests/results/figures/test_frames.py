"""Frames, table, summary and schema: what other programs read."""

import contextlib
import io
import json
import os
import pathlib
import re
import subprocess
import sys

import jsonschema
import pytest

import results
from results.figures import frame, scaling, summary, table
from results.records import schema
from results.store.study_store import Store
from results.study.cases import load_study

SCHEMAS = pathlib.Path(__file__).parents[3] / "docs" / "schema"


def test_notebooks_need_one_import(tmp_path, synthetic):
    """Everything in it works; what loads pandas is loaded on first use."""
    loads = "import sys, results; assert 'pandas' not in sys.modules; results.summary"
    subprocess.run([sys.executable, "-c", loads], check=True)
    store = results.Store.open(synthetic.make_store(tmp_path / "study").root)
    names = set(dir(results)) - {"Estimate", "Store", "Study", "load_study", "summary"}

    assert {"points_frame", "trials_frame", "steps_frame", "curves_frame"} == names
    assert all(len(getattr(results, name)(store).columns) > 4 for name in names)
    assert isinstance(results.load_study(store), results.Study)
    assert results.summary(store)["points"]


@pytest.fixture(scope="module")
def broken(tmp_path_factory, synthetic):
    return synthetic.make_store(tmp_path_factory.mktemp("study"), synthetic.BROKEN)


def test_trials_frame_has_a_row_per_trial_and_mode(broken):
    """Failed and missing trials are rows; the shared baseline has two."""
    trials = frame.trials_frame(broken)
    baseline = trials[(trials.backend == "in_graph") & (trials.num_replicas == 1)]

    assert len(broken.read_plan().trials) == trials.trial_id.nunique()
    assert {"weak", "strong"} == set(trials["mode"])
    assert 6 == len(baseline)
    assert {"ok": 37, "timeout": 1, "out_of_memory": 1, "failed": 1, "insane": 1} | {
        "missing": 1
    } == trials.status.value_counts().to_dict()


def test_figures_of_trials_that_are_not_ok_are_empty(broken):
    """Nobody can average an insane number by mistake."""
    trials = frame.trials_frame(broken)
    bad = trials[trials.status != "ok"]

    assert bad.examples_per_sec.isna().all()
    assert bad.quality_top_1.isna().all()
    assert (bad.reason != "").all()
    assert trials[trials.status == "failed"].failure_phase.tolist() == ["build"]


def test_trials_frame_agrees_with_the_records(broken):
    """Throughput is recomputed from the raw record."""
    trials = frame.trials_frame(broken)
    row = trials[trials.status == "ok"].iloc[0]
    result = broken.read_trial(row.trial_id).result
    expected = result.global_batch_size * result.num_measured_steps / result.window_sec

    assert expected == pytest.approx(row.examples_per_sec)
    assert result.ranks[0].peak_memory_bytes == row.peak_memory_bytes


def test_curves_frame_has_a_row_per_evaluation_of_a_quality_run(tmp_path, synthetic):
    """Quality runs are cases of their own: no figure of scaling uses them."""
    plain = synthetic.make_store(tmp_path / "plain")
    shape = synthetic.Shape(budget=synthetic.LEARNING)
    store = synthetic.make_store(tmp_path / "learning", shape)
    curves = frame.curves_frame(store)
    runs = summary.summary(store)["quality_runs"]

    assert frame.curves_frame(plain).empty
    assert summary.summary(plain)["points"] == summary.summary(store)["points"]
    assert 2 * 2 * synthetic.LEARNING.num_evaluations == len(curves)
    assert [60, 120, 180, 240, 300] == sorted(curves.num_steps.unique())
    assert (curves.low <= curves.value).all()
    assert curves.groupby("trial_id").value.last().tolist() == [
        run["reached"][0]["value"] for run in sorted(runs, key=lambda r: r["trial_ids"])
    ]


def test_steps_frame_drops_nothing(broken):
    """Warmup and measured steps of every trial with a result."""
    steps = frame.steps_frame(broken)
    results = [trial.result for trial in broken.trials() if trial.result is not None]

    assert list(frame.STEP_COLUMNS) == list(steps.columns)
    assert 3 * len(results) == (steps.phase == "warmup").sum()
    assert 16 * len(results) == (steps.phase == "measure").sum()
    assert steps.step_time_sec.sum() == pytest.approx(
        sum(
            sum(rank.warmup_step_time_sec) + sum(rank.step_time_sec)
            for result in results
            for rank in result.ranks
        )
    )


def test_frames_of_an_unmeasured_study_are_empty(tmp_path, broken):
    store = Store.create(tmp_path / "study")
    store.write_plan(broken.read_plan())

    assert {"missing"} == set(frame.trials_frame(store).status)
    assert frame.steps_frame(store).empty


def test_summary_is_plain_data_with_units_and_intervals(broken):
    """It goes to JSON and back; every estimate has value, low, high, n and unit."""
    figures = summary.summary(broken)
    points = [point for point in figures["points"] if point["throughput"]]

    assert figures == json.loads(json.dumps(figures))
    assert {"images/s"} == {point["throughput"]["unit"] for point in points}
    assert all(
        {"value", "low", "high", "n", "unit", "method", "confidence"}
        | {"is_conclusive", "is_disturbed"}
        == set(point["throughput"])
        for point in points
    )
    assert figures["coverage"]["ok"] == 28
    assert len(figures["failures"]) == 5


@pytest.mark.parametrize("kind", sorted(schema.KINDS))
def test_published_schema_is_fresh(kind):
    """Run ``python -m results.records.schema docs/schema`` after changing a record."""
    path = SCHEMAS / f"{kind}.schema.json"

    assert schema.render(kind) == path.read_text(encoding="ascii")


@pytest.mark.parametrize("kind", sorted(schema.MODELS))
def test_records_on_disk_validate_against_the_published_schema(broken, kind):
    """By an independent validator; and a wrong record does not."""
    text = (SCHEMAS / f"{kind}.schema.json").read_text(encoding="ascii")
    validator = jsonschema.Draft202012Validator(json.loads(text))
    paths = sorted(broken.root.rglob(f"{kind}.json"))
    records = [json.loads(path.read_text()) for path in paths]

    assert records
    assert [] == [
        error.message for record in records for error in validator.iter_errors(record)
    ]
    assert not validator.is_valid({**records[0], "unknown": 1})
    assert not validator.is_valid({**records[0], "schema_version": 1})


def test_schema_command_wants_one_folder(tmp_path, capsys):
    """Wrong use is exit 2; right use prints the paths."""
    assert schema.main([]) == 2
    assert "usage: python -m results.records.schema FOLDER" in capsys.readouterr().err
    assert schema.main([str(tmp_path)]) == 0
    assert len(schema.KINDS) == len(capsys.readouterr().out.splitlines())


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
    for point in summary.summary(store)["points"]:
        for quantity in frame.QUANTITIES:
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
    assert list(frame.POINT_COLUMNS) == list(found.columns)
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
    assert list(frame.POINT_COLUMNS) == list(empty.columns)


def test_trials_say_which_of_them_are_no_figures_of_scaling(store):
    """Quality runs, controls and other revisions have columns that tell them."""
    trials = frame.trials_frame(store)
    plain = trials[
        trials.budget.isna() & (trials.control == "none") & (trials.revision == "")
    ]

    assert 12 == (trials.budget.notna()).sum()
    assert len(trials) - 12 == len(plain)


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
    (point, *_) = scaling.points(study)
    cell = table.of_trials(point.case, "throughput")

    assert point.throughput == cell.estimate
    assert cell.values == tuple(
        table.of_trial(entry, "throughput") for entry in point.case.ok_entries
    )


def test_frame_and_summary_have_the_numbers_of_the_table(study):
    drawn = frame.points_frame(study)
    drawn = drawn[(drawn["figure"] == "scaling") & (drawn["kind"] == "estimate")]
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
        for name in frame.QUANTITIES:
            assert row[name].value == here.get(name)
