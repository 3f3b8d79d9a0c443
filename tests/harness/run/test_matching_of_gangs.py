"""Trials that match run where measured ones do: an engine starts their members."""

import dataclasses

from harness.launch.local import LocalLauncher
from harness.run import match_runs
from results.records import identity
from results.records.models import PlannedTrial, ScalingMode


class Gang:
    """A gang whose members end at once, with an exit code."""

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
        trial_id, case_id = identity.ids(spec)
        trials.append(
            PlannedTrial(
                trial_id=trial_id, case_id=case_id, modes=(ScalingMode.WEAK,), spec=spec
            )
        )
    launcher = Launcher()
    match_runs._run_together(
        store.matching, trials, dataclasses.replace(settings, launcher=launcher)
    )

    assert [["start", "wait", "end"]] * 2 == [g.calls for g in launcher.gangs.values()]
    for trial in trials:
        failure = store.matching.read_trial(trial.trial_id).status.failure
        assert "exit code 3" in failure.reason
        assert "a member said this" in failure.traceback
