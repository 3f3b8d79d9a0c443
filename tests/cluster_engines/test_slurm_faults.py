"""Faults of a cluster under a sweep: requeued or recorded, continued, and verified.

Each strikes while the second of three trials runs. What was finished stays as it was;
the queue, or the same command again, brings all three trials to their end.
"""

import contextlib
import os
import re
import shutil
import time

import covering
import pytest
from command_lines import smoke_sweep
from slurm_cluster import finished

from results import TrialStatus

pytestmark = pytest.mark.processes

NUM_TRIALS = 3
SWEEP = smoke_sweep(
    "--backends=multi_worker --replicas=2 --mode=weak --launcher=slurm --set=nodes=2 "
    "--no-match --budget=none --order=sequential --timeout=40s --study=s"
)
OVER = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY")
DETECTED_SEC = 16.0
"""A node without a sign of life for ``SlurmdTimeout`` (10 s) is down."""
CREDENTIALS_SEC = 5.0
"""Until those of the run before have expired, none starts."""
LONGEST_SEC = 240.0


def lose(node):
    """Ends a node with all of its processes; it is started again a while later."""

    def strike(slurm, _job, _shared):
        slurm.kill_node(node)
        time.sleep(DETECTED_SEC)
        slurm.boot_node(node)

    return strike


def cut(seconds):
    def strike(slurm, _job, _shared):
        slurm.run("ip", "link", "set", "up0", "down", on="n1")
        time.sleep(seconds)
        slurm.run("ip", "link", "set", "up0", "up", on="n1")

    return strike


def restart(daemon, host, *words):
    def strike(slurm, _job, _shared):
        file = slurm.folder / daemon
        slurm.run("sh", "-c", f"kill -9 $(cat {file}.pid)", on=host)
        time.sleep(3)
        program = daemon.partition("-")[0]
        slurm.run(program, "-f", slurm.folder / "slurm.conf", *words, on=host)

    return strike


def say(*words):
    def strike(slurm, job, _shared):
        said = slurm.run(*(word.format(job=job) for word in words))
        assert not said.returncode, said.stderr

    return strike


def cancel_a_step(slurm, job, _shared):
    listed = slurm.run(
        "squeue", "--steps", f"--jobs={job}", "--noheader", "--format=%i"
    )
    steps = [of for of in listed.stdout.split() if of.rpartition(".")[2].isdigit()]
    assert steps, listed.stdout
    slurm.run("scancel", *steps)


def fail_the_prolog(slurm, job, _shared):
    flag = slurm.folder / "fail-prolog"
    flag.touch()
    slurm.run("scontrol", "requeue", job)
    time.sleep(CREDENTIALS_SEC)
    slurm.run("scontrol", "update", f"JobId={job}", "StartTime=now")
    slurm.wait_for(
        lambda: "drain" in slurm.run("sinfo", "--noheader", "--format=%T").stdout,
        "a node that Slurm has drained",
        30,
    )
    flag.unlink()


def kill_a_rank(slurm, _job, _shared):
    """Kills what runs a rank, as the kernel of its host does for want of memory."""
    slurm.kill("n1", "fake_worker")


def mount(*commands):
    """Mounts something over the studies on one node, until a trial has ended."""

    def strike(slurm, _job, shared):
        runs = shared / "runs"
        for command in commands:
            words = command.format(runs=runs).split()
            slurm.run("mount", *words, on="n1")
        before = len(finished(shared))
        with contextlib.suppress(AssertionError):  # the job may have ended instead
            slurm.wait_for(lambda: len(finished(shared)) > before + 1, "a trial", 20)
        slurm.run("umount", "--lazy", runs, on="n1")

    return strike


FAULTS = {
    "a node is lost": lose("n1"),
    "the node of the harness is lost": lose("n0"),
    "a network is cut for long": cut(DETECTED_SEC),
    "a network is cut shortly": cut(3.0),
    "the controller starts again": restart("slurmctld", "ctl"),
    "the daemon of a node starts again": restart("slurmd-n1", "n1", "-N", "n1"),
    "the time limit": say("scontrol", "update", "JobId={job}", "TimeLimit=1"),
    "preemption": say("scontrol", "requeue", "{job}"),
    "a prolog fails": fail_the_prolog,
    "a rank is killed for want of memory": kill_a_rank,
    "a disk is read-only on one node": mount(
        "--bind {runs} {runs}", "-o remount,bind,ro {runs}"
    ),
    "a disk is gone on one node": mount("-t tmpfs none {runs}"),
    "a step is cancelled": cancel_a_step,
    "the job is cancelled": say("scancel", "{job}"),
}
UNSEEN = (
    "a network is cut shortly",
    "the controller starts again",
    "the daemon of a node starts again",
)
"""What a sweep may live through; the others put the job back, or fail a trial."""
QUICK = "a step is cancelled"
# A job has to last for the minute that Slurm counts in.
OTHER_NUM_TRIALS = {"the time limit": 14, QUICK: 2}
NUM_KILLS = int(os.environ.get("SLURM_KILLS", "2"))


