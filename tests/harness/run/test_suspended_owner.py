"""The owner of a study is suspended, and another machine takes over: both end well."""

import hashlib
import signal
import time

import filelock
import pytest

from harness.cli import exit_codes, running
from harness.cli import main as cli
from results.records.models import TrialStatus
from results.store import heartbeat
from results.store.study_store import Store

pytestmark = pytest.mark.processes

SWEEP = (
    "sweep", "--workload=resnet50", "--preset=smoke", "--backends=in_graph",
    "--replicas=1", "--mode=weak", "--repeats=2", "--no-match", "--budget=none",
    "--study=s",
)  # fmt: skip
ORDERS = {
    "sequential": ("--order=sequential",),
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
    words = (*SWEEP, *ORDERS[order])
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
