"""Real sweeps with TensorFlow, from the command to the report."""

import json
import os
import subprocess
import sys
from pathlib import Path

import fork_server
import pytest
from fake_machine import two_cores

from harness import ExitCode, main
from results import Control, Store, TrialStatus, curves_frame, trials_frame

pytestmark = pytest.mark.processes

NUM_PARAMETERS = 25_557_032
NUM_TEST_IMAGES = 359
ALLOWED = (
    ExitCode.OK,
    ExitCode.SOME_TRIALS_FAILED,
    ExitCode.NOTHING_MEASURED,
    ExitCode.UNFIT,
)


@pytest.fixture
def sweep(tmp_path):
    """Runs ``sweep`` in a process of its own, as a user; its study is ``runs/s``."""

    def run(options, *, timeout_sec=900, as_users=False):
        paths = [str(Path(__file__).resolve().parents[2])]
        if not as_users:
            paths.append(os.environ.get("PYTHONPATH", ""))
        fixed = ("--study=s", f"--runs-dir={tmp_path / 'runs'}")
        return subprocess.run(
            [sys.executable, "-m", "harness", "sweep", *options.split(), *fixed],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout_sec,
        )

    return run


@pytest.mark.full
def test_a_smoke_sweep_of_the_real_network_ends_in_a_report(sweep, tmp_path):
    """Real data, real network, two replica counts in an interleaved study: numbers that
    are sane.

    Other tests run meanwhile, so blocks may be discarded, all of a trial or too many of
    them.
    """
    done = sweep(
        "--workload=resnet50 --preset=smoke --backends=in_graph "
        "--replicas=1,2 --mode=weak,strong --repeats=1 --set=rounds=2 "
        "--budget=window --json",
    )
    assert done.returncode in ALLOWED, done.stderr
    summary = json.loads(done.stdout)
    store = Store.open(tmp_path / "runs" / "s")
    trials = list(store.trials())
    page = store.report_path.read_text(encoding="utf-8")

    statuses = {t.status.status for t in trials if t.status}
    assert statuses <= {TrialStatus.OK, TrialStatus.DISCARDED}, done.stderr
    assert summary["coverage"]["planned"] == 4 == len(trials)
    assert [("in_graph", 2, "matches")] == [
        (match["backend"], match["num_replicas"], match["outcome"])
        for match in summary["matches"]
    ], done.stderr
    assert {(1, "weak"), (2, "weak"), (1, "strong"), (2, "strong")} == {
        (row["num_replicas"], row["mode"])
        for row in summary["figures"]
        if row["quantity"] == "throughput"
    }
    for trial in trials:
        result = trial.result

        assert result is not None
        assert result.num_parameters == NUM_PARAMETERS
        assert [0, 1] == sorted({block.round_index for block in result.blocks})
        assert all(block.time_sec > 0 for block in result.blocks)
        assert result.quality[0].num_examples == NUM_TEST_IMAGES
        assert "replicas_in_sync" in {check.name for check in result.sanity}
        assert trial.trial_id[:8] in page
    assert "http://" not in page.replace("http://www.w3.org/", "")


@pytest.mark.full
def test_a_sweep_with_actors_ends_in_learning_curves(sweep, tmp_path):
    """Two seeds of D4PG: environment steps, counts of the window, returns, profile."""
    # With so few samples an insert, actors must act within a window of 20 steps.
    done = sweep(
        "--workload=d4pg --preset=smoke --data=cartpole:balance "
        "--backends=in_graph --replicas=1 --mode=strong --repeats=1 "
        "--order=sequential --option=samples_per_insert=4 --budget=60steps "
        "--set=quality-repeats=2",
        as_users=True,
    )
    assert done.returncode == 0, done.stderr
    store = Store.open(tmp_path / "runs" / "s")
    trials = trials_frame(store)
    curves = curves_frame(store)
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


