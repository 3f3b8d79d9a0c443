"""A sweep matches N replicas with one before it measures, and says what it found."""

import dataclasses
import json
import re

import pytest
import synthetic_trial
from command_words import overridden

from harness.cli import exit_codes
from harness.launch.local import LocalLauncher
from harness.run import sweep as sweep_lib
from results.records.models import TrialStatus
from results.store.study_store import Store

pytestmark = pytest.mark.processes

ONE_BACKEND = "--backends=in_graph"


@pytest.fixture
def sweep(harness, small, overrides):
    return lambda *args: harness(
        *("sweep", *overridden(small, "--repeats=1", "--study=s", *args)),
        overrides=overrides,
    )


@pytest.mark.usefixtures("forked_trials")
def test_a_sweep_matches_before_it_measures(sweep, tmp_path):
    code, _, err = sweep()
    store = Store.open(tmp_path / "runs" / "s")
    matched = {trial.spec.num_replicas: trial for trial in store.matching.trials()}
    of_trials = [trial.status.started_at for trial in store.trials() if trial.status]

    assert exit_codes.OK == code, err
    assert 3 == len(list(store.matching.trials()))
    assert 4 == len(of_trials)
    assert re.search(
        r"matching replicas with one, untimed: single x1, .*in_graph x2", err
    )
    for trial in matched.values():
        assert trial.status is not None
        assert TrialStatus.OK is trial.status.status
        assert trial.status.ended_at <= min(of_trials)


@pytest.mark.usefixtures("forked_trials")
def test_replicas_that_do_not_match_are_not_sane(sweep, harness, monkeypatch):
    monkeypatch.setenv("FAKE_UNMATCHED", "in_graph:2")
    code, out, err = sweep("--json")
    verified, _, _ = harness("verify", "s")
    _, status, _ = harness("status", "s")
    missing = {
        (point["backend"], point["num_replicas"])
        for point in json.loads(out)["points"]
        if point["throughput"] is None
    }

    assert exit_codes.SOME_TRIALS_FAILED == code
    assert {("in_graph", 2)} == missing
    assert re.search(
        r"in_graph x2 does not match one replica: what 2 steps change in network"
        r" differs by \d+% .*; none of its numbers is used",
        err,
    )
    assert "1 of 4 trials are not ok" in err
    assert "\nin_graph x2 does not match one replica: " in status
    assert exit_codes.OK == verified


@pytest.mark.usefixtures("forked_trials")
def test_verify_sees_a_match_that_was_changed(sweep, harness, tmp_path):
    """A sketch or a loss in the raw observations that the record does not have."""
    sweep(ONE_BACKEND)
    store = Store.open(tmp_path / "runs" / "s")
    (path,) = [
        store.matching.trial_dir(trial.trial_id) / "rank_0.jsonl"
        for trial in store.matching.trials()
        if trial.spec.backend == "in_graph"
    ]
    text = path.read_text()
    path.write_text(text.replace("[1.0, 2.0]", "[5.0, 2.0]"))
    code, out, _ = harness("verify", "s")

    assert exit_codes.SOME_TRIALS_FAILED == code
    assert re.search(r"sketch\[0\]: stated 1.0, recomputed 5.0", out)

    path.write_text(re.sub(r'"loss": \d', '"loss": 9', text))
    code, out, _ = harness("verify", "s", "--json")
    assert exit_codes.SOME_TRIALS_FAILED == code
    differences = json.loads(out)["differences"]
    where = "losses of equivalence checks of in_graph x2"
    assert where in {item["where"] for item in differences}


@pytest.mark.usefixtures("forked_trials")
def test_a_match_that_gives_no_answer_is_a_failure(sweep, monkeypatch):
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


@pytest.mark.usefixtures("forked_trials")
def test_what_an_interrupt_left_is_matched_when_the_study_is_resumed(
    sweep, harness, tmp_path, overrides
):
    sweep(ONE_BACKEND)
    store = Store.open(tmp_path / "runs" / "s")
    status = {
        trial.spec.backend: store.matching.trial_dir(trial.trial_id) / "status.json"
        for trial in store.matching.trials()
    }
    kept = status["in_graph"].stat().st_mtime_ns
    status["single"].unlink()
    code, _, err = harness("sweep", "--study", "s", overrides=overrides)

    assert exit_codes.OK == code, err
    assert status["single"].exists()
    assert kept == status["in_graph"].stat().st_mtime_ns


@pytest.mark.usefixtures("forked_trials")
def test_no_match_says_so(sweep, tmp_path):
    code, _, err = sweep(ONE_BACKEND, "--no-match")

    assert exit_codes.OK == code
    assert re.search(
        r"in_graph x2 is not checked against one replica: --no-match was given", err
    )
    assert not (tmp_path / "runs" / "s" / "match").exists()


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


class Launcher(LocalLauncher):
    """Has such a gang for every trial."""

    def __init__(self):
        self.gangs = {}

    def gang(self, trial_dir, *_):
        return self.gangs.setdefault(trial_dir, Gang())


def test_matches_are_gangs_where_trials_are(store, make_spec, settings):
    """They were started as processes of this machine, which has not all of them."""
    trials = []
    for seed in (1, 2):
        spec = make_spec(backend="in_graph", seed=seed)
        trials.append(synthetic_trial.planned(spec))
    launcher = Launcher()
    sweep_lib._run_together(
        store.matching, trials, dataclasses.replace(settings, launcher=launcher)
    )

    assert [["start", "wait", "end"]] * 2 == [g.calls for g in launcher.gangs.values()]
    for trial in trials:
        failure = store.matching.read_trial(trial.trial_id).status.failure
        assert "exit code 3" in failure.reason
        assert "a member said this" in failure.traceback
