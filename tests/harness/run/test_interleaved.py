"""An interleaved study gives blocks, records them, repeats discarded ones, and survives
what fails.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import os
import re
from types import SimpleNamespace
from typing import Any

import pytest
from command_lines import overridden, smoke_sweep
from fake_machine import two_cores, with_cpus
from study_files import lines_of, processes_of

from harness import ExitCode
from harness.run import rounds
from harness.run.trial_tree import Session
from results import Control, Order, Store, TrialStatus

pytestmark = pytest.mark.processes
forked = pytest.mark.usefixtures("forked_trials")
ROUNDS = 3
ENDS = ExitCode.OK, ExitCode.SOME_TRIALS_FAILED, ExitCode.NOTHING_MEASURED
SWEEP = smoke_sweep(
    "--backends=in_graph,tf_mirrored --replicas=1,2 --mode=weak --repeats=1 "
    "--set=rounds=3 --order=interleaved --budget=none --no-match --study=s"
)


@pytest.fixture
def run(harness, overrides, tmp_path, monkeypatch):
    def run_sweep(*options, behavior="", **changes):
        monkeypatch.setenv("FAKE_BEHAVIOR", behavior)
        words = overridden(SWEEP, *options)
        code, _, err = harness(*words, overrides=overrides | changes)
        assert code in ENDS, err
        store = Store.open(tmp_path / "runs" / "s")
        # No process of a trial is left, however it ended.
        assert [] == processes_of(store.root)
        found = {
            (of.spec.backend, of.spec.num_replicas, of.spec.control.value): of
            for of in store.trials()
            if of.spec.repetition_index == 0
        }
        return found, err

    return run_sweep


@forked
@two_cores
def test_every_case_takes_one_block_per_round(run, tmp_path, monkeypatch):
    cores = sorted(os.sched_getaffinity(0))[:2]
    events = []

    def note(name, said):
        method = getattr(Session, name)

        def noted(session, *args, **fields):
            found = method(session, *args, **fields)
            events.extend(said(session, found, *args))
            return found

        monkeypatch.setattr(Session, name, noted)

    note("send", lambda _session, _found, command: [command])
    note("start", lambda *_: ["start"])
    note("poll", lambda of, found: ["built"] * bool(found and of.awaited == "built"))
    trials, _ = run(**with_cpus(cores))

    assert 5 == len(trials)
    for trial in trials.values():
        blocks, (rank,) = trial.result.blocks, trial.result.ranks
        assert TrialStatus.OK is trial.status.status
        assert [0, 1, 2] == [block.round_index for block in blocks]
        assert {0} == {block.attempt for block in blocks}
        assert all(block.time_sec >= rounds.MIN_BLOCK_SEC for block in blocks)
        assert sum(block.num_steps for block in blocks) == len(rank.step_time_sec)
        assert pytest.approx(sum(rank.step_time_sec)) == trial.result.window_sec
        assert {0, 1, 2} == set(trial.result.rates)
        assert not trial.result.quality
        folder = tmp_path / "runs" / "s" / "trials" / trial.trial_id
        (first,) = lines_of(folder / "rank_0.jsonl", "first_step_done")
        assert not first["is_alone"]
        assert first["time_to_first_step_sec"] > 0
        assert 0 == rank.time_to_first_step_sec
    assert ["warm_up"] * 5 == events[15:20]
    assert 5 == events[:15].count("start") == events[:15].count("built")
    changes = [{"start": 1, "built": -1}.get(event, 0) for event in events[:15]]
    assert 2 == max(itertools.accumulate(changes))


INDEPENDENT = ("single", 2, "solo")


@forked
@two_cores
def test_independent_programs_take_each_block_together(run):
    trials, _ = run("--backends=in_graph", "--controls=independent")
    independent = trials[INDEPENDENT]

    assert {TrialStatus.OK} == {trial.status.status for trial in trials.values()}
    assert [0, 1] == [rank.rank for rank in independent.result.ranks]
    assert (
        independent.spec.global_batch_size == independent.result.global_batch_size == 8
    )
    assert [0, 1, 2] == [block.round_index for block in independent.result.blocks]
    num_steps = sum(block.num_steps for block in independent.result.blocks)
    assert all(
        num_steps == len(rank.step_time_sec) for rank in independent.result.ranks
    )
    assert 2 == len(independent.env.placement.cpusets)


@two_cores
def test_an_independent_program_that_is_killed_fails_the_control_only(run):
    killed = "single:2:rank1_sigkill"
    trials, _ = run("--backends=in_graph", "--controls=independent", behavior=killed)
    failed = [key for key, of in trials.items() if of.status.status != TrialStatus.OK]

    assert [INDEPENDENT] == failed
    assert TrialStatus.FAILED is trials[INDEPENDENT].status.status


@forked
def test_failures_do_not_end_the_repetition(run):
    ended = {
        "in_graph:2:build_fail": (TrialStatus.FAILED, "build"),
        "tf_mirrored:1:failed_checks": (TrialStatus.FAILED_CHECKS, "sanity"),
        "tf_mirrored:2:sigkill": (TrialStatus.FAILED, "measure"),
        "single:1:exit0": (TrialStatus.FAILED, "measure"),
    }
    trials, _ = run("--backends=in_graph,tf_mirrored,single", behavior=",".join(ended))
    by_case = {how.rpartition(":")[0]: end for how, end in ended.items()}

    for (backend, num_replicas, _), trial in trials.items():
        end, status = by_case.get(f"{backend}:{num_replicas}"), trial.status
        if end is None:
            assert (backend, num_replicas) == ("in_graph", 1)
            assert TrialStatus.OK is status.status
            assert ROUNDS == len(trial.result.rates)
        else:
            assert end == (status.status, status.failure.phase.value)
    assert {f"{backend}:{number}" for backend, number, _ in trials} > {*by_case}


@forked
def test_a_block_without_an_end_is_a_timeout(run):
    options = ("--replicas=2", "--timeout=4s")
    trials, _ = run(*options, behavior="tf_mirrored:2:hang")
    hung = trials.pop(("tf_mirrored", 2, "none"))

    assert TrialStatus.TIMEOUT is hung.status.status
    assert hung.status.failure.reason.startswith(
        "killed after 4 s (timeout): rank 0 was in phase measure"
    )
    assert {TrialStatus.OK} == {trial.status.status for trial in trials.values()}


ONE = ("--backends=single", "--replicas=1")


@forked
def test_a_discarded_block_is_kept_and_repeated_up_to_twice(run):
    calls = itertools.count()

    def discard_reason(_load, _retraces):
        return "others were busy" if next(calls) in (0, 3, 4, 5) else ""

    trials, _ = run(*ONE, discard_reason=discard_reason)
    found = sorted(
        (block.round_index, block.attempt, block.is_valid)
        for trial in trials.values()
        for block in trial.result.blocks
    )

    assert [
        *[(0, 0, False), (0, 0, True), (0, 1, True)],
        *[(1, 0, False), (1, 0, True), (1, 1, False), (1, 2, False)],
        *[(2, 0, True), (2, 0, True)],
    ] == found
    rates = sorted(sorted(trial.result.rates) for trial in trials.values())
    assert [[0, 1, 2], [0, 2]] == rates
    assert {TrialStatus.OK} == {trial.status.status for trial in trials.values()}


@forked
def test_a_trial_whose_blocks_are_all_discarded_gives_no_number(run):
    changes = {"discard_reason": lambda *_: "others were busy"}
    trials, _ = run(*ONE, "--set=rounds=1", **changes)

    assert 2 == len(trials)
    for trial in trials.values():
        assert TrialStatus.DISCARDED is trial.status.status
        assert trial.status.failure.reason == (
            "all 3 blocks are discarded; the last one: others were busy"
        )
        assert 3 == len(trial.result.blocks)


@forked
def test_little_time_still_gives_the_fewest_rounds(run):
    trials, _ = run(*ONE, "--time-budget=0.01s", "--set=rounds=100")

    assert {rounds.MIN_ROUNDS} == {len(trial.result.rates) for trial in trials.values()}


@pytest.fixture
def full(monkeypatch):
    """Leaves no memory for processes after the first ones."""
    monkeypatch.setattr(rounds.machine_state, "read_free_memory", lambda: 1)


def with_order(*options):
    return [word for word in overridden(SWEEP, *options) if word != "--set=rounds=3"]


@forked
@pytest.mark.usefixtures("full")
def test_processes_that_do_not_fit_into_memory_run_in_sequence(
    harness, overrides, tmp_path
):
    words = [word for word in with_order() if word != "--order=interleaved"]
    code, _, err = harness(*words, overrides=overrides)

    assert ExitCode.OK == code
    assert re.search(
        r"5 processes do not fit into memory at once: the first \d occupy \d\.\d GiB"
        r", 0\.0 GiB are free, and the next may need \d\.\d GiB: the trials run in seq",
        err,
    )
    store = Store.open(tmp_path / "runs" / "s")
    assert Order.SEQUENTIAL is store.read_plan().measuring.order
    assert {TrialStatus.OK} == {trial.status.status for trial in store.trials()}


@forked
@pytest.mark.usefixtures("full")
@pytest.mark.parametrize(
    ("option", "fewer"),
    [
        pytest.param(*("--controls=all", "fewer --controls, --mode,"), marks=two_cores),
        ("--time-budget=3min", "fewer --mode,"),
    ],
)
def test_what_needs_an_interleaved_study_is_an_error(
    harness, overrides, tmp_path, option, fewer
):
    words = [word for word in with_order() if word != "--order=interleaved"]
    code, _, err = harness(*words, option, overrides=overrides)

    assert ExitCode.USAGE == code
    assert re.search(
        r"error: \d+ processes do not fit into memory at once: .*; free some memory, or"
        rf" use --order sequential, or {fewer} --backends or --replicas\n",
        err,
    )
    assert "in sequence" not in err
    for folder in (tmp_path / "runs" / "s" / "trials").iterdir():
        assert not (folder / "status.json").exists()
    assert [] == processes_of(tmp_path)


@dataclasses.dataclass
class Waiting:
    """A process between two blocks."""

    trial_id: str
    prepared: Any = None
    is_alive: bool = True
    busy_sec: float = 0.0
    step_time_sec: float = 1.0
    blocks: tuple[Any, ...] = ()

    @property
    def spec(self):
        return self.prepared.trial.spec


@pytest.fixture
def interleave(monkeypatch, make_spec):
    blocks = []
    monkeypatch.setattr(
        rounds.Repetition,
        "_measure_block",
        lambda _, session, asked: blocks.append(
            (asked["round_index"], session.trial_id, asked["num_steps"])
        ),
    )

    def trial(name, num_replicas=1, **fields):
        spec = make_spec(order=Order.INTERLEAVED, num_replicas=num_replicas, **fields)
        return SimpleNamespace(trial=SimpleNamespace(spec=spec, trial_id=name))

    def run(*waiting, seed=7, index=0, known=None):
        blocks.clear()
        sessions = [
            Waiting(name, trial(name, **fields), **times)
            for name, fields, times in waiting
        ]
        rounds.Repetition(
            trials=[session.prepared.trial for session in sessions],
            index=index,
            duration_sec=None,
            max_rounds=ROUNDS,
            seed=seed,
            stage=lambda *_: None,
            steps_of_block=known or {},
            sessions=sessions,
        ).take_all(math.inf)
        return list(blocks)

    return run


def test_the_order_of_blocks_is_drawn_from_the_seed_in_every_round(interleave):
    cases = [(f"x{n}", {"num_replicas": n}, {}) for n in range(1, 6)]
    first, again, other = (interleave(*cases, seed=seed) for seed in (7, 7, 8))
    in_rounds = [
        tuple(name for _, name, _ in block)
        for _, block in itertools.groupby(first, key=lambda block: block[0])
    ]

    assert ROUNDS == len(in_rounds)
    assert first == again != other
    assert 1 < len(set(in_rounds))
    assert 1 == len({tuple(sorted(block)) for block in in_rounds})


def test_a_case_has_blocks_of_one_number_of_steps(interleave, make_spec):
    """Blocks of a dead session, whose step time is 0, would have 300,000 steps."""

    def both(*seconds):
        return [
            ("case", {}, {"step_time_sec": seconds[0]}),
            ("twin", {"control": Control.AA}, {"step_time_sec": seconds[1]}),
            ("dead", {}, {"step_time_sec": 0.0, "is_alive": False}),
        ]

    first = interleave(*both(0.11, 0.09))
    block = SimpleNamespace(is_sustained=False, num_steps=first[0][2])
    result = SimpleNamespace(blocks=[block])
    recorded = SimpleNamespace(
        spec=make_spec(order=Order.INTERLEAVED, num_replicas=1), result=result
    )
    known = rounds.steps_of_blocks([recorded])  # a part
    second = interleave(*both(0.2, 0.2), index=1, known=known)

    for blocks in (first, second):
        assert {("case", 4), ("twin", 4)} == {
            (name, steps) for _, name, steps in blocks
        }
