"""A relay gives turns, records them, repeats void ones, and survives what fails."""

from __future__ import annotations

import dataclasses
import itertools
import os
from types import SimpleNamespace
from typing import Any

import pytest
import synthetic_trial

from harness.errors import DoesNotFitError
from harness.machine.machine_state import CpuTopology, LogicalCpu
from harness.planning import checked, plan
from harness.planning.request import SweepRequest
from harness.run import rounds
from harness.run.relay import run_generation
from harness.run.resident import Resident
from harness.run.rounds import Generation
from harness.trial import process_tree, rank_file
from results.records.models import (
    Control,
    Measuring,
    Order,
    Plan,
    ScalingMode,
    TrialStatus,
)
from results.store.study_store import Store

pytestmark = pytest.mark.processes
forked = pytest.mark.usefixtures("forked_trials")
ROUNDS = 3


@pytest.fixture
def relay_plan():
    request = SweepRequest(
        workload="resnet50",
        preset="smoke",
        replicas=(1, 2),
        modes=(ScalingMode.WEAK,),
        repeats=2,
        budget="none",
    )
    planned = plan.plan_sweep(request, checked.Machine(num_available_cores=2))
    return Plan(
        study="relay",
        created_at="2026-01-01T00:00:00+00:00",
        command=("python", "-m", "harness"),
        baseline_num_replicas=1,
        repeats=2,
        seed=0,
        timeout_sec=60.0,
        measuring=planned.measuring,
        trials=planned.trials,
    )


@pytest.fixture
def relay_store(tmp_path, relay_plan):
    made = Store.create(tmp_path / "runs" / "relay")
    made.write_plan(relay_plan)
    return made


def first_generation(store, **fields):
    trials = [t for t in store.read_plan().trials if t.spec.repetition_index == 0]
    defaults = {
        "trials": trials,
        "index": 0,
        "duration_sec": None,
        "max_rounds": ROUNDS,
        "seed": 7,
    }
    return Generation(**(defaults | fields))


def those_of_two(store):
    """Returns its trials of two replicas: of two backends, and a twin."""
    trials = first_generation(store).trials
    return [trial for trial in trials if trial.spec.num_replicas == 2]


def run(store, settings, **fields):
    """Runs the first generation; returns what the store says of its trials."""
    generation = first_generation(store, **fields)
    run_generation(store, generation, settings, lambda _text, _left: None)
    return [store.read_trial(trial.trial_id) for trial in generation.trials]


@forked
def test_every_case_takes_one_turn_per_round(relay_store, settings):
    trials = run(relay_store, settings)

    assert 5 == len(trials)
    for trial in trials:
        turns, (rank,) = trial.result.turns, trial.result.ranks
        assert trial.status.status is TrialStatus.OK
        assert list(range(ROUNDS)) == [turn.round_index for turn in turns]
        assert {0} == {turn.attempt for turn in turns}
        assert all(turn.time_sec >= rounds.MIN_TURN_SEC for turn in turns)
        assert sum(turn.num_steps for turn in turns) == len(rank.step_time_sec)
        assert pytest.approx(sum(rank.step_time_sec)) == trial.result.window_sec
        assert set(range(ROUNDS)) == set(trial.result.rates)
        assert not trial.result.quality


@forked
def test_a_generation_whose_code_is_edited_does_not_count(relay_store, settings):
    looks = iter(["uncommitted train.py 'none' / 'ab'"])
    settings = dataclasses.replace(settings, changed_code=lambda: next(looks))
    trials = run(relay_store, settings, max_rounds=1)

    assert {(TrialStatus.FAILED, "ChangedCodeError")} == {
        (of.status.status, of.status.failure.exception_type) for of in trials
    }
    assert {None} == {of.result for of in trials}


@pytest.fixture
def solo_trial(relay_plan):
    first = relay_plan.trials[0].spec
    batch = first.per_replica_batch_size
    spec = first.model_copy(
        update={
            "backend": "single",
            "control": Control.SOLO,
            "num_replicas": 2,
            "global_batch_size": 2 * batch,
        }
    )
    return synthetic_trial.planned(spec)


