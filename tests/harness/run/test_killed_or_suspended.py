"""The harness is killed or suspended: both its study and its processes end well."""

import hashlib
import signal
import time

import filelock
import psutil
import pytest
from command_words import overridden, smoke_sweep

from harness.cli import exit_codes, running
from harness.cli import main as cli
from harness.trial.process_tree import find_tree
from results.records.models import TrialStatus
from results.store import heartbeat
from results.store.study_store import Store

pytestmark = pytest.mark.processes

forked = pytest.mark.usefixtures("forked_trials")

SWEEP = smoke_sweep(
    "--replicas=1,2 --mode=weak --repeats=2 --order=sequential --study=s"
)


def test_a_killed_harness_takes_its_trial_along(start_harness, tmp_path):
    """Kill -9 of the parent ends the worker too, with nobody there to do it."""
    process = start_harness(*SWEEP, "--no-match", FAKE_BEHAVIOR="*:*:hang")
    trials = tmp_path / "runs" / "s" / "trials"
    workers = []
    deadline = time.monotonic() + 120
    while not workers or not list(trials.glob("*/rank_0.jsonl")):
        assert time.monotonic() < deadline
        time.sleep(0.05)
        workers = psutil.Process(process.pid).children()
    (trial_dir,) = trials.iterdir()
    process.kill()
    process.communicate()
    deadline = time.monotonic() + 60
    while left := find_tree(str(trial_dir.resolve()), workers[0].pid):
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


@forked
def test_resume_runs_what_is_missing_and_only_that(
    finished, harness, overrides, tables, tmp_path, monkeypatch
):
    """A removed trial is missing; the others are kept as they are."""
    store = Store.open(tmp_path / "runs" / "s")
    before = tables(store)
    trial_id = store.trial_ids()[3]
    (store.trial_dir(trial_id) / "status.json").unlink()
    count = tmp_path / "count"
    monkeypatch.setenv("FAKE_COUNT_FILE", str(count))
    code, _, err = harness("sweep", "--study", "s", overrides=overrides)

    assert exit_codes.OK == code
    assert [trial_id] == count.read_text().split()
    assert "8 trials, 7 already finished" in err
    assert before == tables(store)


@forked
def test_more_repeats_extend_a_study(
    finished, harness, overrides, tmp_path, monkeypatch
):
    """What is there is reused; only the new repetition runs."""
    count = tmp_path / "count"
    monkeypatch.setenv("FAKE_COUNT_FILE", str(count))
    code, _, err = harness(*overridden(SWEEP, "--repeats=3"), overrides=overrides)

    assert exit_codes.OK == code
    assert len(count.read_text().split()) == 4
    assert "study s: extended by 4 trials to 12" in err


ORDERS = {
    "sequential": (),
    "relay": ("--order=relay", "--rounds=2"),
}
STOPPED_SEC = 0.5


class NoLock:
    """The lock of a kernel that does not see those of others."""

    def __init__(self, *_, **__):
        """Takes what a lock does."""

    def acquire(self):
        """Is never refused."""

    def release(self):
        """Has nothing to release."""


def digests(root):
    return {
        str(path.relative_to(root)): hashlib.blake2b(path.read_bytes()).hexdigest()
        for path in sorted(root.rglob("*"))
        if path.is_file() and path.name != ".lock"
    }


@pytest.mark.parametrize("order", ORDERS)
def test_an_owner_that_was_suspended_writes_over_nothing(
    order, start_harness, overrides, forked_trials, tmp_path, capsys, monkeypatch
):
    """It says in one line who has the study now; the other one's study is whole."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(running, "_conclude", lambda _store, *, is_json: None)
    root = tmp_path / "runs" / "s"
    small = ("--backends=in_graph", "--replicas=1", "--no-match", "--budget=none")
    words = overridden(SWEEP, *small, *ORDERS[order])
    first = start_harness(*words, FAKE_STEP_SEC="0.05")
    deadline = time.monotonic() + 60
    while not list(root.glob("trials/*/rank_0.jsonl")):
        assert time.monotonic() < deadline
        assert first.poll() is None
        time.sleep(0.01)
    first.send_signal(signal.SIGSTOP)
    time.sleep(STOPPED_SEC)
    # Another machine, which sees none of this one's locks.
    monkeypatch.setattr(heartbeat, "kernel_id", lambda: "another")
    monkeypatch.setattr(heartbeat, "DEAD_SEC", STOPPED_SEC / 2)
    monkeypatch.setattr(filelock, "FileLock", NoLock)
    code = cli.main(words, run_overrides=overrides)
    assert exit_codes.OK == code, capsys.readouterr().err
    capsys.readouterr()
    before = digests(root)
    first.send_signal(signal.SIGCONT)
    _, err = first.communicate(timeout=60)

    assert before == digests(root)
    assert exit_codes.USAGE == first.returncode, err
    assert (
        f"error: study {str(root)!r} was taken over by a process"
        " of another machine, since this one gave no sign of life"
    ) in err
    assert exit_codes.OK == cli.main(("status", "s"))
    trials = list(Store.open(root).trials())
    assert {TrialStatus.OK} == {trial.status.status for trial in trials}
