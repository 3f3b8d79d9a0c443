"""Sweeps that are submitted: to their end, requeued, stopped."""

import time

import pytest

from results.records.models import TrialStatus
from results.store.study_store import Store

pytestmark = pytest.mark.processes
SWEEP = (
    "sweep", "--workload=resnet50", "--preset=smoke", "--backends=multi_worker",
    "--replicas=2", "--mode=weak", "--launcher=slurm", "--no-match", "--budget=none",
    "--study=s",
)  # fmt: skip
NEAR_THE_LIMIT = ("scancel", "--signal=USR1", "--batch")
PREEMPTED = ("scontrol", "requeue")


def finished(folder, study="s"):
    """Returns the trials of a study that have ended; none before it exists."""
    if not (folder / "runs" / study / "plan.json").exists():
        return []
    trials = Store.open(folder / "runs" / study).trials()
    return [trial for trial in trials if trial.status is not None]


def log_of(folder, job):
    return "".join(path.read_text() for path in folder.glob(f"s-{job}*.log"))


@pytest.mark.parametrize(
    "commands",
    [
        [NEAR_THE_LIMIT],
        pytest.param([NEAR_THE_LIMIT, PREEMPTED], marks=pytest.mark.full),
    ],
)
def test_a_sweep_continues_in_the_next_run(slurm, harness, shared, commands):
    """What has ended is not measured again; the trial that ran is, and only that.

    The time limit is near: the job requeues itself. In the full run it is then requeued
    once more by Slurm, as after preemption.
    """
    number_of_trials = len(commands) + 1
    counted = shared / "counted"
    done = harness(
        *SWEEP,
        "--nodes=2",
        f"--repeats={number_of_trials}",
        FAKE_STEP_SEC="0.3",
        FAKE_COUNT_FILE=str(counted),
    )
    job = done.stdout.strip()
    assert job.isdigit(), done.stderr
    for number, command in enumerate(commands, start=1):
        slurm.wait_for_job(job, "RUNNING", 30)
        slurm.wait_for(
            lambda number=number: len(finished(shared)) >= number, f"trial {number}", 40
        )
        slurm.run(*command, job)
        slurm.wait_for_job(job, "PENDING", 30)

        if command == NEAR_THE_LIMIT:
            assert f"job {job} continues in its next run" in log_of(shared, job)
        assert number <= len(finished(shared)) < number_of_trials
        # Slurm starts a requeued job after two minutes, in which credentials expire;
        # those of the tests do after three seconds.
        time.sleep(5)
        slurm.run("scontrol", "update", f"JobId={job}", "StartTime=now")
    slurm.wait_for_job(job, "COMPLETED", 60)
    starts = counted.read_text().split()

    assert [TrialStatus.OK] * number_of_trials == [
        t.status.status for t in finished(shared)
    ]
    # Each trial has two processes; at most one trial was interrupted in each run.
    assert number_of_trials == len(set(starts))
    most = 2 * (number_of_trials + len(commands))
    assert 2 * number_of_trials <= len(starts) <= most
    slurm.wait_for(
        lambda: not slurm.processes("n0") and not slurm.processes("n1"), "end", 15
    )


def test_a_job_that_records_nothing_is_not_put_back(slurm, harness, shared):
    """It would meet the same limit for ever."""
    job = harness(*SWEEP, "--nodes=2", "--repeats=1", FAKE_STEP_SEC="30").stdout.strip()
    slurm.wait_for(lambda: slurm.processes("n1", "fake_worker.py"), "member")
    slurm.run("scancel", "--signal=USR1", "--batch", job)
    slurm.wait_for_job(job, "FAILED", 30)

    assert "no trial ended within the time limit: give more" in log_of(shared, job)
