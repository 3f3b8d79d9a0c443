"""What is said about the time of a relay agrees with itself, before and during it."""

import dataclasses
import io

import pytest

from harness.cli import progress
from harness.planning import estimate
from harness.run import sweep
from harness.run.trial_runner import RunSettings
from results.records import identity
from results.records.measuring import GateDesign, Measuring
from results.records.models import (
    Failure,
    Order,
    Phase,
    StatusRecord,
    TrialStatus,
)

GATE = GateDesign(metric="throughput", baseline="main", delta=0.05, alpha=0.05)
FIXED = Measuring(order=Order.RELAY, minutes=2.0, generation_sec=60.0, max_rounds=23)
LOOKS = FIXED.model_copy(
    update={"minutes": 30.0, "gate": GATE.model_copy(update={"looks": (2, 3, 12)})}
)
TARGET = FIXED.model_copy(update={"minutes": 30.0, "target": 0.03})


@pytest.fixture
def relayed(small_plan):
    """Two generations of four trials, in a relay."""
    trials = []
    for trial in small_plan.trials:
        spec = trial.spec.model_copy(update={"order": Order.RELAY})
        trial_id, case_id = identity.ids(spec)
        update = {"spec": spec, "trial_id": trial_id, "case_id": case_id}
        trials.append(trial.model_copy(update=update))
    return small_plan.model_copy(update={"trials": tuple(trials), "measuring": FIXED})


def test_a_plan_says_the_time_that_its_relay_is_given(relayed):
    """``--minutes 2`` is two minutes, not 30 s for each of eight trials."""
    found = estimate.estimate(relayed.trials, estimate.Durations(), FIXED)

    assert found.text == (
        "about 2 min 00 s (2 generations of 1 min 00 s, or less after 23 rounds)"
    )
    assert (120.0, None) == (found.total_sec, found.most_sec)


def test_earlier_trials_make_a_relay_shorter_and_never_longer(relayed):
    """They took 5 s each, of which a generation has four; or 100 s."""
    texts = []
    for sec in (5.0, 100.0):
        durations = estimate.Durations()
        for trial in relayed.trials:
            durations.add(trial.spec, sec)
        texts.append(estimate.estimate(relayed.trials, durations, FIXED).text)

    assert texts[0].startswith("about 40 s (2 generations of 1 min 00 s at most;")
    assert texts[1].startswith("about 2 min 00 s (2 generations of 1 min 00 s, or")


@pytest.mark.parametrize(
    ("measuring", "expected"),
    [
        (LOOKS, "2 min 00 s to 12 min 00 s (2 to 12 generations of 1 min 00 s, "),
        (TARGET, "2 min 00 s to 30 min 00 s (2 or more generations of 1 min 00 s, "),
    ],
)
def test_a_plan_that_may_go_on_says_until_when(relayed, measuring, expected):
    """A gate and a target have a shortest and a longest time."""
    found = estimate.estimate(relayed.trials, estimate.Durations(), measuring)

    assert found.text.startswith(f"about {expected}")


class Listener(progress.PlainProgress):
    """Keeps what is shown as time left."""

    def __init__(self):
        super().__init__(io.StringIO())
        self.shown = []

    def stage(self, _text, eta_sec, *, is_most=False):
        assert eta_sec is not None
        self.shown.append((eta_sec, is_most))


def _generations(monkeypatch, store, plan, measuring):
    """Runs two generations that take 20 s, although 60 s are allowed."""
    now = [1000.0]
    monkeypatch.setattr(sweep.time, "monotonic", lambda: now[0])

    def generation(*args):
        stage = args[3]
        stage("starting", None)
        now[0] += 5
        stage("round 1", 55.0)
        now[0] += 5
        stage("round 2", 10.0)
        now[0] += 10
        stage("checking and recording", None)
        return []

    monkeypatch.setattr(sweep, "run_generation", generation)
    settings = RunSettings(timeout_sec=60.0, measuring=measuring)
    durations, found = estimate.Durations(), []
    store.write_plan(plan)
    for first in (0, 4):
        listener = Listener()
        sweep._run_generation(
            store,
            plan.trials[first : first + 4],
            plan.trials[first + 4 :],
            settings,
            listener,
            durations,
        )
        found.append(listener.shown)
    return found


def test_the_time_left_goes_on_where_a_generation_ended(relayed, store, monkeypatch):
    """The second takes what the first one took, not what it may take."""
    first, second = _generations(monkeypatch, store, relayed, FIXED)

    assert [(120.0, False), (115.0, False), (30.0, False), (20.0, False)] == first
    assert [(20.0, False), (15.0, False), (10.0, False), (0.0, False)] == second


@pytest.mark.parametrize(
    ("measuring", "expected"),
    [
        # Ten more generations of 20 s after the second one.
        (LOOKS, [(220.0, True), (215.0, True), (210.0, True), (200.0, True)]),
        (TARGET, [(1800.0, True), (1795.0, True), (1790.0, True), (1780.0, True)]),
    ],
)
def test_what_may_go_on_says_how_long_at_most(
    relayed, store, monkeypatch, measuring, expected
):
    """The planned generations are only those until the next look."""
    _, second = _generations(monkeypatch, store, relayed, measuring)

    assert expected == second
    assert "at most 3 min 40 s left" == progress.left_text(220.0, is_most=True)


def _ends(store, plan, status):
    """Records the first generation of a relay, all of which ended alike."""
    failure = Failure(
        phase=Phase.MEASURE, reason="all 3 turns are void; the last one: busy"
    )
    records = [
        StatusRecord(
            trial_id=trial.trial_id,
            status=status,
            started_at="2026-01-01T00:00:00+00:00",
            ended_at="2026-01-01T00:00:09+00:00",
            duration_sec=9.0,
            failure=None if status is TrialStatus.OK else failure,
        )
        for trial in plan.trials[:4]
    ]
    for trial, record in zip(plan.trials, records, strict=False):
        store.write_spec(trial.trial_id, trial.spec)
        store.write_status(record.trial_id, record)
    return records


def test_a_relay_stops_where_no_turn_counts(relayed, store, settings, monkeypatch):
    """One line says why and what to do, and the machine is the reason of the code."""
    store.write_plan(relayed)
    calls = []

    def generation(*_):
        calls.append(1)
        return _ends(store, relayed, TrialStatus.VOID)

    monkeypatch.setattr(sweep, "run_generation", generation)
    stream = io.StringIO()
    shown = progress.PlainProgress(stream)
    settings = dataclasses.replace(settings, measuring=FIXED)
    sweep.run_trials(store, relayed.trials, settings, shown, estimate.Durations())
    last = stream.getvalue().splitlines()[-1]

    assert 1 == len(calls)
    assert last == (
        "stopped: no turn of generation 1 counts (all 3 turns are void; the last one:"
        " busy); end what else runs on these cores ('doctor' names it), then run the"
        " same command with --retry failed"
    )