def test_a_case_is_checked_and_measured_in_turns(tmp_path, monkeypatch, capsys):
    """Two replicas equal one, then take turns with their control; blocks may be
    discarded.

    Without actors, of which each trial would start its own. The full run has sweeps
    whose processes all import TensorFlow.
    """
    monkeypatch.chdir(tmp_path)
    options = (
        "--workload=d4pg --data=synthetic --preset=smoke --backends=in_graph "
        "--replicas=2 --mode=weak --order=interleaved --repeats=1 --set=rounds=1 "
        "--budget=none --json --study=s"
    )
    with fork_server.installed(module=fork_server.REAL):
        code = main(("sweep", *options.split()), run_overrides={"min_block_sec": 0.05})
    out, err = capsys.readouterr()
    assert code in ALLOWED, err
    summary = json.loads(out)
    assert summary["coverage"]["planned"] == 2
    assert ["matches"] == [match["outcome"] for match in summary["matches"]]
    for trial in Store.open(tmp_path / "runs" / "s").trials():
        assert trial.result is not None, err
        assert all(trial.result.ranks[0].losses)
        assert (trial.result.flops_per_example or 0) > 10_000
        assert all(check.is_passed for check in trial.result.sanity)


@pytest.mark.full
@two_cores
@pytest.mark.parametrize(
    ("workload", "data", "controls"),
    [
        ("d4pg", "synthetic", "input_only"),
        ("d4pg", "cartpole:balance", "input_only,no_update"),
        ("sngan", "digits", "input_only,no_update"),
    ],
)
def test_an_interleaved_study_measures_the_pipelines_without_the_step(
    workload, data, controls, sweep, tmp_path
):
    """They take turns with the case; the loss is 0, as there is none.

    Other tests run meanwhile, so blocks may be discarded.
    """
    done = sweep(
        f"--workload={workload} --data={data} --preset=smoke "
        "--backends=in_graph --replicas=1,2 --mode=weak --order=relay "
        f"--repeats=1 --set=rounds=1 --budget=none --controls={controls} --json",
    )
    assert done.returncode in ALLOWED, done.stderr
    store = Store.open(tmp_path / "runs" / "s")
    (trial,) = [t for t in store.trials() if t.spec.control is Control.INPUT_ONLY]
    *_, case = sorted(
        (t for t in store.trials() if t.spec.control is Control.NONE),
        key=lambda t: t.spec.num_replicas,
    )
    without_update = [
        t for t in store.trials() if t.spec.control is Control.NO_UPDATE and t.result
    ]
    result = trial.result

    assert result is not None, done.stderr
    assert ("in_graph", 2) == (trial.spec.backend, trial.spec.num_replicas)
    assert {0.0} == set(result.ranks[0].losses)
    assert result.flops_per_example is None
    assert case.result is not None, done.stderr
    assert (case.result.flops_per_example or 0) > 10_000
    assert [("input_only", True)] == [
        (check.name, check.is_passed)
        for check in result.sanity
        if check.name != "every_loss_is_finite"
    ]
    expected = [1, 2] if "no_update" in controls else []
    assert expected == sorted(t.spec.num_replicas for t in without_update), done.stderr
    named = controls.replace(",", ", ")
    assert f"controls {named}: of in_graph x2, weak sca" in done.stderr
    summary = json.loads(done.stdout)
    assert summary["coverage"]["planned"] == 4 + len(expected)
    assert ["matches"] == [match["outcome"] for match in summary["matches"]]


@pytest.mark.full
@pytest.mark.parametrize(
    ("backend", "data"),
    [
        # Without actors, which would take most of the time.
        ("multi_worker", "synthetic"),
        ("multi_worker", "cartpole:balance"),
        ("multi_worker_in_graph", "cartpole:balance"),
    ],
)
def test_two_workers_of_two_replicas_train_as_one_replica(
    backend, data, sweep, tmp_path
):
    """Four replicas match one before a number counts, as with a worker for each."""
    done = sweep(
        f"--workload=d4pg --data={data} --preset=smoke --backends={backend} "
        "--replicas=4 --set=replicas-per-worker=2 --mode=weak --order=sequential "
        "--repeats=1 --controls=none --budget=none --json",
        timeout_sec=600,
    )
    assert 0 == done.returncode, done.stderr
    (trial,) = Store.open(tmp_path / "runs" / "s").trials()
    assert trial.result is not None
    summary = json.loads(done.stdout)
    num_ranks = {"multi_worker": 2, "multi_worker_in_graph": 1}[backend]

    assert "2" == trial.spec.variables["REPLICATOR_HARNESS_REPLICAS_PER_WORKER"]
    assert num_ranks == len(trial.result.ranks)
    assert ["matches"] == [match["outcome"] for match in summary["matches"]]
    assert 1 == summary["coverage"]["ok"]
