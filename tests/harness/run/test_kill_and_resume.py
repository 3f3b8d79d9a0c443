"""The harness is killed at any moment, and resumed to the same tables."""

import collections
import random
import time

import psutil
import pytest
from command_words import overridden
from ended import ended_ids

from harness.cli import exit_codes
from harness.trial.process_tree import find_tree
from results.store.study_store import Store

pytestmark = pytest.mark.processes
forked = pytest.mark.usefixtures("forked_trials")

SWEEP = (
    "sweep",
    "--workload=resnet50",
    "--preset=smoke",
    "--replicas=1,2",
    "--mode=weak",
    "--repeats=2",
    "--order=sequential",
    "--study=s",
)
# Of one backend: two replica counts, two repetitions.
NUM_TRIALS = 4
NUM_KILLS = 6
SEED = 20190201


@pytest.mark.full
def test_killed_at_random_points_it_resumes_to_the_same_tables(
    start_harness, tmp_path, tables
):
    """Kill -9 at random moments: no trial is lost, none runs twice to its end.

    Only the full run kills one study six times; every run kills others twice each
    (``test_kill_and_leave_nothing.py``).
    """
    runs = {name: tmp_path / name for name in ("whole", "killed")}
    counts = {name: tmp_path / f"{name}.count" for name in runs}

    def start(name):
        return start_harness(
            *SWEEP,
            "--backends=in_graph",
            f"--runs-dir={runs[name]}",
            FAKE_STEP_SEC="0.02",
            FAKE_COUNT_FILE=counts[name],
        )

    whole = start("whole")
    start_time = time.monotonic()
    whole.communicate(timeout=120)
    duration = time.monotonic() - start_time
    assert whole.returncode == 0

    chance = random.Random(SEED)
    num_finished = []
    for _ in range(NUM_KILLS):
        process = start("killed")
        # Anywhere from planning to the middle of some trial.
        time.sleep(chance.uniform(0.05, 0.5) * duration)
        process.kill()
        process.communicate()
        if (runs["killed"] / "s").exists():
            num_finished.append(len(ended_ids(Store(runs["killed"] / "s"))))
    last = start("killed")
    last.communicate(timeout=120)
    stores = {name: Store.open(runs[name] / "s") for name in runs}
    started = collections.Counter(counts["killed"].read_text().split())

    assert last.returncode == 0
    assert num_finished == sorted(num_finished)
    assert tables(stores["whole"]) == tables(stores["killed"])
    assert not stores["killed"].read().problems
    assert stores["whole"].trial_ids() == stores["killed"].trial_ids()
    assert NUM_TRIALS == len(stores["killed"].trial_ids()) == len(started)
    # A kill costs at most the trial that it hit.
    assert sum(started.values()) <= NUM_TRIALS + NUM_KILLS


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
