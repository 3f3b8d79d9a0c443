"""Trials of several processes: their ends are seen, and the first cause is recorded."""

import dataclasses
import os
import signal
import subprocess
import time

import psutil
import pytest
import synthetic_trial

from harness.run import trial_tree
from harness.run.trial_runner import run_trial
from harness.trial import measure
from harness.trial.rank_file import cause_of
from results.records.models import Phase, TrialStatus


@pytest.mark.processes
@pytest.mark.parametrize(
    ("bad", "cause"),
    [
        ({2: 1, 0: 1}, 2),  # the first that ended
        ({1: 3, 0: 1}, 1),  # whatever its number
        ({0: 1, 1: -9}, 1),  # a kill explains the others
        ({0: 1, 2: -11, 1: -9}, 2),  # the first of them
    ],
)
def test_the_cause_is_the_first_kill_or_the_first_end(bad, cause):
    """The others fail because they lost it; exit codes do not say which one it was."""
    assert cause == cause_of(bad)


@pytest.fixture
def run_cluster(store, settings, make_spec):
    """Returns a function that runs a trial of two workers; it returns its record."""

    def run_it():
        trial = synthetic_trial.planned(make_spec(backend="multi_worker"))
        run_trial(store, trial, settings)
        return store.read_trial(trial.trial_id)

    return run_it


@pytest.mark.processes
def test_every_worker_is_a_rank_with_times_of_its_own(run_cluster):
    trial = run_cluster()

    assert TrialStatus.OK is trial.status.status
    assert [0, 1] == [rank.rank for rank in trial.result.ranks]
    assert 8 == trial.result.global_batch_size
    assert all(4 == len(rank.step_time_sec) for rank in trial.result.ranks)


CAUSES = [
    ("rank1_fail", "failed", "the reducer is out of paper"),
    ("rank1_sigkill", "failed", "the kernel counted no out-of-memory kills: rank 1"),
    pytest.param(
        *("rank1_segv", "failed", "signal SIGSEGV: rank 1 was in phase measure"),
        marks=pytest.mark.full,
    ),
    pytest.param(
        *("rank1_oom", "out_of_memory", "OOM when allocating"),
        marks=pytest.mark.full,
    ),
]


@pytest.mark.processes
@pytest.mark.parametrize(("behavior", "status", "reason"), CAUSES)
def test_the_cause_is_recorded_and_not_its_consequence(
    run_cluster, monkeypatch, behavior, status, reason
):
    """Rank 0 loses rank 1 and says so; what happened to rank 1 is the failure."""
    monkeypatch.setattr(trial_tree, "read_oom_kills", lambda: 7)
    monkeypatch.setenv("FAKE_BEHAVIOR", f"*:*:{behavior}")

    trial = run_cluster()

    assert TrialStatus(status) is trial.status.status
    assert Phase.MEASURE is trial.status.failure.phase
    assert reason in trial.status.failure.reason


@pytest.mark.processes
def test_a_lost_worker_without_a_cause_is_recorded_as_that(run_cluster, monkeypatch):
    """Nobody died and nobody failed otherwise: what the rank says is all there is."""
    monkeypatch.setenv("FAKE_BEHAVIOR", "*:*:lose")

    failure = run_cluster().status.failure

    assert "WorkerLostError" == failure.exception_type
    assert "worker 1 ended" in failure.reason


@pytest.mark.processes
def test_a_stuck_rank_is_killed_with_all_others(
    store, settings, make_spec, monkeypatch
):
    """The timeout of a trial holds for its cluster; no process is left."""
    monkeypatch.setenv("FAKE_BEHAVIOR", "*:*:hang")
    trial = synthetic_trial.planned(make_spec(backend="multi_worker"))

    status = run_trial(store, trial, dataclasses.replace(settings, timeout_sec=3))

    assert TrialStatus.TIMEOUT is status.status
    # Other tests start workers meanwhile; these are identified by their store.
    left = [
        process
        for process in psutil.process_iter(["cmdline"])
        if str(store.root) in " ".join(process.info["cmdline"] or [])
    ]
    assert not left


LONG_SEC = 60.0
FOREVER = 1e9


@pytest.fixture(params=["descriptor", "no descriptor", "refused"])
def start(request, monkeypatch):
    def refuse(_pid):
        raise OSError("not supported")

    if request.param == "no descriptor":
        monkeypatch.delattr(os, "pidfd_open", raising=False)
    elif request.param == "refused":
        monkeypatch.setattr(os, "pidfd_open", refuse, raising=False)
    return lambda text: subprocess.Popen(["/bin/sh", "-c", text])


@pytest.mark.parametrize("timeout_sec", [LONG_SEC, FOREVER])
def test_the_exit_code_is_returned(start, timeout_sec):
    process = start("sleep 0.1; exit 3")

    assert 3 == measure.wait_for_turn(process, timeout_sec) == process.returncode
    assert 3 == measure.wait_for_turn(process, timeout_sec)


def test_a_signal_is_negative(start):
    """As of Popen."""
    process = start("kill -TERM $$")

    assert -signal.SIGTERM == measure.wait_for_turn(process, LONG_SEC)


def test_a_process_that_runs_on_is_a_timeout(start):
    process = start("exec sleep 60")
    begin = time.monotonic()
    with pytest.raises(subprocess.TimeoutExpired):
        measure.wait_for_turn(process, 0.2)

    assert time.monotonic() - begin >= 0.2
    assert process.poll() is None
    process.kill()
    assert -signal.SIGKILL == measure.wait_for_turn(process, LONG_SEC)


def test_an_interrupt_ends_the_wait(start):
    """A signal handler that raises is not put off until the process ends."""
    process = start("exec sleep 60")

    def interrupt(*_):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(KeyboardInterrupt):
            measure.wait_for_turn(process, LONG_SEC)
    finally:
        signal.signal(signal.SIGALRM, before)
        process.kill()
        process.wait()
