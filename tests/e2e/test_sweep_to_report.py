"""One real sweep, from the command line to the report, with TensorFlow."""

import json

import pytest

from harness.cli import exit_codes
from results.figures import frame
from results.records.models import TrialStatus
from results.store.study_store import Store

NUM_PARAMETERS = 25_557_032
NUM_TEST_IMAGES = 359

pytestmark = pytest.mark.processes


@pytest.mark.full
def test_a_smoke_sweep_of_the_real_network_ends_in_a_report(sweep, tmp_path):
    """Real data, real network, two replica counts in a relay: numbers that are sane.

    In the full run; otherwise ``test_input_only.py`` has the way from the command line
    to the report, and ``tests/workloads/resnet50`` the network.

    Other tests run meanwhile, so turns may be void, all of a trial or too many of them.
    """
    done = sweep(
        "--workload=resnet50",
        "--preset=smoke",
        "--backends=in_graph",
        "--replicas=1,2",
        "--mode=weak,strong",
        "--repeats=1",
        "--rounds=2",
        "--evaluate",
        "--budget=none",
        "--json",
    )
    allowed = (
        exit_codes.OK,
        exit_codes.SOME_TRIALS_FAILED,
        exit_codes.NOTHING_MEASURED,
        exit_codes.UNFIT,
    )
    assert done.returncode in allowed, done.stderr
    summary = json.loads(done.stdout)
    store = Store.open(tmp_path / "runs" / "s")
    trials = list(store.trials())
    page = store.report_path.read_text(encoding="utf-8")

    statuses = {t.status.status for t in trials if t.status}
    assert statuses <= {TrialStatus.OK, TrialStatus.VOID}, done.stderr
    assert summary["coverage"]["planned"] == 4 == len(trials)
    assert [("in_graph", 2, "matches")] == [
        (match["backend"], match["num_replicas"], match["outcome"])
        for match in summary["matches"]
    ], done.stderr
    assert {(1, "weak"), (2, "weak"), (1, "strong"), (2, "strong")} == {
        (point["num_replicas"], point["mode"]) for point in summary["points"]
    }
    for trial in trials:
        result = trial.result

        assert result is not None
        assert result.num_parameters == NUM_PARAMETERS
        assert [0, 1] == sorted({turn.round_index for turn in result.turns})
        assert all(turn.time_sec > 0 for turn in result.turns)
        assert result.quality[0].num_examples == NUM_TEST_IMAGES
        assert "replicas_in_sync" in {check.name for check in result.sanity}
        assert trial.trial_id[:8] in page
    assert "http://" not in page.replace("http://www.w3.org/", "")


@pytest.mark.full
def test_a_sweep_with_actors_ends_in_learning_curves(sweep, tmp_path):
    """Two seeds of D4PG: environment steps, counts of the window, returns, profile.

    With the import of TensorFlow that users get, in every process. In the full run;
    otherwise ``tests/workloads/d4pg`` has actors and evaluation, ``tests/harness`` the
    budget of a quality run, and ``tests/reports/page/test_learning.py`` the curves.
    """
    done = sweep(
        "--workload=d4pg",
        "--preset=smoke",
        "--data=cartpole:balance",
        "--backends=in_graph",
        "--replicas=1",
        "--mode=strong",
        "--repeats=1",
        "--order=sequential",
        # So few that actors must act within a window of 20 steps.
        "--option=samples_per_insert=4",
        "--budget=60steps",
        "--quality-repeats=2",
        as_users=True,
    )
    assert done.returncode == 0, done.stderr
    store = Store.open(tmp_path / "runs" / "s")
    trials = frame.trials_frame(store)
    curves = frame.curves_frame(store)
    page = store.report_path.read_text(encoding="utf-8")

    assert ["ok"] * 3 == trials.status.tolist()
    assert (trials.window_environment_steps_per_sec > 0).all()
    assert (trials.window_replaced_actors == 0).all()
    assert {"episode_return"} == set(curves.metric)
    assert 2 * 2 == len(curves)
    for _, run in curves.groupby("trial_id"):
        assert [30, 60] == run.num_steps.tolist()
        first, last = run.num_environment_steps
        assert 200 <= first < last
        assert run.value.between(0.0, 1000.0).all()
    assert "environment steps of all actors" in page
    assert "Seeds together" in page
