"""A real Slurm of two nodes: identity, ends of trials, sweeps that are put back."""

import json
import os
import re
import sys
import time
from pathlib import Path

import pytest
from command_lines import overridden, smoke_sweep
from slurm_cluster import finished

from replicator.cluster.environment import expand_nodes
from results import Store, TrialStatus

pytestmark = pytest.mark.processes

ROOT = Path(__file__).resolve().parents[2]
# With what makes the import of TensorFlow quick in processes of tests.
PATHS = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
MEMBER = ROOT / "tests" / "harness" / "launch" / "gang_member.py"
SAY = """
import json, socket
from replicator.cluster import environment
c = environment.detect().config()
print(json.dumps([c.worker_id, c.local_index, c.addresses["worker"], c.is_chief,
                  socket.gethostname()]))
"""


@pytest.fixture
def tell(slurm):
    def run(*options):
        done = slurm.run(
            "srun", *options, sys.executable, "-c", SAY, env={"PYTHONPATH": str(ROOT)}
        )
        assert not done.returncode, done.stderr
        return sorted(json.loads(line) for line in done.stdout.splitlines())

    return run


def test_two_tasks_on_two_nodes_know_each_other(tell):
    """Ranks, the chief, and the node of each; both derive the same addresses."""
    first, second = tell("--nodes=2", "--ntasks=2")

    assert [0, 0, True, "n0"] == [*first[:2], *first[3:]]
    assert [1, 0, False, "n1"] == [*second[:2], *second[3:]]
    assert first[2] == second[2]
    assert ["n0", "n1"] == [address.split(":")[0] for address in first[2]]


@pytest.mark.parametrize("distribution", ["block", "cyclic", "plane=2"])
def test_ranks_are_on_the_nodes_that_addresses_say(tell, distribution):
    """However tasks are spread, also unevenly; no two have the same address."""
    tasks = tell(
        "--nodes=2", "--ntasks=3", "--overcommit", f"--distribution={distribution}"
    )

    for worker_id, _, addresses, _, node in tasks:
        assert node == addresses[worker_id].split(":")[0]
    assert 3 == len(set(tasks[0][2]))
    assert sorted([0, 1, 0]) == sorted(task[1] for task in tasks)


def test_tensorflow_sums_over_the_network(slurm):
    """Its servers find each other by the names of the nodes, as a step is started."""
    words = ("srun", "--nodes=2", "--ntasks=2", sys.executable, MEMBER, "sum")
    done = slurm.run(*words, env={"PYTHONPATH": PATHS})

    said = sorted(done.stdout.splitlines())
    expected = [f'{{"worker_id": {rank}, "sum": 3.0}}' for rank in range(2)]
    assert expected == said, done.stderr


def test_a_list_of_nodes_means_what_slurm_says(slurm):
    text = "n[0-1,5],gpu-[01-03],a[08-11],x,n[0-1],n5,a[1-2]b[3-4]"
    done = slurm.run("scontrol", "show", "hostnames", text)

    assert tuple(done.stdout.split()) == expand_nodes(text)


SWEEP = smoke_sweep(
    "--backends=multi_worker --replicas=2 --mode=weak --repeats=1 --launcher=slurm "
    "--no-match --budget=none --study=s"
)
NEAR_THE_LIMIT = ("scancel", "--signal=USR1", "--batch")
PREEMPTED = ("scontrol", "requeue")


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
    """What has ended is not measured again; the trial that ran is, and only that."""
    number_of_trials = len(commands) + 1
    counted = shared / "counted"
    done = harness(
        *overridden(SWEEP, f"--repeats={number_of_trials}"),
        "--set=nodes=2",
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
        status.status for status in finished(shared).values()
    ]
    # Each trial has two processes; at most one trial was interrupted in each run.
    assert number_of_trials == len(set(starts))
    most = 2 * (number_of_trials + len(commands))
    assert 2 * number_of_trials <= len(starts) <= most
    slurm.wait_until_free(timeout_sec=60)


def test_a_job_that_records_nothing_is_not_put_back(slurm, harness, shared):
    """It would meet the same limit for ever."""
    job = harness(*SWEEP, "--set=nodes=2", FAKE_STEP_SEC="3000").stdout.strip()
    slurm.wait_for(lambda: slurm.processes("n1", "fake_worker"), "member")
    slurm.run("scancel", "--signal=USR1", "--batch", job)
    slurm.wait_for_job(job, "FAILED")

    assert "no trial ended within the time limit: give more" in log_of(shared, job)


def only_trial(folder):
    (trial,) = Store.open(folder / "runs" / "s").trials()
    return trial


def members_on(slurm, node):
    return slurm.processes(node, "fake_worker")


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
    matched = list(Store.open(shared / "runs" / "s").equivalence.trials())

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
    """TensorFlow's servers find each other by the names of the nodes."""
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
    """Phase, rank and first cause; not that the other one lost it."""
    in_job(*SWEEP, FAKE_BEHAVIOR=f"*:*:{behavior}")
    failure = only_trial(shared).status.failure

    assert TrialStatus(status) is only_trial(shared).status.status
    assert "measure" == failure.phase.value
    assert reason in failure.reason


@pytest.mark.full
def test_a_step_that_is_killed_is_a_failure_of_its_rank(slurm, start_job, shared):
    """Slurm's own process on the other node dies: rank 1 is named, in bounded time."""
    job = start_job(*SWEEP, FAKE_BEHAVIOR="*:*:rank1_hang")
    wait_for_members(slurm)
    slurm.wait_for(lambda: not members_on(slurm, "n0"), "end of rank 0, which lost 1")
    started = time.monotonic()
    slurm.kill("n1", "slurmstepd", "harness.launch.gang")
    slurm.wait_for_job(job, "FAILED", 60)
    failure = only_trial(shared).status.failure

    assert time.monotonic() - started < 20
    assert "measure" == failure.phase.value
    # On a busy machine the kill comes when the harness has waited for rank 1 in vain:
    # then the only cause that is known is what rank 0 recorded.
    assert re.search(
        r"connection to process 1 on host 'n1' was lost: it was killed.*rank 1 was in"
        r"|^worker 1 ended",
        failure.reason,
    )
    assert not members_on(slurm, "n1")


def test_scancel_leaves_no_process(slurm, start_job, shared):
    """The sweep gets the signal; every process of the trial ends on both nodes."""
    job = start_job(*SWEEP, FAKE_STEP_SEC="3000")
    wait_for_members(slurm)
    slurm.run("scancel", job)
    slurm.wait_for_job(job, "CANCELLED")
    slurm.wait_until_free()

    assert only_trial(shared).status is None


def test_a_killed_harness_takes_the_members_along(slurm, start_job, shared):
    """Without a chance to clean up: members on the other node notice it themselves."""
    job = start_job(*SWEEP, FAKE_STEP_SEC="3000")
    wait_for_members(slurm)
    slurm.kill("n0", "driver.py")
    slurm.wait_until_free("fake_worker")
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
    output, _ = in_job(*SWEEP, "--set=nodes=3")

    assert "--set nodes=3: the allocation of job" in output
    assert "has 2; ask for more" in output
    assert not (shared / "runs").exists()