@forked
def test_the_programs_of_solo_take_each_turn_together(
    relay_store, settings, solo_trial
):
    others = first_generation(relay_store).trials
    trials = run(relay_store, settings, trials=[others[0], solo_trial])
    solo = trials[1]

    assert TrialStatus.OK is solo.status.status
    assert [0, 1] == [rank.rank for rank in solo.result.ranks]
    assert solo.spec.global_batch_size == solo.result.global_batch_size
    assert list(range(ROUNDS)) == [turn.round_index for turn in solo.result.turns]
    num_steps = sum(turn.num_steps for turn in solo.result.turns)
    assert all(num_steps == len(rank.step_time_sec) for rank in solo.result.ranks)
    assert 2 == len(solo.env.placement.cpusets)


def test_a_program_of_solo_that_is_killed_fails_the_control_only(
    relay_store, settings, solo_trial, monkeypatch
):
    """The cases take all their turns; no program of it is left."""
    monkeypatch.setenv("FAKE_BEHAVIOR", "single:2:rank1_sigkill")
    others = first_generation(relay_store).trials
    case, solo = run(relay_store, settings, trials=[others[0], solo_trial])

    assert TrialStatus.OK is case.status.status
    assert TrialStatus.FAILED is solo.status.status
    marker = str(relay_store.trial_dir(solo_trial.trial_id).resolve())
    assert [] == process_tree.find_tree(marker)


@dataclasses.dataclass
class Waiting:
    trial_id: str
    prepared: Any = None
    is_alive: bool = True
    busy_sec: float = 0.0
    step_time_sec: float = 1.0


def test_the_order_of_turns_is_drawn_from_the_seed_in_every_round(
    relay_store, monkeypatch
):
    orders = []

    monkeypatch.setattr(rounds, "_case_of", lambda resident: resident.trial_id)
    monkeypatch.setattr(rounds, "whole_blocks", lambda number, _: number)

    def note(resident, round_index, *_):
        orders[-1].append((round_index, resident.trial_id))

    monkeypatch.setattr(rounds, "_take_turn", note)
    for seed in (7, 7, 8):
        orders.append([])
        generation = first_generation(relay_store, seed=seed)
        waiting = [
            Waiting(trial.trial_id, SimpleNamespace(trial=trial))
            for trial in generation.trials
        ]
        rounds._take_rounds(waiting, generation, None, lambda *_: None, lambda *_: "")
    found = [
        [trial_id for _, trial_id in block]
        for _, block in itertools.groupby(orders[0], key=lambda turn: turn[0])
    ]

    assert ROUNDS == len(found)
    assert orders[0] == orders[1] != orders[2]
    assert 1 < len(set(map(tuple, found)))
    assert 1 == len({tuple(sorted(block)) for block in found})


def test_a_case_has_turns_of_one_number_of_steps(relay_store, monkeypatch):
    """Its twin has it too, and later generations, however long a warm-up step took.

    The first processes take 0.11 s and 0.09 s for a step, those of the next 0.2 s.
    """
    taken = {}

    def note(resident, _, num_steps, *_rest):
        taken.setdefault(resident.trial_id, set()).add(num_steps)

    monkeypatch.setattr(rounds, "_take_turn", note)
    trials = relay_store.read_plan().trials
    known = {}
    for index in (0, 1):
        of = [
            trial
            for trial in trials
            if trial.spec.repetition_index == index
            and (trial.spec.backend, trial.spec.num_replicas) == ("in_graph", 2)
        ]
        assert {Control.NONE, Control.TWIN} == {trial.spec.control for trial in of}
        waiting = [
            Waiting(trial.trial_id, SimpleNamespace(trial=trial), step_time_sec=sec)
            for trial, sec in zip(
                of, (0.11, 0.09) if index == 0 else (0.2, 0.2), strict=True
            )
        ]
        generation = first_generation(
            relay_store, trials=of, index=index, steps_of_turn=known
        )
        rounds._take_rounds(waiting, generation, None, lambda *_: None, lambda *_: "")
        recorded = [
            SimpleNamespace(
                spec=trial.spec,
                result=SimpleNamespace(
                    turns=[SimpleNamespace(is_sustained=False, num_steps=number)]
                ),
            )
            for trial in of
            for number in taken[trial.trial_id]
        ]
        known = rounds.steps_of_turns(recorded)  # a part

    assert 4 == len(taken)
    assert [{4}] * 4 == list(taken.values())


