"""Trials and equivalence checks end as they end, and every end is recorded."""

import json
import os
import re
import signal
import threading
import time

import psutil
import pytest
from command_lines import overridden, smoke_sweep
from damaging import until
from fake_machine import two_cores
from study_files import ended_ids, processes_of

from harness import ExitCode
from harness.client import scaling_client
from results import Phase, Store, TrialStatus

pytestmark = pytest.mark.processes
forked = pytest.mark.usefixtures("forked_trials")
SWEEP = smoke_sweep(
    "--backends=in_graph --replicas=1 --mode=weak --repeats=1 --order=sequential "
    "--no-match --budget=window --study=s"
)


@pytest.fixture
def study(tmp_path):
    return tmp_path / "runs" / "s"


@pytest.fixture
def run_one(harness, overrides, study, monkeypatch):
    def run(behavior="", *options, **changes):
        monkeypatch.setenv("FAKE_BEHAVIOR", f"*:*:{behavior}" if behavior else "")
        words = overridden(SWEEP, *options)
        _, _, err = harness(*words, overrides=overrides | changes)
        (trial,) = Store.open(study).trials()
        assert trial.status is not None, err
        return trial

    return run


def test_an_ok_trial_has_everything(run_one):
    trial = run_one()
    (rank,) = trial.result.ranks
    spec = trial.spec

    assert (TrialStatus.OK, None) == (trial.status.status, trial.status.failure)
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


PAPER = "the reducer is out of paper"


@forked
@pytest.mark.parametrize(
    ("behavior", "status", "phase", "reason", "traceback"),
    [
        ("build_fail", "failed", "build", PAPER, "second line"),
        # Enough to fix it without running it again.
        ("fail", "failed", "measure", PAPER, "in misbehave"),
        ("oom", "out_of_memory", "measure", "OOM when allocating", "in misbehave"),
        ("sigkill", "failed", "measure", "SIGKILL that the harness did not", ""),
        # A process that cannot say why it ended may have said it before.
        ("exit3", "failed", "measure", "exit code 3", "libfoo"),
        (
            *("failed_checks", "failed_checks", "sanity"),
            *("in_sync: variables of replica 1 differ", ""),
        ),
        ("nan", "failed_checks", "sanity", "every_loss_is_finite: nan in step 3", ""),
    ],
)
def test_each_way_to_fail_is_recorded(
    run_one, behavior, status, phase, reason, traceback
):
    trial = run_one(behavior)
    failure = trial.status.failure

    assert TrialStatus(status) is trial.status.status
    assert Phase(phase) is failure.phase
    assert reason in failure.reason
    assert "\n" not in failure.reason
    assert traceback in (failure.traceback or "")
    is_raised = behavior in ("fail", "build_fail")
    assert is_raised == (failure.exception_type == "RuntimeError")
    assert (status == "failed_checks") == (trial.result is not None)
    if behavior == "nan":
        assert 3 == len(trial.result.ranks[0].losses)
    if trial.result is not None:
        assert not trial.result.quality


def test_a_worker_that_cannot_start_fails_in_launch(run_one):
    command = ("/bin/sh", "-c", "echo no module named harness >&2; exit 1")
    failure = run_one(worker_command=command).status.failure

    assert Phase.LAUNCH is failure.phase
    assert "no module named harness" in failure.traceback


def test_a_timeout_kills_grandchildren_that_left_the_session(
    run_one, monkeypatch, tmp_path
):
    pid_file = tmp_path / "grandchild"
    monkeypatch.setenv("FAKE_GRANDCHILD_FILE", str(pid_file))
    # The clock starts once the grandchild is there, however long that takes.
    popen = psutil.Popen

    def start_with_grandchild(*words, **options):
        process = popen(*words, **options)
        until(lambda: pid_file.exists() and pid_file.read_text())
        return process

    monkeypatch.setattr(psutil, "Popen", start_with_grandchild)
    # It ignores SIGTERM, and the time until SIGKILL passes ten times as fast.
    clock = time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: 10 * clock())
    trial = run_one("hang_with_grandchild", "--timeout=0.5s")
    failure = trial.status.failure

    assert TrialStatus.TIMEOUT is trial.status.status
    assert Phase.MEASURE is failure.phase
    assert failure.reason == (
        "killed after 0.5 s (timeout): rank 0 was in phase measure after 2 steps"
    )
    pid = int(pid_file.read_text())
    # A dead one that init has not reaped does not run.
    is_dead = psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() in is_dead


