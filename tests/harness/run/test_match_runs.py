"""A sweep compares N replicas with one before it measures, and says what it found."""

import json
import re

import pytest
from command_words import overridden

from harness.cli import exit_codes
from results.records.models import TrialStatus
from results.store.study_store import Store

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("forked_trials")]

ONE_BACKEND = "--backends=in_graph"


@pytest.fixture
def sweep(harness, small, overrides):
    def run(*options):
        words = overridden(small, "--repeats=1", "--study=s", *options)
        return harness("sweep", *words, overrides=overrides)

    return run


@pytest.fixture
def store(tmp_path):
    """Returns the study, which is made by the test."""
    return Store(tmp_path / "runs" / "s")


def test_a_sweep_compares_before_it_measures(sweep, store):
    code, _, err = sweep()
    compared = list(store.matching.trials())
    started = [trial.status.started_at for trial in store.trials()]

    assert exit_codes.OK == code, err
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
        (point["backend"], point["num_replicas"])
        for point in json.loads(out)["points"]
        if point["throughput"] is None
    }

    assert exit_codes.SOME_TRIALS_FAILED == code
    assert {("in_graph", 2)} == missing
    assert re.search(
        r"in_graph x2 differs from one replica: what 2 steps change in network"
        r" differs by \d+% .*; none of its numbers is used",
        err,
    )
    assert "1 of 4 trials are not ok" in err
    assert "\nin_graph x2 differs from one replica: " in harness("status", "s")[1]
    assert exit_codes.OK == harness("verify", "s")[0]


def test_what_changed_or_is_missing_of_a_comparison_is_seen(
    sweep, harness, store, overrides
):
    """By ``verify``, a sketch or a loss of the raw observations that no record has.

    And what an interrupt left out is run when the study is resumed, and only that.
    """
    sweep(ONE_BACKEND)
    folders = {
        trial.spec.backend: store.matching.trial_dir(trial.trial_id)
        for trial in store.matching.trials()
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

        assert exit_codes.SOME_TRIALS_FAILED == code
        assert re.search(f"{where}.*: .*{said}", out), out
    path.write_text(text)
    kept = (folders["in_graph"] / "status.json").stat().st_mtime_ns
    (folders["single"] / "status.json").unlink()
    code, _, err = harness("sweep", "--study", "s", overrides=overrides)

    assert exit_codes.OK == code, err
    assert (folders["single"] / "status.json").exists()
    assert kept == (folders["in_graph"] / "status.json").stat().st_mtime_ns


def test_a_comparison_that_gives_no_answer_is_a_failure(sweep, monkeypatch):
    monkeypatch.setenv("FAKE_MATCH_FAILS", "single:1")
    code, _, err = sweep(ONE_BACKEND)
    monkeypatch.delenv("FAKE_MATCH_FAILS")
    unchanged, _, _ = sweep(ONE_BACKEND)
    repeated, _, again = sweep(ONE_BACKEND, "--retry=failed")

    assert exit_codes.SOME_TRIALS_FAILED == code == unchanged
    assert re.search(
        r"in_graph x2 is not checked against one replica: the run of single x1 ended as"
        r" failed: the reducer is out of paper",
        err,
    )
    assert exit_codes.OK == repeated, again


def test_no_match_says_so(sweep, store):
    code, _, err = sweep(ONE_BACKEND, "--no-match")

    assert exit_codes.OK == code
    assert "in_graph x2 is not checked against one replica: --no-match was given" in err
    assert not (store.root / "match").exists()


class Gang:
    exit_code = 3
    output = ("a member said this",)
    num_oom_kills = None

    def __init__(self):
        self.calls = []

    def start(self):
        self.calls.append("start")

    def wait(self, _timeout_sec):
        self.calls.append("wait")

    def end(self):
        self.calls.append("end")


def test_comparisons_are_started_where_trials_are(sweep, store, monkeypatch):
    """They were started as processes of this machine, which has not all of them."""
    gangs = {}
    monkeypatch.setattr(
        "harness.launch.catalog.LocalLauncher.gang",
        lambda _launcher, trial_dir, *_: gangs.setdefault(trial_dir, Gang()),
    )
    code, _, err = sweep(ONE_BACKEND)

    assert exit_codes.NOTHING_MEASURED == code, err
    assert [["start", "wait", "end"]] * 4 == [gang.calls for gang in gangs.values()]
    for trial in (*store.matching.trials(), *store.trials()):
        assert "exit code 3" in trial.status.failure.reason
        assert "a member said this" in trial.status.failure.traceback