def test_a_process_that_ended_before_its_first_step_sets_no_number_of_steps(
    relay_store, monkeypatch
):
    """It has no step time; 0 s would ask the others for 300,000 steps of 0.1 s."""
    taken = []
    monkeypatch.setattr(
        rounds, "_take_turn", lambda of, _, num_steps, *_rest: taken.append(num_steps)
    )
    generation = first_generation(relay_store)
    prepared = SimpleNamespace(trial=generation.trials[0])
    waiting = [
        Waiting("a", prepared, step_time_sec=0.1),
        Waiting("b", prepared, step_time_sec=0.0, is_alive=False),
    ]
    rounds.take_all(waiting, generation, None, lambda *_: None, lambda *_: "")

    assert [3] * ROUNDS == taken


@forked
def test_a_void_turn_is_kept_and_repeated_up_to_twice(relay_store, settings):
    """The first turn of each round is void, then all of one round are."""
    calls = itertools.count()

    def void_reason(_load, _retraces):
        call = next(calls)
        return "others were busy" if call in (0, 2, 3, 4) else ""

    settings = dataclasses.replace(settings, void_reason=void_reason)
    generation = first_generation(relay_store)
    (trial,) = run(relay_store, settings, trials=generation.trials[:1])
    found = [(t.round_index, t.attempt, t.is_valid) for t in trial.result.turns]

    assert [
        (0, 0, False),
        (0, 1, True),
        (1, 0, False),
        (1, 1, False),
        (1, 2, False),
        (2, 0, True),
    ] == found
    assert {0, 2} == set(trial.result.rates)
    assert trial.status.status is TrialStatus.OK


@forked
def test_a_trial_whose_turns_are_all_void_gives_no_number(relay_store, settings):
    settings = dataclasses.replace(settings, void_reason=lambda *_: "others were busy")
    generation = first_generation(relay_store)
    (trial,) = run(relay_store, settings, trials=generation.trials[:1], max_rounds=1)

    assert trial.status.status is TrialStatus.VOID
    assert trial.status.failure.reason == (
        "all 3 turns are void; the last one: others were busy"
    )
    assert 3 == len(trial.result.turns)


@forked
@pytest.mark.parametrize(
    ("behavior", "status", "phase"),
    [
        ("build_fail", TrialStatus.FAILED, "build"),
        pytest.param("fail", TrialStatus.FAILED, "measure", marks=pytest.mark.full),
        ("sigkill", TrialStatus.FAILED, "measure"),
        pytest.param("exit0", TrialStatus.FAILED, "measure", marks=pytest.mark.full),
        ("insane", TrialStatus.INSANE, "sanity"),
    ],
)
def test_one_failure_does_not_end_the_generation(
    relay_store, settings, monkeypatch, behavior, status, phase
):
    """It is recorded with its phase, and the others finish all rounds."""
    monkeypatch.setenv("FAKE_BEHAVIOR", f"tf_mirrored:2:{behavior}")
    trials = run(relay_store, settings, trials=those_of_two(relay_store))
    bad = [t for t in trials if t.status.status is not TrialStatus.OK]

    assert [("tf_mirrored", 2)] == [(t.spec.backend, t.spec.num_replicas) for t in bad]
    assert (status, phase) == (bad[0].status.status, bad[0].status.failure.phase.value)
    assert 2 == len(trials) - len(bad)
    assert all(ROUNDS == len(t.result.rates) for t in trials if t not in bad)


