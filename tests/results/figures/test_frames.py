"""Frames, table, summary and schema: what other programs read."""

import json
import math
import pathlib
import re

import jsonschema
import pytest

import results
from results.figures import frame, scaling, summary
from results.records import schema

ROOT = pathlib.Path(__file__).parents[3]
SCHEMAS = ROOT / "docs" / "schema"


@pytest.fixture(scope="module")
def broken(tmp_path_factory, synthetic):
    return synthetic.make_store(tmp_path_factory.mktemp("study"), synthetic.BROKEN)


def test_trials_frame_has_a_row_per_trial_and_mode(broken):
    """Failed and missing trials are rows without figures; the baseline has two."""
    trials = results.trials_frame(broken)
    baseline = trials[(trials.backend == "in_graph") & (trials.num_replicas == 1)]
    bad = trials[trials.status != "ok"]
    row = trials[trials.status == "ok"].iloc[0]
    of_row = broken.read_trial(row.trial_id).result
    rate = of_row.global_batch_size * of_row.num_measured_steps / of_row.window_sec

    assert len(broken.read_plan().trials) == trials.trial_id.nunique()
    assert {"weak", "strong"} == set(trials["mode"])
    assert 6 == len(baseline)
    assert {"ok": 37, "timeout": 1, "out_of_memory": 1, "failed": 1, "insane": 1} | {
        "missing": 1
    } == trials.status.value_counts().to_dict()
    # Nobody can average an insane number by mistake.
    assert bad[["examples_per_sec", "quality_top_1"]].isna().all(axis=None)
    assert (bad.reason != "").all()
    assert trials[trials.status == "failed"].failure_phase.tolist() == ["build"]
    assert rate == pytest.approx(row.examples_per_sec)
    assert of_row.ranks[0].peak_memory_bytes == row.peak_memory_bytes


def test_steps_frame_drops_nothing(broken):
    steps = results.steps_frame(broken)
    measured = [trial.result for trial in broken.trials() if trial.result is not None]
    total = math.fsum(
        step
        for result in measured
        for rank in result.ranks
        for step in (*rank.warmup_step_time_sec, *rank.step_time_sec)
    )

    assert list(frame.STEP_COLUMNS) == list(steps.columns)
    assert 3 * len(measured) == (steps.phase == "warmup").sum()
    assert 16 * len(measured) == (steps.phase == "measure").sum()
    assert steps.step_time_sec.sum() == pytest.approx(total)


def test_summary_is_plain_data_with_units_and_intervals(broken):
    figures = results.summary(broken)
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


def test_published_schemas_are_fresh(tmp_path, capsys):
    """Run ``python -m results.records.schema docs/schema`` after changing a record."""
    assert schema.main([]) == 2
    assert "usage: python -m results.records.schema FOLDER" in capsys.readouterr().err
    assert schema.main([str(tmp_path)]) == 0
    for path in map(pathlib.Path, capsys.readouterr().out.splitlines()):
        assert path.read_text() == (SCHEMAS / path.name).read_text()
    assert len(schema.KINDS) == len([*tmp_path.iterdir()])


@pytest.mark.parametrize("kind", sorted(schema.MODELS))
def test_records_on_disk_validate_against_the_published_schema(broken, kind):
    text = (SCHEMAS / f"{kind}.schema.json").read_text(encoding="ascii")
    validator = jsonschema.Draft202012Validator(json.loads(text))
    paths = sorted(broken.root.rglob(f"{kind}.json"))
    records = [json.loads(path.read_text()) for path in paths]

    assert records
    assert [] == [e.message for of in records for e in validator.iter_errors(of)]
    assert not validator.is_valid({**records[0], "unknown": 1})
    assert not validator.is_valid({**records[0], "schema_version": 1})


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("notebook")


@pytest.fixture(scope="module")
def store(folder, synthetic):
    """Two backends in both modes, with three quality runs of each case."""
    shape = synthetic.Shape(budget=synthetic.LEARNING, num_learning_runs=3)
    return synthetic.make_store(folder / "runs" / "example", shape)


@pytest.fixture(scope="module")
def points(store):
    return results.points_frame(store)