def bring_to_an_end(slurm, job):
    deadline = time.monotonic() + LONGEST_SEC
    pending_since = None
    while (state := slurm.job_state(job)) not in OVER:
        assert time.monotonic() < deadline, f"{state}\n{slurm.logs()}"
        is_pending = state == "PENDING"
        pending_since = (pending_since or time.monotonic()) if is_pending else None
        if is_pending and time.monotonic() - pending_since > CREDENTIALS_SEC:
            # Slurm itself would wait for two minutes.
            slurm.run("scontrol", "update", "NodeName=n[0-1]", "State=resume")
            slurm.run("scontrol", "release", job)
            slurm.run("scontrol", "update", f"JobId={job}", "StartTime=now")
            pending_since = None
        time.sleep(0.5)
    return state


def num_restarts(slurm, job):
    """Returns how often Slurm has put a job back and started it again."""
    shown = slurm.run("scontrol", "show", "job", job).stdout
    return int(re.search(r"Restarts=(\d+)", shown)[1])


@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=[pytest.mark.full] * (kind != QUICK)) for kind in FAULTS],
)
def test_a_fault_of_the_cluster_loses_nothing(slurm, harness, shared, kind):
    """Of each kind, in the full run; otherwise a step is cancelled."""
    num_trials = OTHER_NUM_TRIALS.get(kind, NUM_TRIALS)
    words = (*SWEEP, f"--repeats={num_trials}", "--retry=failed")
    step = {"FAKE_STEP_SEC": "0.1" if kind == QUICK else "0.3"}
    job = harness(*words, **step).stdout.strip()
    slurm.wait_for(lambda: len(finished(shared)) == 1, "the first trial", 60)
    slurm.wait_for(lambda: slurm.processes("n1", "fake_worker"), "the second trial", 30)
    before = finished(shared)
    FAULTS[kind](slurm, job, shared)
    state = bring_to_an_end(slurm, job)
    recorded = finished(shared)
    is_seen = num_restarts(slurm, job) > 0 or state != "COMPLETED"
    num_runs = 1
    while {of.status for of in finished(shared).values()} != {TrialStatus.OK} or (
        len(finished(shared)) < num_trials
    ):
        assert num_runs < 4, (state, recorded, slurm.logs())
        slurm.run("scontrol", "update", "NodeName=n[0-1]", "State=resume")
        job = harness(*words, **step).stdout.strip()
        state = bring_to_an_end(slurm, job)
        num_runs += 1
    after = finished(shared)
    # A sweep that was cut off leaves the page of its last whole repetition.
    harness("report", "s")
    verified = harness("verify", "s")

    has_failed = {of.status for of in recorded.values()} != {TrialStatus.OK}
    assert is_seen or has_failed or kind in UNSEEN, "it struck nothing"
    assert before.items() <= recorded.items()
    assert before.items() <= after.items()
    assert num_trials == len(after)
    assert not verified.returncode, verified.stdout + verified.stderr
    slurm.wait_until_free("fake_worker")
    for status in recorded.values():  # a failure says where
        assert status.status is TrialStatus.OK or status.failure.reason


@pytest.mark.full
def test_kills_of_the_harness_leave_nothing_on_any_node(slurm, harness, shared):
    """SIGKILL at random moments, in the full run; ``make faults`` kills 20 times."""
    chance = covering.chance("kills under Slurm")
    num_kills, kept = 0, {}
    while True:
        words = (*SWEEP, f"--repeats={NUM_TRIALS}")
        job = harness(*words, FAKE_STEP_SEC="0.1").stdout.strip()
        slurm.wait_for(
            lambda job=job: (
                slurm.processes("n0", "driver.py") or slurm.job_state(job) in OVER
            ),
            "the harness",
            60,
        )
        is_killed = num_kills < NUM_KILLS
        if is_killed:
            time.sleep(chance.uniform(0.5, 8.0))
            is_killed = bool(slurm.processes("n0", "driver.py"))
            slurm.kill("n0", "driver.py")
            num_kills += is_killed
        bring_to_an_end(slurm, job)
        slurm.wait_until_free()
        found = finished(shared)
        assert kept.items() <= found.items()
        kept = found
        if num_kills >= NUM_KILLS and len(found) == NUM_TRIALS:
            break
        if len(found) == NUM_TRIALS:  # of a new study, until there are enough kills
            shutil.rmtree(shared / "runs")
            kept = {}

    assert {TrialStatus.OK} == {of.status for of in kept.values()}
    assert NUM_KILLS == num_kills
    assert [] == list((shared / "runs").rglob(".tmp-*"))
    assert not harness("verify", "s").returncode
