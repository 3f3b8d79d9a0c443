"""The harness is killed or suspended: nothing of it is left, and nothing is lost."""

import collections
import contextlib
import hashlib
import os
import signal
import time
from pathlib import Path

import covering
import psutil
import pytest
from command_lines import overridden, smoke_sweep
from damaging import elsewhere, until
from study_files import ended_ids, observed_in, processes_of

import reports
from harness import ExitCode, main
from results import Store, TrialStatus

pytestmark = pytest.mark.processes

NUM_KILLS = int(os.environ.get("HARNESS_KILLS", "8" if covering.is_full() else "2"))
# Of one study, so that each order has its share.
MOST_KILLS = max(1, min(NUM_KILLS // 2, 25))
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
GONE_SEC = 60.0
SHARED_MEMORY = Path("/dev/shm")
REPEATS = 2 if NUM_KILLS > 3 else 1
SWEEP = smoke_sweep(
    f"--backends=in_graph --replicas=1,2 --mode=weak --repeats={REPEATS} --study=s"
)
# By order: trials of the sweep, and those that one kill can hit.
NUM_TRIALS = {"sequential": 2 * REPEATS, "relay": 3 * REPEATS}
HIT_BY_A_KILL = {"sequential": 1, "relay": 3}


def wait_until_gone(folder):
    """Waits for the processes of a killed harness, which find out by themselves."""
    deadline = time.monotonic() + GONE_SEC
    num_looks = 0
    while num_looks < 2:
        left = processes_of(folder)
        num_looks = 0 if left else num_looks + 1
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


def held(path):
    """Whether a living process has a file open or mapped: then it is no leftover."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if str(path) in Path(f"/proc/{process.pid}/maps").read_text():
                return True
            if any(file.path == str(path) for file in process.open_files()):
                return True
    return False


@pytest.fixture
def figures(harness):
    def read(root):
        code, out, err = harness("report", str(root), "--format=csv")
        assert ExitCode.OK == code, err
        return out

    return read


@pytest.fixture
def whole(harness, overrides, forked_trials, figures, tmp_path):
    """Returns what a sweep without a kill has measured."""
    options = ("--order=sequential", f"--runs-dir={tmp_path / 'whole'}")
    assert ExitCode.OK == harness(*SWEEP, *options, overrides=overrides)[0]
    return figures(tmp_path / "whole" / "s")


def test_kills_at_random_moments_leave_nothing_and_lose_nothing(
    start_harness, figures, whole, tmp_path
):
    """SIGKILL, SIGTERM, SIGINT: no process, no memory, no trial lost or run twice."""
    memory_before = set(SHARED_MEMORY.iterdir())
    chance = covering.chance("kills")
    num_kills = num_studies = 0
    # How long an undisturbed start takes here and now, for moments that hit it all.
    duration = 2.0
    while num_kills < NUM_KILLS:
        num_studies += 1
        order = ("sequential", "relay")[num_studies % 2]
        runs, count = tmp_path / f"runs{num_studies}", tmp_path / f"count{num_studies}"
        num_kills_here, finished, observed = 0, frozenset[str](), set[str]()
        while True:
            begin = time.monotonic()
            process = start_harness(
                *(*SWEEP, f"--order={order}", f"--runs-dir={runs}"),
                *["--set=rounds=3"] * (order == "relay"),
                FAKE_STEP_SEC="0.01",
                FAKE_ACTOR="1",
                FAKE_COUNT_FILE=count,
            )
            is_due = num_kills < NUM_KILLS and num_kills_here < MOST_KILLS
            if is_due:
                with contextlib.suppress(psutil.TimeoutExpired):
                    psutil.Process(process.pid).wait(
                        chance.uniform(0.1, 0.6) * duration
                    )
            is_killed = is_due and process.poll() is None
            number = SIGNALS[num_kills % len(SIGNALS)]
            if is_killed:
                process.send_signal(number)
            process.communicate(timeout=120)
            if not is_killed:
                duration = max(time.monotonic() - begin, 1.0)
            elif number == signal.SIGKILL:
                wait_until_gone(runs)
            num_kills += is_killed
            num_kills_here += is_killed

            assert [] == processes_of(runs), (is_killed, number)
            if (runs / "s").exists():
                store = Store(runs / "s")
                assert finished <= ended_ids(store)
                assert () == store.read().problems
                finished = ended_ids(store)
                before, observed = observed, observed_in(runs / "s")
                assert before <= observed
            if not is_killed:
                break
        starts = collections.Counter(count.read_text().split())
        statuses = [trial.status for trial in Store.open(runs / "s").trials()]

        assert 0 == process.returncode
        assert NUM_TRIALS[order] == len(starts) == len(statuses)
        assert {TrialStatus.OK} == {status.status for status in statuses}
        if order == "sequential":  # loads within blocks are of this machine
            assert whole == figures(runs / "s")
        # A kill costs at most the trials that it hit, which then run once more.
        most = NUM_TRIALS[order] + num_kills_here * HIT_BY_A_KILL[order]
        assert sum(starts.values()) <= most
    left = set(SHARED_MEMORY.iterdir()) - memory_before

    assert NUM_KILLS == num_kills
    assert [] == [path for path in left if path.exists() and not held(path)]


SMALL = smoke_sweep(
    "--replicas=1,2 --mode=weak --repeats=2 --order=sequential --study=s"
)


OWN = (
    "sweep",
    "--command=sh -c 'echo {replicas} > started; sleep 600'",
    "--metric=wall",
)


@pytest.mark.parametrize(
    ("words", "sign"),
    [
        ((*SMALL, "--no-match"), "rank_0.jsonl"),
        ((*OWN, *overridden(SMALL[3:], "--per-replica-batch-size=1")), "started"),
    ],
    ids=["workload", "command"],
)
def test_a_killed_harness_takes_its_trial_along(start_harness, tmp_path, words, sign):
    process = start_harness(*words, FAKE_BEHAVIOR="*:*:hang")
    trials = tmp_path / "runs" / "s" / "trials"
    until(lambda: list(tmp_path.rglob(sign)))
    (trial_dir,) = trials.iterdir()
    assert processes_of(trial_dir)
    process.kill()
    process.communicate()
    until(lambda: not processes_of(trial_dir))


@pytest.mark.usefixtures("finished", "forked_trials")
def test_resume_runs_what_is_missing_and_only_that(
    harness, overrides, figures, tmp_path, monkeypatch
):
    store = Store.open(tmp_path / "runs" / "s")
    before = figures(store.root)
    trial_id = store.trial_ids()[3]
    (store.trial_dir(trial_id) / "status.json").unlink()
    count = tmp_path / "count"
    monkeypatch.setenv("FAKE_COUNT_FILE", str(count))
    code, _, err = harness("sweep", "--study", "s", overrides=overrides)

    assert ExitCode.OK == code
    assert [trial_id] == count.read_text().split()
    assert "8 trials, 7 already finished" in err
    assert before == figures(store.root)
    code, _, err = harness(*overridden(SMALL, "--repeats=3"), overrides=overrides)
    assert ExitCode.OK == code
    assert 1 + 4 == len(count.read_text().split())
    assert "study s: extended by 4 trials to 12" in err


ORDERS = {"sequential": (), "relay": ("--order=interleaved", "--set=rounds=2")}


STOPPED_SEC = 0.5


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
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(reports, "print_summary", lambda *_: None)
    root = tmp_path / "runs" / "s"
    small = ("--backends=in_graph", "--replicas=1", "--no-match", "--budget=none")
    words = overridden(SMALL, *small, *ORDERS[order])
    first = start_harness(*words, FAKE_STEP_SEC="0.05")
    until(lambda: list(root.glob("trials/*/rank_0.jsonl")))
    assert first.poll() is None
    first.send_signal(signal.SIGSTOP)
    time.sleep(STOPPED_SEC)
    os.utime(root / ".lock-heartbeat", (1.0, 1.0))
    with elsewhere("another"):
        code = main(words, run_overrides=overrides)
    assert ExitCode.OK == code, capsys.readouterr().err
    capsys.readouterr()
    before = digests(root)
    first.send_signal(signal.SIGCONT)
    _, err = first.communicate(timeout=60)

    assert before == digests(root)
    assert ExitCode.USAGE == first.returncode, err
    said = "was taken over by a process of another machine, since this one gave no sign"
    assert f"error: study {str(root)!r} {said} of life" in err
    assert ExitCode.OK == main(("status", "s"))
    trials = list(Store.open(root).trials())
    assert {TrialStatus.OK} == {trial.status.status for trial in trials}
