"""A result is derived anew from rank files, which must not contradict themselves.

Intervals of headline figures are what the statistics of pages say, by other code.
"""

from __future__ import annotations

import copy
import json
import math

import numpy as np
import pytest
import study_files

from results import Store, load_study, statistics
from results.verify import check as check_lib
from results.verify import trials
from results.verify.check import Check
from results.verify.trials import RawError

MS = 1_000_000
LOAD = {
    "foreign_cpu_fraction": 0.01,
    "foreign_resolution": 0.02,
    "stolen_cpu_fraction": 0.0,
    "stolen_resolution": 0.02,
    "run_delay_sec": 0.001,
    "num_throttled": 0,
}
GPU = {"index": 1, "num_foreign_processes": 0, "slowed_by": ["power limit"]}
USED = {
    "user_sec": 0.5,
    "system_sec": 0.25,
    "minor_faults": 3,
    "major_faults": 0,
    "involuntary_switches": 1,
    "num_retraces": 0,
}


def step(index, phase, start, duration):
    """The line of a step; times are in milliseconds."""
    times = {"start_ns": start * MS, "end_ns": (start + duration) * MS}
    return {"kind": "step", "phase": phase, "index": index, "loss": 2.0} | times


def block(round_index, start, end):
    """The line of a block of two steps; times are in milliseconds."""
    times = {"start_ns": start * MS, "end_ns": end * MS, "num_steps": 2}
    return {"kind": "turn", "round_index": round_index, "attempt": 0} | times | USED


def load(round_index, **fields):
    """The line of the load within a block."""
    return {"round_index": round_index, "attempt": 0, **LOAD, **fields}


def rank_lines():
    """The lines of a rank: two steps to warm up, two blocks of two steps."""
    return [
        {"kind": "phase", "phase": "first_step", "ns": 0},
        {"kind": "facts", "num_parameters": 5, "example_unit": "images"}
        | {"global_batch_size": 8},
        step(0, "first_step", 0, 50),
        {"kind": "first_step_done", "time_to_first_step_sec": 0.05},
        {"kind": "phase", "phase": "warmup", "ns": 50 * MS},
        step(1, "warmup", 50, 10),
        {"kind": "phase", "phase": "measure", "ns": 60 * MS},
        step(2, "measure", 100, 10),
        step(3, "measure", 110, 10),
        block(0, 100, 120),
        step(4, "measure", 200, 20),
        step(5, "measure", 220, 20),
        block(1, 199, 240),
        {"kind": "memory", "peak_memory_bytes": 7, "method": "x"},
        {"kind": "sanity", "name": "s", "is_passed": True, "detail": ""},
        {"kind": "done", "ns": 300 * MS},
    ]


@pytest.fixture
def read(tmp_path):
    """Returns a function that reads the raw observations of a trial."""

    def read_trial(*ranks, loads=None, without=(), is_independent=False):
        files = {f"rank_{rank}.jsonl": lines for rank, lines in enumerate(ranks)}
        if loads is not None:
            files["blocks.jsonl"] = loads
        for path in tmp_path.iterdir():
            path.unlink()
        for name in files.keys() - set(without):
            text = "".join(json.dumps(line) + "\n" for line in files[name])
            (tmp_path / name).write_text(text)
        return trials.read_trial(
            tmp_path, num_warmup_steps=2, is_independent=is_independent
        )

    return read_trial


def test_blocks_are_joined_over_ranks(read):
    second = rank_lines()
    second[9] = block(0, 99, 120)
    second[10]["end_ns"] = second[11]["start_ns"] = 221 * MS
    second[11]["end_ns"] = 250 * MS
    second[12] = block(1, 200, 250)
    loads = [load(0), load(1, foreign_cpu_fraction=0.06)]
    found = read(rank_lines(), second, loads=loads)
    first, last = found.result["blocks"]
    rates = check_lib.log_rates({"only": found.result})

    assert found.is_complete
    assert (100 * MS, 120 * MS) == (first["start_ns"], first["end_ns"])
    assert (200 * MS, 250 * MS) == (last["start_ns"], last["end_ns"])
    assert (1.0, 0.5, 6) == tuple(
        last[name] for name in ("user_sec", "system_sec", "minor_faults")
    )
    assert [False, True] == [first["is_discarded"], last["is_discarded"]]
    assert 0.07 == found.result["window_sec"]
    assert {"only": {0: pytest.approx(math.log(800.0))}} == rates