def test_an_override_of_a_run_counts_more_than_its_plan(run_one):
    command = ("/bin/sh", "-c", "exec sleep 60")
    trial = run_one("", "--timeout=1h", worker_command=command, timeout_sec=0.1)

    assert TrialStatus.TIMEOUT is trial.status.status


LONGEST = "1000000000s"


@pytest.mark.parametrize(
    ("script", "limit", "code"),
    [
        ("sleep 0.1; exit 3", "60s", 3),
        ("sleep 0.1; exit 3", LONGEST, 3),
        ("kill -TERM $$", "60s", -signal.SIGTERM),
        ("kill -TERM $$", LONGEST, -signal.SIGTERM),
        ("kill -KILL $$", "60s", -signal.SIGKILL),
        ("exec sleep 60", "0.1s", -signal.SIGTERM),
    ],
)
def test_the_end_of_a_process_is_waited_for(run_one, script, limit, code):
    command = ("/bin/sh", "-c", script)
    status = run_one("", f"--timeout={limit}", worker_command=command).status
    is_late = "sleep 60" in script

    assert code == status.exit_code
    assert is_late == (TrialStatus.TIMEOUT is status.status)
    assert "sleep" not in script or status.duration_sec >= 0.1


TWO = ("--replicas=1,2",)
AGAIN = (*TWO, "--repeats=2")
IN_BLOCK = ("--repeats=2", "--order=interleaved", "--budget=none", "--set=rounds=1")


@forked
@pytest.mark.parametrize(
    ("options", "num_same"),
    [(AGAIN, 2), (AGAIN, 3), (IN_BLOCK, 1)],
    ids=["between two", "while one runs", "while a run runs"],
)
def test_a_sweep_stops_when_its_code_is_edited(
    harness, overrides, study, monkeypatch, options, num_same
):
    # Asked before each trial, after it, and before the next one.
    looks = [""] * num_same

    def changed(_watch):
        return looks.pop() if looks else "uncommitted train.py 'none' / 'ab'"

    monkeypatch.setattr("harness.sources.code_digest.CodeWatch.changed", changed)
    _, _, err = harness(*overridden(SWEEP, *options), overrides=overrides)
    ended = [trial for trial in Store.open(study).trials() if trial.status is not None]
    failed = [trial for trial in ended if trial.status.status is TrialStatus.FAILED]

    # Of an interleaved study, both the case and its aa_control.
    counts = (2, 2) if options == IN_BLOCK else (num_same - 1, num_same - 2)
    assert counts == (len(ended), len(failed))
    for trial in failed:
        assert "ChangedCodeError" == trial.status.failure.exception_type
        assert trial.status.failure.reason.startswith("the code changed while it ran, ")
        assert trial.result is None
    (said,) = [line for line in err.splitlines() if "stopped" in line]
    assert "the code changed while it was measured (uncommitted train.py" in said
    assert "with --retry failed, or choose another --study" in said


def test_a_half_written_trial_is_cleaned_with_its_processes(
    harness, overrides, study, run_one
):
    _, out, _ = harness("sweep", "--dry-run", "--json", *SWEEP[1:])
    (planned,) = json.loads(out)["trials"]
    folder = study / "trials" / planned["trial_id"]
    folder.mkdir(parents=True)
    (folder / "rank_0.jsonl").write_text('{"kind": "phase", "pha')
    stray = psutil.Popen(
        ["sleep", "600"],
        env={**os.environ, scaling_client.TRIAL_VARIABLE: str(folder.resolve())},
        start_new_session=True,
    )
    trial = run_one()

    assert -signal.SIGTERM == stray.wait(timeout=60)
    assert TrialStatus.OK is trial.status.status


@forked
@pytest.mark.usefixtures("with_pages")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_exits_130_and_says_how_to_resume(
    harness, overrides, study, monkeypatch, show_page, number
):
    """The current trial is missing afterwards, not failed, and has no process."""
    monkeypatch.setenv("FAKE_BEHAVIOR", "in_graph:2:hang")
    show_page("a page\n")
    measuring = '"phase": "measure"'

    def is_second_measured():
        paths = study.glob("trials/*/rank_0.jsonl")
        return 2 == sum(measuring in path.read_text() for path in paths)

    def interrupt():
        until(is_second_measured)
        os.kill(os.getpid(), number)

    thread = threading.Thread(target=interrupt)
    thread.start()
    code, _, err = harness(*overridden(SWEEP, *TWO), overrides=overrides)
    thread.join()
    store = Store.open(study)

    assert ExitCode.INTERRUPTED == code
    assert "resume with: python -m harness sweep --study runs/s" in err
    assert 1 == len(ended_ids(store))
    assert [] == processes_of(study)
    assert ExitCode.OK == harness("verify", "s")[0]
    assert store.report_path.exists()


