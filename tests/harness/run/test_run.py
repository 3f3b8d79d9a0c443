"""Trials end as they end, and every end is recorded with phase and reason."""

import dataclasses
import io
import os
import signal
import time

import psutil
import pytest
from hung import until

from harness.cli import running
from harness.planning.estimate import Durations
from harness.run import sweep as run
from harness.run import trial_tree
from harness.run.trial_runner import run_trial
from harness.trial import process_tree
from results.records.models import Phase, TrialStatus

pytestmark = pytest.mark.processes
forked = pytest.mark.usefixtures("forked_trials")


def run_one(store, settings, index=0):
    trial = store.read_plan().trials[index]
    run_trial(store, trial, settings)
    return store.read_trial(trial.trial_id)


def is_running(pid):
    """Says whether a process runs; a dead one that init has not reaped does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_an_ok_trial_has_everything(store, settings):
    trial = run_one(store, settings)
    (rank,) = trial.result.ranks
    spec = trial.spec

    assert trial.status.status is TrialStatus.OK
    assert trial.status.failure is None
    assert spec.num_warmup_steps == len(rank.warmup_step_time_sec)
    assert spec.num_measured_steps == len(rank.step_time_sec)
    assert spec.num_warmup_steps + spec.num_measured_steps == len(rank.losses)
    assert pytest.approx(sum(rank.step_time_sec)) == trial.result.window_sec
    assert rank.time_to_first_step_sec > 5.0
    assert [metric.num_examples for metric in trial.result.quality] == [359]
    (counted,) = trial.result.window_metrics
    assert ("steps_in_window", 4) == (counted.name, counted.value)
    assert trial.env.canary_before_sec == trial.env.canary_after_sec == 0.2
    assert trial.env.environment_variables["CUDA_VISIBLE_DEVICES"] == "-1"
    assert not trial.env.placement.is_oversubscribed


@forked
@pytest.mark.parametrize(
    ("behavior", "status", "phase", "reason"),
    [
        ("build_fail", "failed", "build", "the reducer is out of paper"),
        ("fail", "failed", "measure", "the reducer is out of paper"),
        ("oom", "out_of_memory", "measure", "OOM when allocating"),
        ("sigkill", "failed", "measure", "SIGKILL that the harness did not"),
        ("segv", "failed", "measure", "signal SIGSEGV: rank 0 was in phase measure"),
        ("exit3", "failed", "measure", "exit code 3"),
        ("exit0", "failed", "measure", "exit code 0"),
        ("insane", "insane", "sanity", "in_sync: variables of replica 1 differ"),
        ("nan", "insane", "sanity", "every_loss_is_finite: nan in step 3"),
    ],
)
def test_each_way_to_fail_is_recorded(
    store, settings, monkeypatch, behavior, status, phase, reason
):
    monkeypatch.setenv("FAKE_BEHAVIOR", f"*:*:{behavior}")
    trial = run_one(store, settings)

    assert TrialStatus(status) is trial.status.status
    assert Phase(phase) is trial.status.failure.phase
    assert reason in trial.status.failure.reason
    assert "\n" not in trial.status.failure.reason
    assert (status == "insane") == (trial.result is not None)


@forked
def test_a_failure_keeps_type_and_traceback(store, settings, monkeypatch):
    """Enough to fix it without running it again."""
    monkeypatch.setenv("FAKE_BEHAVIOR", "*:*:fail")
    failure = run_one(store, settings).status.failure

    assert failure.exception_type == "RuntimeError"
    assert "in misbehave" in failure.traceback
    assert "second line" in failure.traceback


@forked
def test_a_crash_keeps_the_tail_of_stderr(store, settings, monkeypatch):
    """A process that cannot say why it ended may have said it before."""
    monkeypatch.setenv("FAKE_BEHAVIOR", "*:*:exit3")

    assert "libfoo" in run_one(store, settings).status.failure.traceback


@forked
def test_a_nan_loss_ends_the_recorded_losses(store, settings, monkeypatch):
    """Records hold finite numbers only; the check says where it happened."""
    monkeypatch.setenv("FAKE_BEHAVIOR", "*:*:nan")
    trial = run_one(store, settings)

    assert len(trial.result.ranks[0].losses) == 3
    assert not trial.result.quality


def test_a_worker_that_cannot_start_fails_in_launch(store, settings):
    """The reason does not hide in a log."""
    command = ("/bin/sh", "-c", "echo no module named harness >&2; exit 1")
    settings = dataclasses.replace(settings, worker_command=command)
    trial = run_one(store, settings)

    assert trial.status.failure.phase is Phase.LAUNCH
    assert "no module named harness" in trial.status.failure.traceback


def test_a_timeout_kills_grandchildren_that_left_the_session(
    store, settings, monkeypatch, tmp_path
):
    """Nothing of a trial survives it, not even one that ignores SIGTERM."""
    pid_file = tmp_path / "grandchild"
    monkeypatch.setenv("FAKE_BEHAVIOR", "*:*:hang_with_grandchild")
    monkeypatch.setenv("FAKE_GRANDCHILD_FILE", str(pid_file))
    # The clock starts once the grandchild is there, however long that takes.
    start = trial_tree.ProcessTree.start

    def start_with_grandchild(tree):
        start(tree)
        until(lambda: pid_file.exists() and pid_file.read_text())

    monkeypatch.setattr(trial_tree.ProcessTree, "start", start_with_grandchild)
    monkeypatch.setattr(process_tree, "TERMINATE_GRACE_SEC", 0.3)
    settings = dataclasses.replace(settings, timeout_sec=0.5)
    trial = run_one(store, settings)
    failure = trial.status.failure

    assert trial.status.status is TrialStatus.TIMEOUT
    assert failure.phase is Phase.MEASURE
    assert failure.reason == (
        "killed after 0.5 s (timeout): rank 0 was in phase measure after 2 steps"
    )
    assert not is_running(int(pid_file.read_text()))


@forked
def test_failures_do_not_stop_a_sweep_and_are_finished(
    store, settings, monkeypatch, tmp_path
):
    """A recorded failure runs again only when asked."""
    monkeypatch.setenv("FAKE_COUNT_FILE", str(tmp_path / "count"))
    monkeypatch.setenv("FAKE_BEHAVIOR", "tf_mirrored:2:build_fail")
    trials = store.read_plan().trials[:4]
    stream = io.StringIO()

    def sweep(retry):
        (tmp_path / "count").write_text("")
        run.run_trials(
            store,
            trials,
            dataclasses.replace(settings, is_failed_retried=retry),
            running.PlainProgress(stream),
            Durations(),
        )
        return (tmp_path / "count").read_text().split()

    first, second = sweep(retry=False), sweep(retry=False)
    monkeypatch.delenv("FAKE_BEHAVIOR")
    third = sweep(retry=True)
    failed = {
        t.trial_id
        for t in trials
        if t.spec.backend == "tf_mirrored" and t.spec.num_replicas == 2
    }

    assert [trial.trial_id for trial in trials] == first
    assert not second
    assert failed == set(third)
    assert {TrialStatus.OK} == {
        store.read_trial(trial.trial_id).status.status for trial in trials
    }
    assert "failed, took" in stream.getvalue()
    assert "[4/4]" in stream.getvalue()


@forked
@pytest.mark.parametrize("num_same", [2, 3], ids=["between two", "while one runs"])
def test_a_sweep_stops_when_its_code_is_edited(store, settings, num_same):
    trials = store.read_plan().trials[:4]
    looks = iter([""] * num_same + ["uncommitted train.py 'none' / 'ab'"] * 9)
    # Asked before each trial, after it, and before the next one.
    settings = dataclasses.replace(settings, changed_code=lambda: next(looks))
    stream = io.StringIO()
    run.run_trials(store, trials, settings, running.PlainProgress(stream), Durations())
    statuses = [None] * 4
    for trial in store.trials():
        statuses[[of.trial_id for of in trials].index(trial.trial_id)] = trial.status

    first, second = statuses[:2]
    assert [None, None] == statuses[2:]
    assert TrialStatus.OK is first.status
    if num_same == 2:
        assert second is None
    else:
        assert (TrialStatus.FAILED, "ChangedCodeError") == (
            second.status,
            second.failure.exception_type,
        )
        assert second.failure.reason.startswith("the code changed while it ran, so")
        assert store.read_trial(second.trial_id).result is None
    (said,) = [line for line in stream.getvalue().splitlines() if "stopped" in line]
    assert (
        "stopped: the code changed while it was measured (uncommitted train.py" in said
    )
    assert "with --retry failed, or choose another --study" in said


def test_a_half_written_trial_is_cleaned_with_its_processes(store, settings, tmp_path):
    """What a killed harness left is neither trusted nor left running."""
    trial = store.read_plan().trials[0]
    trial_dir = store.trial_dir(trial.trial_id)
    store.write_spec(trial.trial_id, trial.spec)
    (trial_dir / "rank_0.jsonl").write_text('{"kind": "phase", "pha')
    stray = psutil.Popen(
        ["sleep", "600"],
        env={**os.environ, "REPLICATOR_HARNESS_TRIAL": str(trial_dir.resolve())},
        start_new_session=True,
    )
    done = run_one(store, settings)

    assert stray.wait(timeout=60) == -signal.SIGTERM
    assert done.status.status is TrialStatus.OK


def test_an_interrupt_kills_the_tree_and_leaves_no_status(store, settings, monkeypatch):
    """The current trial is missing afterwards, not failed."""
    monkeypatch.setenv("FAKE_BEHAVIOR", "*:*:hang")
    trial = store.read_plan().trials[0]
    trial_dir = store.trial_dir(trial.trial_id)
    before = signal.getsignal(signal.SIGALRM)

    def interrupt(_number, _frame):
        if (trial_dir / "rank_0.jsonl").exists():
            signal.setitimer(signal.ITIMER_REAL, 0)
            raise run.Interrupted("SIGALRM")

    signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.1, 0.1)
    start = time.monotonic()
    try:
        with pytest.raises(run.Interrupted):
            run_trial(store, trial, settings)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)

    assert time.monotonic() - start < 50
    assert store.read_trial(trial.trial_id).status is None
    assert not process_tree.find_tree(str(trial_dir.resolve()))
