"""Frames, summary and schema: what other programs read."""

import json
import pathlib
import subprocess
import sys

import jsonschema
import pytest

import results
from results.figures import frame, summary
from results.records import schema
from results.store.study_store import Store

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
    """Planned, never started: rows without figures, no steps."""
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
