"""Trials in an allocation of two nodes: measured, failed, lost, cancelled."""

import re
import time

import pytest
from command_words import overridden

from results.records.models import TrialStatus
from results.store.study_store import Store

pytestmark = pytest.mark.processes
SWEEP = (
    "sweep", "--workload=resnet50", "--preset=smoke", "--backends=multi_worker",
    "--replicas=2", "--mode=weak", "--repeats=1", "--launcher=slurm", "--no-match",
    "--budget=none", "--study=s",
)  # fmt: skip


def only_trial(folder):
    (trial,) = Store.open(folder / "runs" / "s").trials()
    return trial


def members_on(slurm, node):
    return slurm.processes(node, "fake_worker.py")


def wait_for_members(slurm):
    slurm.wait_for(
        lambda: all(members_on(slurm, node) for node in ("n0", "n1")), "members", 30
    )


def test_a_trial_of_two_workers_runs_on_two_nodes(in_job, shared):
    """It is measured, and its identity says that two hosts took part.

    Before that, it is matched with one replica, in the same way.
    """
    output, state = in_job(*(word for word in SWEEP if word != "--no-match"))
    trial = only_trial(shared)
    matched = list(Store.open(shared / "runs" / "s").matching.trials())

    assert "COMPLETED" == state, output
    assert TrialStatus.OK is trial.status.status, trial.status.failure
    assert [0, 1] == [rank.rank for rank in trial.result.ranks]
    assert "2" == trial.spec.variables["REPLICATOR_HARNESS_HOSTS"]
    assert {"single": 1, "multi_worker": 2} == {
        match.spec.backend: match.spec.num_replicas for match in matched
    }
    for match in matched:
        assert TrialStatus.OK is match.status.status, match.status.failure


@pytest.mark.full
def test_the_true_worker_trains_over_the_network(in_job, shared):
    """TensorFlow's servers find each other by the names of the nodes.

    In the full run; otherwise ``test_slurm_identity.py`` has a sum of TensorFlow over
    this network, and the other tests here have the harness with another worker.
    """
    sweep = overridden(
        SWEEP, "--workload=d4pg", "--data=synthetic"
    )  # traced in seconds
    output, state = in_job(*sweep, HARNESS_REAL_WORKER="1")
    trial = only_trial(shared)

    assert "COMPLETED" == state, output
    assert TrialStatus.OK is trial.status.status, trial.status.failure
    assert all(check.is_passed for check in trial.result.sanity)


@pytest.mark.parametrize(
    ("behavior", "status", "reason"),
    [
        pytest.param(
            *("rank1_fail", "failed", "the reducer is out of paper"),
            marks=pytest.mark.full,
        ),
        ("rank1_sigkill", "failed", "rank 1 was in phase measure"),
    ],
)
def test_a_rank_that_dies_is_the_cause(in_job, shared, behavior, status, reason):
    """Phase, rank and first cause; not that the other one lost it.

    The full run has an exception as well, which ``test_ranks.py`` has on one host.
    """
    in_job(*SWEEP, FAKE_BEHAVIOR=f"*:*:{behavior}")
    failure = only_trial(shared).status.failure

    assert TrialStatus(status) is only_trial(shared).status.status
    assert "measure" == failure.phase.value
    assert reason in failure.reason


@pytest.mark.full
def test_a_step_that_is_killed_is_a_failure_of_its_rank(slurm, start_job, shared):
    """Slurm's own process on the other node dies: rank 1 is named, in bounded time.

    In the full run: it takes Slurm twenty seconds. Otherwise ranks die, and
    ``test_slurm_requests.py`` has a step that Slurm takes for running.
    """
    job = start_job(*SWEEP, FAKE_BEHAVIOR="*:*:rank1_hang")
    wait_for_members(slurm)
    slurm.wait_for(lambda: not members_on(slurm, "n0"), "end of rank 0, which lost 1")
    started = time.monotonic()
    slurm.kill("n1", "slurmstepd", "harness.launch.member")
    slurm.wait_for_job(job, "FAILED", 60)
    failure = only_trial(shared).status.failure

    assert time.monotonic() - started < 20
    assert "measure" == failure.phase.value
    # On a busy machine the kill comes when the harness has waited for rank 1 in vain:
    # then the only cause that is known is what rank 0 recorded.
    assert re.search(
        r"the connection to process 1 on n1 was lost: it was killed.*rank 1 was in"
        r"|^worker 1 ended",
        failure.reason,
    )
    assert not members_on(slurm, "n1")


def test_scancel_leaves_no_process(slurm, start_job, shared):
    """The sweep gets the signal; every process of the trial ends on both nodes."""
    job = start_job(*SWEEP, FAKE_STEP_SEC="30")
    wait_for_members(slurm)
    slurm.run("scancel", job)
    slurm.wait_for_job(job, "CANCELLED", 30)
    slurm.wait_for(
        lambda: not slurm.processes("n0") and not slurm.processes("n1"), "end", 15
    )

    assert only_trial(shared).status is None


def test_a_killed_harness_takes_the_members_along(slurm, start_job, shared):
    """Without a chance to clean up: members on the other node notice it themselves."""
    job = start_job(*SWEEP, FAKE_STEP_SEC="30")
    wait_for_members(slurm)
    slurm.kill("n0", "driver.py")
    slurm.wait_for(
        lambda: not members_on(slurm, "n0") and not members_on(slurm, "n1"), "end", 15
    )
    slurm.run("scancel", job)


def test_a_store_that_a_node_does_not_see_is_refused(slurm, in_job, shared):
    """Before anything is measured, and the node is named."""
    private = shared / "private"
    private.mkdir()
    slurm.run("mount", "-t", "tmpfs", "none", private, on="n1")
    try:
        output, state = in_job(*SWEEP, f"--runs-dir={private}/runs")
    finally:
        slurm.run("umount", private, on="n1")

    assert "FAILED" == state
    assert re.search(
        r"--runs-dir .*host 'n1' cannot read .*choose a --runs-dir", output
    )
    assert not list(private.iterdir())


def test_an_allocation_smaller_than_the_trial_is_refused(in_job, shared):
    output, _ = in_job(*SWEEP, "--nodes=3")

    assert "--nodes 3: the allocation of job" in output
    assert "has 2; ask for more" in output
    assert not (shared / "runs").exists()