@pytest.mark.parametrize(
    ("hosts", "window_sec"), [(("a", "a"), 0.13), (("a", "b"), 0.14)]
)
def test_clocks_of_two_machines_are_not_compared(read, hosts, window_sec):
    """Rank 1 is the faster one, and its machine started a second earlier."""
    ranks = [[line for line in rank_lines() if line["kind"] != "turn"] for _ in hosts]
    (last,) = [line for line in ranks[1] if line.get("index") == 5]
    last["end_ns"] -= 10 * MS
    for line in ranks[1]:
        for name in {"ns", "start_ns", "end_ns"} & line.keys():
            line[name] += 1000 * MS
    for host, lines in zip(hosts, ranks, strict=True):
        lines.insert(0, {"kind": "clock", "host": host})

    assert window_sec == read(*ranks).result["window_sec"]


@pytest.mark.parametrize(("is_independent", "size"), [(True, 16), (False, 8)])
def test_programs_that_never_communicate_have_a_batch_each(read, is_independent, size):
    found = read(rank_lines(), rank_lines(), is_independent=is_independent)

    assert size == found.result["global_batch_size"]


def test_a_failed_check_makes_a_trial_incomplete(read):
    failed_checks = rank_lines()
    failed_checks[-2]["is_passed"] = False

    assert not read(failed_checks).is_complete
    assert not read(rank_lines()[:-1]).is_complete


@pytest.mark.parametrize(
    ("fields", "num_retraces", "is_discarded"),
    [
        ({}, 0, False),
        ({"foreign_cpu_fraction": 0.05}, 0, False),
        ({"foreign_cpu_fraction": 0.0501}, 0, True),
        ({"foreign_cpu_fraction": None, "stolen_cpu_fraction": None}, 0, False),
        ({"num_cores": 16, "one_core_resolution": 0.03}, 0, False),
        (
            {"num_cores": 16, "foreign_cpu_fraction": 0.0104}
            | {"one_core_resolution": 0.03},
            0,
            True,
        ),
        ({"stolen_cpu_fraction": 0.03}, 0, False),
        ({"stolen_cpu_fraction": 0.0301}, 0, True),
        ({"num_throttled": 1}, 0, True),
        ({"num_throttled": None}, 0, False),
        ({"gpus": [GPU]}, 0, False),
        ({"gpus": [GPU, GPU | {"num_foreign_processes": 1}]}, 0, True),
        ({"gpus": [GPU | {"slowed_by": ["power limit", "heat"]}]}, 0, True),
        ({"gpus": [GPU | {"faults": ["GPU 1 could not be read (lost)"]}]}, 0, True),
        ({}, 1, True),
    ],
)
def test_the_discarded_rule(fields, num_retraces, *, is_discarded):
    assert is_discarded == trials.is_discarded(LOAD | fields, num_retraces)


def drop(index):
    return lambda lines: lines.pop(index)


def change(line, **fields):
    return lambda lines: lines[line].update(fields)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (change(5, index=7), "the steps of rank 0 are not numbered from 0 on"),
        (change(8, start_ns=105 * MS), "step 3 of rank 0 overlaps another, or lies"),
        (change(7, phase="train"), "step 2 of rank 0 overlaps another, or lies"),
        (
            change(9, end_ns=121 * MS),
            "the block of round 0 of rank 0 does not have the",
        ),
        (drop(12), "rank 0 has measured steps outside of blocks"),
        (drop(1), "a line is malformed: ValueError: not enough values to unpack"),
        (drop(3), "a line is malformed: IndexError: "),
    ],
)
def test_what_contradicts_itself_is_refused(read, edit, message):
    lines = rank_lines()
    edit(lines)

    with pytest.raises(RawError, match=f"^{message}"):
        read(lines)


def test_files_that_do_not_match_are_refused(read, tmp_path):
    other = [line for line in rank_lines() if line["kind"] != "turn"]
    two = (rank_lines(), rank_lines())
    with pytest.raises(RawError, match=r"^ranks have different blocks"):
        read(rank_lines(), other)
    with pytest.raises(
        RawError, match=r"^blocks\.jsonl and the rank files have differ"
    ):
        read(rank_lines(), loads=[load(0)])
    with pytest.raises(RawError, match=r"^rank files are \['rank_1\.jsonl'\]"):
        read(*two, without=["rank_0.jsonl"])
    with pytest.raises(RawError, match=r"^rank_0\.jsonl line 1 is no JSON object"):
        read([[]])
    # No rank file differs from one that is wrong.
    with pytest.raises(FileNotFoundError, match=r"no rank file in "):
        read()
    (tmp_path / "rank_0.jsonl").write_text("{")
    with pytest.raises(RawError, match=r"^rank_0\.jsonl line 1 is no JSON object"):
        trials.read_trial(tmp_path, num_warmup_steps=2)


