"""An interleaved study gives blocks, records them, repeats discarded ones, and survives
what fails.
"""

from __future__ import annotations

import concurrent.futures
import itertools
import json
import os
import re
import shutil
import threading
from pathlib import Path

import driver
import psutil
import pytest
from command_lines import overridden, smoke_sweep
from damaging import strangers, until
from fake_machine import two_cores, with_cpus
from study_files import lines_of, processes_of

from harness import ExitCode
from results import Order, Store, TrialStatus

pytestmark = pytest.mark.processes
forked = pytest.mark.usefixtures("forked_trials")
ROUNDS, SHORTEST_SEC = 3, 0.3
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


FIRST, TWO, LAST = "in_graph:1:none", "tf_mirrored:2:none", "tf_mirrored:1:none"
OF_TWO = ("in_graph:2:none", "in_graph:2:twin")


@pytest.fixture
def told(run, tmp_path, monkeypatch):
    """Returns a function that runs a sweep: its trials, and what each was told."""
    notes = tmp_path / "told"
    monkeypatch.setenv("FAKE_TOLD", str(notes))

    def sweep(*options, step_times=((0.1, 0.1),), count=0, **changes):
        notes.write_text("")
        shutil.rmtree(tmp_path / "runs", ignore_errors=True)
        monkeypatch.setenv("FAKE_STEP_TIMES", json.dumps(step_times))
        monkeypatch.setenv("FAKE_COUNT", str(count))
        trials, _ = run(*options, **changes)
        return trials, [line.split() for line in notes.read_text().splitlines()]

    return sweep


def turns_of(told):
    """Returns the cases of each round, in the order of their blocks."""
    turns = [(words[2], words[0]) for words in told if words[1] == "turn"]
    rounds = itertools.groupby(turns, key=lambda turn: turn[0])
    return [[name for _, name in cases] for _, cases in rounds]


@forked
@two_cores
def test_every_case_takes_one_block_per_round(told, tmp_path):
    cores = with_cpus(sorted(os.sched_getaffinity(0))[:2])
    trials, words = told(count=5, **cores)
    begun = [what for _, what, *_ in words if what in ("starts", "built", "warm_up")]
    changes = [{"starts": 1, "built": -1}.get(what, 0) for what in begun]

    assert 5 == len(trials)
    for trial in trials.values():
        blocks, (rank,) = trial.result.blocks, trial.result.ranks
        assert TrialStatus.OK is trial.status.status
        assert [0, 1, 2] == [block.round_index for block in blocks]
        assert {0} == {block.attempt for block in blocks}
        assert all(block.time_sec >= SHORTEST_SEC for block in blocks)
        assert sum(block.num_steps for block in blocks) == len(rank.step_time_sec)
        assert pytest.approx(sum(rank.step_time_sec)) == trial.result.window_sec
        assert {0, 1, 2} == set(trial.result.rates)
        assert not trial.result.quality
        folder = tmp_path / "runs" / "s" / "trials" / trial.trial_id
        (first,) = lines_of(folder / "rank_0.jsonl", "first_step_done")
        assert not first["is_alone"]
        assert first["time_to_first_step_sec"] > 0
        assert 0 == rank.time_to_first_step_sec
    # As many start at once as there are cores; none has its last step before all have.
    assert ["warm_up"] * 5 == begun[10:]
    assert 2 == max(itertools.accumulate(changes))
    assert [FIRST, TWO, *OF_TWO, LAST] == turns_of(words)[0]


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

    assert {5} == {len(trial.result.rates) for trial in trials.values()}


@pytest.fixture
def full(monkeypatch):
    """Leaves no memory for processes after the first ones."""
    memory = psutil.virtual_memory()._replace(available=1)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)


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


@forked
@two_cores
def test_the_order_of_blocks_is_drawn_from_the_seed_in_every_round(told):
    orders = turns_of(told("--set=seed=7")[1])

    assert ROUNDS == len(orders)
    assert 1 < len(set(map(tuple, orders)))
    assert 1 == len({tuple(sorted(names)) for names in orders})
    assert [*OF_TWO[::-1], FIRST, TWO, LAST] == orders[0]


@forked
def test_a_case_has_blocks_of_one_number_of_steps(told, tmp_path):
    """Blocks of a dead session, whose step time is 0, would have 300,000 steps."""
    told(*ONE, "--repeats=2", step_times=((0.11, 0.09), (0.2, 0.2)))
    twice = [*Store.open(tmp_path / "runs" / "s").trials()]
    dead = {"step_times": ((0.11, 0.09),), "behavior": "twin:1:build_exit3"}
    trials, _ = told(*ONE, **dead)
    alone = [trial for trial in trials.values() if trial.result is not None]

    assert (4, 1) == (len(twice), len(alone))
    for trials, num_steps in ((twice, 4), (alone, 3)):
        blocks = [block for trial in trials for block in trial.result.blocks]
        assert {num_steps} == {block.num_steps for block in blocks}


@forked
def test_a_round_names_its_case_and_the_rate_so_far(told, terminal):
    calls = itertools.count()
    disturbed = {"discard_reason": lambda *_: "busy" if next(calls) == 6 else ""}
    step_times = ((0.01, 0.01),)
    with terminal() as text:
        changes = {"step_times": step_times, **disturbed}
        trials, _ = told(*ONE, "--set=rounds=9", **changes)
    said = dict(re.findall(r"round (\d): (single x1[^\x1b\r\n]*)", text()))
    (size,) = {trial.spec.global_batch_size for trial in trials.values()}

    assert "single x1" == said["1"].strip() == said["5"].strip()
    found = re.fullmatch(
        r"single x1, ([\d.]+) \[([\d.]+), ([\d.]+)\]/s so far", said["9"].strip()
    )
    rate, low, high = map(float, found.groups())
    assert low < rate < high
    assert pytest.approx(100 * size, rel=0.02) == rate


MOST_STRANGERS = 128 + 16
"""Connections that are kept before they say who they are, and other open files."""


def test_strangers_at_the_socket_of_a_trial_end_nothing(run, tmp_path, monkeypatch):
    """Connections cost descriptors of the harness; a genuine process is heard."""
    flooded, over = tmp_path / "flooded", threading.Event()
    monkeypatch.setenv("FLOODED", str(flooded))
    waits = 'until [ -e "$FLOODED" ]; do sleep 0.01; done; exec "$@"'
    worker = ("/bin/sh", "-c", waits, "sh", *driver.FAKE_WORKER)

    def address():
        listed = Path("/proc/net/unix").read_text()
        return re.search(rf"@(replicator-harness-{os.getpid()}-\w+)", listed)

    def flood():
        try:
            with strangers(f"\0{until(address)[1]}") as num_kept:
                until(lambda: num_kept() <= MOST_STRANGERS, "dropped", 20.0)
                flooded.touch()
                over.wait(60)
        finally:
            flooded.touch()

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        flooding = pool.submit(flood)
        trials, _ = run(*ONE, worker_command=worker)
        over.set()
        flooding.result()

    assert {TrialStatus.OK} == {trial.status.status for trial in trials.values()}
