"""Frames, table, summary and schema: what other programs read."""

import json
import math
import pathlib
import re

import jsonschema
import pytest

import results
from results import figures

ROOT = pathlib.Path(__file__).parents[3]
SCHEMAS = ROOT / "docs" / "schema"


@pytest.fixture(scope="module")
def broken(make, synthetic):
    return make(synthetic.BROKEN)


def test_trials_frame_has_a_row_per_trial_and_mode(broken):
    trials = results.trials_frame(broken)
    baseline = trials[(trials.backend == "in_graph") & (trials.num_replicas == 1)]
    bad = trials[trials.status != "ok"]
    row = trials[trials.status == "ok"].iloc[0]
    of_row = broken.read_trial(row.trial_id).result
    rate = of_row.global_batch_size * of_row.num_measured_steps / of_row.window_sec

    assert len(broken.read_plan().trials) == trials.trial_id.nunique()
    assert {"weak", "strong"} == set(trials["mode"])
    assert 6 == len(baseline)
    assert {
        "ok": 37,
        "timeout": 1,
        "out_of_memory": 1,
        "failed": 1,
        "failed_checks": 1,
    } | {"missing": 1} == trials.status.value_counts().to_dict()
    # Nobody can average an failed_checks number by mistake.
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

    assert ["trial_id", "rank", "phase", "step_index", "step_time_sec"] == [*steps]
    assert 3 * len(measured) == (steps.phase == "warmup").sum()
    assert 16 * len(measured) == (steps.phase == "measure").sum()
    assert steps.step_time_sec.sum() == pytest.approx(total)


def test_summary_is_plain_data_with_units_and_intervals(broken):
    data = results.summary(broken)
    rates = [
        row
        for row in data["figures"]
        if (row["quantity"], row["kind"]) == ("throughput", "estimate")
    ]

    assert data == json.loads(json.dumps(data, allow_nan=False))
    assert {"images/s"} == {row["unit"] for row in rates}
    for row in rates:
        assert {"value", "n", "unit", "method"} <= row.keys()
        assert ("low" in row) == ("no interval" not in row.get("caveats", ""))
    assert data["coverage"]["ok"] == 28
    assert len(data["failures"]) == 5


@pytest.mark.parametrize("kind", ["env", "plan", "result", "spec", "status"])
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


def test_the_pandas_example_prints_the_throughput_of_the_report(
    folder, store, capsys, monkeypatch
):
    text = (ROOT / "results" / "README.md").read_text(encoding="utf-8")
    text = text.partition("## Reading with pandas")[2]
    code = re.findall(r"```python\n(.*?)```", text, re.DOTALL)[0]
    monkeypatch.chdir(folder)
    exec(code, {"__name__": "__main__"})

    printed = capsys.readouterr().out
    expected = figures.points(results.load_study(store))
    assert len(expected) == 8
    assert {3} == {point.throughput.n for point in expected}
    for point in expected:
        assert f"{point.throughput.value:.6f}" in printed


COLUMNS = """
    figure quantity kind case mode backend other_backend revision num_replicas
    per_replica_batch_size global_batch_size value low high n unit method caveats
    protocol is_baseline is_oversubscribed trial_id repetition_index num_steps
    num_examples num_environment_steps train_time_sec rank phase step_index
"""


def test_every_figure_of_the_report_has_rows(store):
    points = results.points_frame(store)
    runs = {
        entry.trial_id
        for case in results.load_study(store).quality_runs
        for entry in case.entries
    }
    of_runs = points[points.trial_id.isin(runs)]
    steps = points[points.figure == "steps"]
    trials = results.trials_frame(store)

    figures = {"scaling", "forest", "cases", "learning", "gains", "steps"}
    assert figures == set(points.figure)
    assert COLUMNS.split() == list(points.columns)
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
    runs = results.load_study(store).quality_runs

    assert 12 * 5 == len(curves)
    assert [60, 120, 180, 240, 300] == sorted(curves.num_steps.unique())
    assert (curves.low <= curves.value).all()
    assert set(curves.groupby("trial_id").value.last()) == {
        entry.result.curve[-1].quality[0].value
        for case in runs
        for entry in case.ok_entries
    }


def test_a_figure_of_the_table_has_a_row_with_its_interval_or_a_reason(
    tmp_path, synthetic
):
    """Of three sizes; one case has no status of any trial."""
    store = synthetic.make_store(tmp_path, synthetic.Shape(replicas=(1, 2, 4)))
    for entry in results.load_study(store).cases[-1].entries:
        (tmp_path / "trials" / entry.trial_id / "status.json").unlink()
    study = results.load_study(store)
    points = results.points_frame(study)
    rows = points[points["kind"].isin(["estimate", "missing"])].set_index(
        ["quantity", "backend", "mode", "num_replicas"]
    )

    for point in figures.points(study):
        for name in ("throughput", "speedup", "efficiency", "efficiency_of_best"):
            row = rows.loc[(name, point.backend, point.mode.value, point.num_replicas)]
            found = getattr(point, name)
            if found is not None:
                assert (found.value, found.low, found.high, found.n) == (
                    *(row["value"], row["low"], row["high"], row["n"]),
                )
            elif point.is_baseline and row["kind"] == "estimate":
                assert row["method"] == "1 by definition"
            else:
                assert (row["kind"], row["method"]) == ("missing", point.missing_reason)
    one = rows.loc[("efficiency", "in_graph", "weak", 1)]
    assert (1.0, "1 by definition") == (one["value"], one["method"])
    assert "no trial of this case is ok" in set(rows["method"])
    assert {"oversubscribed"} == set(
        rows.loc[("speedup", "in_graph", slice(None), 4), "caveats"]
    )