def test_a_turn_without_an_end_is_a_timeout(relay_store, settings, monkeypatch):
    monkeypatch.setenv("FAKE_BEHAVIOR", "tf_mirrored:2:hang")
    settings = dataclasses.replace(settings, timeout_sec=3.0)
    trials = run(relay_store, settings, trials=those_of_two(relay_store))
    by_name = {(t.spec.backend, t.spec.num_replicas, t.spec.control): t for t in trials}
    hung = by_name["tf_mirrored", 2, Control.NONE]

    assert hung.status.status is TrialStatus.TIMEOUT
    assert "killed after 3 s (timeout): rank 0 was in phase measure" in (
        hung.status.failure.reason
    )
    marker = str(relay_store.trial_dir(hung.trial_id).resolve())
    assert [] == process_tree.find_tree(marker)


def test_processes_that_do_not_fit_into_memory_are_refused_with_numbers(
    relay_store, settings
):
    generation = first_generation(relay_store)
    with pytest.raises(
        DoesNotFitError,
        match=r"5 processes do not fit into memory at once: the first 1 occupy "
        r"\d\.\d GiB, 0\.0 GiB are free, and the next may need \d\.\d GiB",
    ):
        run_generation(relay_store, generation, settings, lambda *_: None, lambda: 1)

    assert all(trial.status is None for trial in relay_store.trials())
    for trial in generation.trials:
        marker = str(relay_store.trial_dir(trial.trial_id).resolve())
        assert [] == process_tree.find_tree(marker)


@forked
def test_little_time_still_gives_the_fewest_rounds(relay_store, settings):
    """Start-up can use up all of it; the rounds that are needed come nevertheless."""
    generation = first_generation(relay_store)
    (trial,) = run(
        relay_store,
        settings,
        trials=generation.trials[:1],
        duration_sec=0.001,
        max_rounds=100,
    )

    assert rounds.MIN_ROUNDS == len(trial.result.rates)


def test_a_plan_of_a_relay_names_twin_and_primary_contrast(relay_plan):
    twins = [t for t in relay_plan.trials if t.spec.control is Control.TWIN]
    measuring = relay_plan.measuring

    assert 2 == len(twins)
    assert {("in_graph", 2)} == {(t.spec.backend, t.spec.num_replicas) for t in twins}
    assert isinstance(measuring, Measuring)
    assert Order.RELAY is measuring.order
    assert measuring.primary is not None
    assert "in_graph / tf_mirrored, weak scaling, x2" == measuring.primary.text


@forked
@pytest.mark.skipif(
    len(os.sched_getaffinity(0)) < 2,
    reason="needs two cores: with one, processes start one at a time",
)
def test_processes_start_side_by_side_and_warm_up_alone(
    relay_store, settings, monkeypatch
):
    """Two start at once on two cores, the next when one is ready.

    The last warm-up steps run one by one. The time to the first step is then no
    figure, and is recorded as 0.
    """
    first, second = (LogicalCpu(cpu=cpu) for cpu in sorted(os.sched_getaffinity(0))[:2])
    two_cores = CpuTopology(cpus=(first, second))
    said = []

    def send(resident, command, **fields):
        said.append(command)
        original(resident, command, **fields)

    original = Resident.send
    monkeypatch.setattr(Resident, "send", send)
    start, poll = Resident.start, Resident.poll

    def note_start(resident):
        said.append("start")
        start(resident)

    def note_built(resident):
        answers = poll(resident)
        if answers is not None and resident.awaited == "built":
            said.append("built")
        return answers

    monkeypatch.setattr(Resident, "start", note_start)
    monkeypatch.setattr(Resident, "poll", note_built)
    trials = run(relay_store, dataclasses.replace(settings, topology=two_cores))

    assert ["warm_up"] * 5 == said[15:20]
    changes = [{"start": 1, "built": -1}.get(event, 0) for event in said[:15]]
    assert 2 == max(itertools.accumulate(changes))
    assert 5 == said[:15].count("start") == said[:15].count("built")
    for trial in trials:
        log = rank_file.read_rank(relay_store.trial_dir(trial.trial_id), 0)
        assert not log.last("first_step_done")["is_alone"]
        assert log.last("first_step_done")["time_to_first_step_sec"] > 0
        assert 0 == trial.result.ranks[0].time_to_first_step_sec