def test_the_pandas_example_prints_the_throughput_of_the_report(
    folder, store, capsys, monkeypatch
):
    """Quality runs are in no mean of it."""
    text = (ROOT / "results" / "README.md").read_text(encoding="utf-8")
    text = text.partition("## Reading with pandas")[2]
    code = re.findall(r"```python\n(.*?)```", text, re.DOTALL)[0]
    monkeypatch.chdir(folder)
    exec(code, {"__name__": "__main__"})

    printed = capsys.readouterr().out
    expected = results.summary(store)["points"]
    assert len(expected) == 8
    assert {3} == {point["throughput"]["n"] for point in expected}
    for point in expected:
        assert f"{point['throughput']['value']:.6f}" in printed


def test_every_figure_of_the_report_has_rows(store, points):
    """A mean over rows of one quantity is never a mean of different things."""
    runs = {
        trial_id
        for run in results.summary(store)["quality_runs"]
        for trial_id in run["trial_ids"]
    }
    of_runs = points[points.trial_id.isin(runs)]
    steps = points[points.figure == "steps"]
    trials = results.trials_frame(store)

    assert {"scaling", "forest", "learning", "steps"} == set(points.figure)
    assert list(frame.POINT_COLUMNS) == list(points.columns)
    assert {"warmup", "measure"} == set(steps.phase)
    assert (steps[steps.phase == "measure"].groupby("trial_id").size() == 16).all()
    assert {"learning"} == set(of_runs.figure)
    assert {"evaluation"} == set(of_runs.kind)
    assert 2 * 2 * 3 * 5 == len(of_runs)
    # Quality runs, controls and other revisions have columns that tell them.
    plain = (trials.control == "none") & (trials.revision == "")
    assert 12 == trials.budget.notna().sum()
    assert len(trials) - 12 == (trials.budget.isna() & plain).sum()


def test_curves_frame_has_a_row_per_evaluation_of_a_quality_run(store):
    curves = results.curves_frame(store)
    runs = results.summary(store)["quality_runs"]

    assert 12 * 5 == len(curves)
    assert [60, 120, 180, 240, 300] == sorted(curves.num_steps.unique())
    assert (curves.low <= curves.value).all()
    assert set(curves.groupby("trial_id").value.last()) == {
        of["value"] for run in runs for of in run["reached"]
    }


@pytest.fixture(scope="module")
def study(tmp_path_factory, synthetic):
    """Three sizes; one case has no status of any trial."""
    path = tmp_path_factory.mktemp("study")
    store = synthetic.make_store(path, synthetic.Shape(replicas=(1, 2, 4)))
    for entry in results.load_study(store).cases[-1].entries:
        (path / "trials" / entry.trial_id / "status.json").unlink()
    return results.load_study(store)


def test_a_cell_of_the_table_has_an_estimate_or_a_reason(study):
    """Ratios of a baseline are no estimates; the best baseline is all of itself."""
    points = scaling.points(study)
    rows = [(point, scaling.of_point(point)) for point in points]
    cells = [cell for _, row in rows for cell in row.values()]
    first = rows[0][1]
    best = [
        row["efficiency_of_best"]
        for point, row in rows
        if point.is_baseline and point.mode.value == "weak"
    ]

    assert len(cells) == 7 * len(points)
    assert [] == [cell for cell in cells if cell.estimate is None and not cell.why_not]
    assert any(cell.why_not == "no trial of this case is ok" for cell in cells)
    assert (1.0, 1.0) == (first["speedup"].value, first["efficiency"].value)
    assert first["speedup"].estimate is None
    assert "this is the baseline" == first["speedup"].why_not
    assert {1.0, None} == {cell.fixed for cell in best}
    assert all((cell.fixed is None) == (cell.estimate is not None) for cell in best)


def test_frame_and_summary_have_the_numbers_of_the_table(study):
    drawn = results.points_frame(study)
    drawn = drawn[(drawn["figure"] == "scaling") & (drawn["kind"] == "estimate")]
    data = summary.summarize(study)["points"]

    for point, facts in zip(scaling.points(study), data, strict=True):
        row = scaling.of_point(point)
        for name, figure in row.items():
            shown = None if figure.estimate is None else figure.estimate.value
            assert shown == (facts[name] and facts[name]["value"])
        here = drawn[
            (drawn["backend"] == point.backend)
            & (drawn["mode"] == point.mode.value)
            & (drawn["num_replicas"] == point.num_replicas)
        ].set_index("quantity")
        for name in frame.QUANTITIES:
            assert row[name].value == here["value"].get(name)
            if facts[name]:
                ends = facts[name]["low"], facts[name]["high"]
                assert ends == (here["low"][name], here["high"][name])