ONE_BACKEND = "--backends=in_graph"


@pytest.fixture
def sweep(harness, small, overrides, forked_trials):
    def run(*options):
        words = overridden(small, "--repeats=1", "--study=s", *options)
        return harness("sweep", *words, overrides=overrides)

    return run


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "runs" / "s")


@two_cores
def test_a_sweep_compares_before_it_measures(sweep, store):
    code, _, err = sweep()
    compared = list(store.equivalence.trials())
    started = [trial.status.started_at for trial in store.trials()]

    assert ExitCode.OK == code, err
    assert (3, 4) == (len(compared), len(started))
    assert re.search(
        r"matching replicas with one, untimed: single x1, .*in_graph x2", err
    )
    for trial in compared:
        assert TrialStatus.OK is trial.status.status
        assert trial.status.ended_at <= min(started)


def test_replicas_that_do_not_match_are_not_sane(sweep, harness, monkeypatch):
    monkeypatch.setenv("FAKE_UNMATCHED", "in_graph:2")
    code, out, err = sweep("--json")
    missing = {
        (row["backend"], row["num_replicas"])
        for row in json.loads(out)["figures"]
        if (row["quantity"], row["kind"]) == ("throughput", "crossed_out")
    }

    assert (ExitCode.SOME_TRIALS_FAILED, {("in_graph", 2)}) == (code, missing)
    assert re.search(
        r"in_graph x2 differs from one replica: what 2 steps change in network"
        r" differs by \d+% .*; none of its numbers is used",
        err,
    )
    assert "1 of 4 trials are not ok" in err
    assert "\nin_graph x2 differs from one replica: " in harness("status", "s")[1]
    assert ExitCode.OK == harness("verify", "s")[0]


def test_what_changed_or_is_missing_of_a_comparison_is_seen(
    sweep, harness, store, overrides
):
    sweep(ONE_BACKEND)
    folders = {
        trial.spec.backend: store.equivalence.trial_dir(trial.trial_id)
        for trial in store.equivalence.trials()
    }
    path = folders["in_graph"] / "rank_0.jsonl"
    text = path.read_text()
    for changed, where, said in (
        (
            text.replace("[1.0, 2.0]", "[5.0, 2.0]"),
            *(r"sketch\[0\]", "stated 1.0, recomputed 5.0"),
        ),
        (
            re.sub(r'"loss": \d', '"loss": 9', text),
            *("losses of equivalence checks of in_graph x2", "stated"),
        ),
    ):
        path.write_text(changed)
        code, out, _ = harness("verify", "s")

        assert ExitCode.SOME_TRIALS_FAILED == code
        assert re.search(f"{where}.*: .*{said}", out), out
    path.write_text(text)
    kept = (folders["in_graph"] / "status.json").stat().st_mtime_ns
    (folders["single"] / "status.json").unlink()
    code, _, err = harness("sweep", "--study", "s", overrides=overrides)

    assert ExitCode.OK == code, err
    assert (folders["single"] / "status.json").exists()
    assert kept == (folders["in_graph"] / "status.json").stat().st_mtime_ns


def test_a_comparison_that_gives_no_answer_is_a_failure(sweep, monkeypatch):
    monkeypatch.setenv("FAKE_MATCH_FAILS", "single:1")
    code, _, err = sweep(ONE_BACKEND)
    monkeypatch.delenv("FAKE_MATCH_FAILS")
    unchanged, _, _ = sweep(ONE_BACKEND)
    repeated, _, again = sweep(ONE_BACKEND, "--retry=failed")

    assert ExitCode.SOME_TRIALS_FAILED == code == unchanged
    assert re.search(
        r"in_graph x2 is not checked against one replica: the run of single x1 ended as"
        r" failed: the reducer is out of paper",
        err,
    )
    assert ExitCode.OK == repeated, again


def test_no_match_says_so(sweep, store):
    code, _, err = sweep(ONE_BACKEND, "--no-match")

    assert ExitCode.OK == code
    assert "in_graph x2 is not checked against one replica: --no-match was given" in err
    assert not (store.root / "match").exists()