def test_points_of_a_quality_run_agree_with_the_steps(read):
    point = {"kind": "point", "num_steps": 6, "num_examples": 48, "quality": []}
    *before, done = rank_lines()
    lines = [*before, point | {"train_time_sec": 0.07}, done]
    found = read(copy.deepcopy(lines)).result["curve"]

    assert [6] == [of["num_steps"] for of in found]
    for name, value in (("num_steps", 5), ("train_time_sec", 0.071)):
        wrong = copy.deepcopy(lines)
        wrong[-2][name] = value
        with pytest.raises(RawError, match=r"^the point after \d+ steps does not have"):
            read(wrong)


def same(stated, figure):
    """Whether two figures are equal, to twelve digits."""
    factor = 1.1 if "widened" in stated.method else 1.0
    halves = [] if figure.half is None else [-figure.half, figure.half]
    derived = [math.exp(figure.centre + factor * half) for half in (0.0, *halves)]
    numbers = [of for of in (stated.value, stated.low, stated.high) if of is not None]
    return (derived, figure.n) == (pytest.approx(numbers, rel=1e-12), stated.n)


def drawn(numbers, spread=0.0):
    """Logs of repetitions of so many rounds each."""
    generator = np.random.default_rng(9)
    return [
        list(generator.normal(generator.normal(0, spread), 0.1, number))
        for number in numbers
    ]


@pytest.mark.parametrize(
    ("stated", "logs"),
    [
        # Geometric mean and Student's interval of repetitions.
        *(
            (
                lambda of: statistics.geometric_mean(np.exp(np.ravel(of)), unit=""),
                [1] * n,
            )
            for n in (1, 2, 10)
        ),
        # Batches of consecutive rounds.
        *(
            (lambda of: statistics.these_processes_only(of[0]), [n])
            for n in (1, 4, 5, 20, 23, 1000)
        ),
        # Repetitions of unlike numbers of rounds.
        (statistics.over_rounds, [1, 5, 9, 20]),
        # Widened from six on.
        *(
            (lambda of: statistics.over_rounds(of, is_stopped_on_width=True), [1] * n)
            for n in (5, 6)
        ),
    ],
)
@pytest.mark.parametrize("spread", [0.0, 0.2])
def test_intervals_are_what_other_code_says(stated, logs, spread):
    made = drawn(logs, spread)

    assert same(stated(made), check_lib.over_rounds(made))


@pytest.fixture(scope="module")
def published():
    """Returns a published study of two backends in both modes, and its raw trials."""
    store = Store.open(study_files.published("resnet50-two-cores"))
    study = load_study(store)
    return study, trials.compare(store, study.entries, Check())


def compared(study, raws):
    """Compares headline figures, without equivalence checks."""
    check = Check()
    check_lib.compare_headlines(study, raws, {}, check)
    return check


def of_two_replicas(study):
    """Returns a trial of the first case of two replicas."""
    case = next(case for case in study.cases if case.spec.num_replicas == 2)
    return case.ok_entries[0].trial_id


def test_a_longer_block_differs_in_each_figure_of_its_case(published):
    study, raws = published
    assert not compared(study, raws).differences
    trial_id = of_two_replicas(study)
    raw = raws[trial_id]._replace(result=copy.deepcopy(raws[trial_id].result))
    block = next(block for block in raw.result["blocks"] if not block["is_discarded"])
    block["end_ns"] += 1000
    check = compared(study, {**raws, trial_id: raw})
    kinds = {item.kind for item in check.differences}

    ratios = {check_lib.RATIO, check_lib.CONTROL}
    assert {*check_lib.OF_CASES} | ratios == kinds
    assert len(check.differences) < check.num_recomputed(*check_lib.KINDS) / 2


def test_a_trial_without_raw_observations_is_not_taken_for_verified(published):
    study, raws = published
    trial_id = of_two_replicas(study)
    check = compared(study, {k: raw for k, raw in raws.items() if k != trial_id})
    named = f"trial {trial_id} has no raw observations"

    assert not check.differences
    assert sum(named in reason for reason in check.missing) >= 3
