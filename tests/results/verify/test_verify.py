"""A result is derived anew from rank files, which must not contradict themselves.

Intervals of headline figures are what the statistics of pages say, by other code.
"""

from __future__ import annotations

import ast
import copy
import json
import math
import re
import shutil

import numpy as np
import pytest
import study_files
from study_files import edit_record

from results import (
    Control,
    Measuring,
    Store,
    load_study,
    points_frame,
    verify_study,
)

MS = 1_000_000
RECORDED = {
    "foreign_cpu_fraction": 0.01,
    "stolen_cpu_fraction": 0.0,
    "run_delay_sec": 0.001,
    "num_throttled": 0,
}
LOAD = RECORDED | {"foreign_resolution": 0.02, "stolen_resolution": 0.02}
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
    """The lines of a rank: three steps to warm up, two blocks of two steps."""
    return [
        {"kind": "phase", "phase": "first_step", "ns": 0},
        {"kind": "facts", "num_parameters": 5, "example_unit": "images"}
        | {"global_batch_size": 8},
        step(0, "first_step", 0, 50),
        {"kind": "first_step_done", "time_to_first_step_sec": 0.05},
        {"kind": "phase", "phase": "warmup", "ns": 50 * MS},
        step(1, "warmup", 50, 5),
        step(2, "warmup", 55, 5),
        {"kind": "phase", "phase": "measure", "ns": 60 * MS},
        step(3, "measure", 100, 10),
        step(4, "measure", 110, 10),
        block(0, 100, 120),
        step(5, "measure", 200, 20),
        step(6, "measure", 220, 20),
        block(1, 199, 240),
        {"kind": "memory", "peak_memory_bytes": 7, "method": "x"},
        {"kind": "sanity", "name": "s", "is_passed": True, "detail": ""},
        {"kind": "done", "ns": 300 * MS},
    ]


def without_blocks(lines):
    return [line for line in lines if line["kind"] != "turn"]


def recorded(lines):
    """Returns what is recorded of a process that wrote these lines."""
    steps = [line for line in lines if line["kind"] == "step"]
    blocks = [line | RECORDED for line in lines if line["kind"] == "turn"]
    seconds = [(step["end_ns"] - step["start_ns"]) / 1e9 for step in steps]
    times = {"start_ns": steps[3]["start_ns"], "end_ns": steps[-1]["end_ns"]}
    spans = blocks or [times]
    window_ns = sum(span["end_ns"] - span["start_ns"] for span in spans)
    for line in blocks:
        del line["kind"]
    rank = {
        "rank": 0,
        "time_to_first_step_sec": 0.05,
        "warmup_step_time_sec": seconds[:3],
        "step_time_sec": seconds[3:],
        **{f"window_{name}": ns for name, ns in times.items()},
        "losses": [2.0] * len(steps),
        "peak_memory_bytes": 7,
    }
    return {
        "num_parameters": 5,
        "collectives": "",
        "num_measured_steps": len(steps) - 3,
        "window_sec": window_ns / 1e9,
        "blocks": blocks,
        "ranks": [rank],
        "sanity": [{"name": "s", "is_passed": True, "detail": ""}],
    }


@pytest.fixture
def write_study(tmp_path, synthetic):
    """Returns a function that writes trials: what is recorded, and their raw lines."""

    def write(trials, *, target=None, control=Control.NONE, **fields):
        controls = () if control is Control.NONE else (control,)
        shape = {"controls": controls, "num_measured_steps": 4}
        shape |= {"backends": ("single",), "modes": (synthetic.WEAK,), "replicas": (1,)}
        shape |= {"repeats": len(trials), "is_evaluated": False} | fields
        root = tmp_path / "s"
        shutil.rmtree(root, ignore_errors=True)
        store = synthetic.make_store(root, synthetic.Shape(**shape))
        of_case = [of for of in store.trials() if of.spec.control is control]
        order = of_case[0].spec.order
        measuring = Measuring(target=target, order=order).model_dump(mode="json")
        edit_record(root / "plan.json", measuring=measuring)
        for trial, (lines, files) in zip(of_case, trials, strict=True):
            folder = store.trial_dir(trial.trial_id)
            edit_record(folder / "result.json", **recorded(lines))
            for name, raw in files.items():
                texts = (of if of == "{" else json.dumps(of) for of in raw)
                (folder / name).write_text("\n".join(texts))
        return store

    return write


@pytest.fixture
def verified(write_study):
    """Returns a function that verifies a trial against raw lines of its processes."""

    def verify(*ranks, loads=None, without=(), has_blocks=True, **fields):
        files = {f"rank_{rank}.jsonl": lines for rank, lines in enumerate(ranks)}
        if loads is not None:
            files["blocks.jsonl"] = loads
        files = {name: files[name] for name in files.keys() - set(without)}
        lines, shape = rank_lines(), {"num_rounds": 2}
        if not has_blocks:
            lines, shape = without_blocks(lines), {"num_measured_steps": 4}
        return verify_study(write_study([(lines, files)], **shape | fields))

    return verify


def found(check):
    """Returns what was recomputed otherwise than it is recorded, by file and name."""
    return {of.where.rpartition("/")[2]: of.recomputed for of in check.differences}


def test_blocks_are_joined_over_ranks(verified):
    second = rank_lines()
    second[10] = block(0, 99, 120)
    second[11]["end_ns"] = second[12]["start_ns"] = 221 * MS
    second[12]["end_ns"] = 250 * MS
    second[13] = block(1, 200, 250)
    loads = [load(0), load(1, foreign_cpu_fraction=0.06)]
    check = verified(rank_lines(), second, loads=loads)
    (rate,) = (of.recomputed for of in check.differences if of.kind == "throughput")
    result = {
        name.removeprefix("result.json "): value
        for name, value in found(check).items()
        if name.startswith(("result.json blocks", "result.json window"))
    }
    sums = {"user_sec": "1.0", "system_sec": "0.5", "minor_faults": "6"}
    sums |= {"involuntary_switches": "2"}

    # The block of round 0 is from 100 to 120, as it is recorded of the first process.
    assert result == {
        **{f"blocks[0].{name}": value for name, value in sums.items()},
        **{f"blocks[1].{name}": value for name, value in sums.items()},
        "blocks[1].start_ns": "200000000",
        "blocks[1].end_ns": "250000000",
        "blocks[1].foreign_cpu_fraction": "0.06",
        "blocks[1].is_discarded": "True",
        "window_sec": "0.07",
    }
    assert (pytest.approx(800.0), 1) == ast.literal_eval(rate)


@pytest.mark.parametrize(
    ("hosts", "window_sec"), [(("a", "a"), "0.13"), (("a", "b"), None)]
)
def test_clocks_of_two_machines_are_not_compared(verified, hosts, window_sec):
    """Rank 1 is the faster one, and its machine started a second earlier."""
    ranks = [without_blocks(rank_lines()) for _ in hosts]
    (last,) = [line for line in ranks[1] if line.get("index") == 6]
    last["end_ns"] -= 10 * MS
    for line in ranks[1]:
        for name in {"ns", "start_ns", "end_ns"} & line.keys():
            line[name] += 1000 * MS
    for host, lines in zip(hosts, ranks, strict=True):
        lines.insert(0, {"kind": "clock", "host": host})

    # The record has 0.14, of the first process.
    check = verified(*ranks, has_blocks=False)
    assert window_sec == found(check).get("result.json window_sec")


@pytest.mark.parametrize(("workers", "size"), [("solo", "16"), ("none", None)])
def test_programs_that_never_communicate_have_a_batch_each(verified, workers, size):
    check = verified(rank_lines(), rank_lines(), control=Control(workers))

    assert size == found(check).get("result.json global_batch_size")


def test_a_failed_check_makes_a_trial_incomplete(verified):
    failed_checks = rank_lines()
    failed_checks[-2]["is_passed"] = False

    assert not verified(rank_lines(), loads=[load(0), load(1)]).differences
    for lines in (failed_checks, rank_lines()[:-1]):
        assert "False" == found(verified(lines))["status.json status"]


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
def test_the_discarded_rule(verified, fields, num_retraces, *, is_discarded):
    lines = rank_lines()
    lines[10]["num_retraces"] = num_retraces
    check = verified(lines, loads=[load(0, **fields), load(1, **fields)])

    assert is_discarded == ("result.json blocks[0].is_discarded" in found(check))


def drop(index):
    return lambda lines: lines.pop(index)


def change(line, **fields):
    return lambda lines: lines[line].update(fields)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (change(5, index=7), "the steps of rank 0 are not numbered from 0 on"),
        (change(9, start_ns=105 * MS), "step 4 of rank 0 overlaps another, or lies"),
        (change(8, phase="train"), "step 3 of rank 0 overlaps another, or lies"),
        (
            change(10, end_ns=121 * MS),
            "the block of round 0 of rank 0 does not have the",
        ),
        (drop(13), "rank 0 has measured steps outside of blocks"),
        (drop(1), "a line is malformed: ValueError: not enough values to unpack"),
        (drop(3), "a line is malformed: IndexError: "),
    ],
)
def test_what_contradicts_itself_is_refused(verified, edit, message):
    lines = rank_lines()
    edit(lines)

    assert_refused(verified(lines), message)


def assert_refused(check, message):
    (difference,) = (of for of in check.differences if of.kind == "trials")
    assert "its raw observations" == difference.stated
    assert re.match(message, difference.recomputed), difference.recomputed


def test_files_that_do_not_match_are_refused(verified):
    one, other = rank_lines(), without_blocks(rank_lines())
    no_object = r"rank_0\.jsonl line 1 is no JSON object"
    for check, message in (
        (verified(one, other), "ranks have different blocks"),
        (verified(one, loads=[load(0)]), r"blocks\.jsonl and the rank files have di"),
        (verified(one, one, without=["rank_0.jsonl"]), r"rank files are \['rank_1\."),
        (verified([[]]), no_object),
        (verified("{"), no_object),
    ):
        assert_refused(check, message)
    # No rank file differs from one that is wrong.
    check = verified()
    assert "trials" not in {of.kind for of in check.differences}
    assert any(reason.endswith(": no rank_0.jsonl") for reason in check.missing)


def test_points_of_a_quality_run_agree_with_the_steps(verified):
    point = {"kind": "point", "num_steps": 7, "num_examples": 56, "quality": []}
    *before, done = rank_lines()
    lines = [*before, point | {"train_time_sec": 0.07}, done]
    points = found(verified(copy.deepcopy(lines)))

    assert "7" == points["result.json curve[0].num_steps"]
    for name, value in (("num_steps", 5), ("train_time_sec", 0.071)):
        wrong = copy.deepcopy(lines)
        wrong[-2][name] = value
        assert_refused(verified(wrong), r"the point after \d+ steps does not have")


def lines_of(logs, *, is_interleaved):
    """Returns lines of a process whose steps have these logs of examples per second."""
    lines, now = rank_lines()[:8], 100 * MS
    for index, log in enumerate(logs):
        times = {"start_ns": now, "end_ns": (now := now + round(8e9 / math.exp(log)))}
        lines.append(step(3 + index, "measure", 0, 0) | times)
        if is_interleaved:
            lines.append(block(index, 0, 0) | times | {"num_steps": 1})
    return [*lines, *rank_lines()[-3:]]


def drawn(numbers, spread=0.0):
    """Logs of repetitions of so many rounds each."""
    generator = np.random.default_rng(9)
    return [
        list(generator.normal(generator.normal(0, spread), 0.1, number))
        for number in numbers
    ]


@pytest.mark.parametrize(
    ("numbers", "fields"),
    [
        # Geometric mean and Student's interval of repetitions.
        *(([1] * n, {"num_measured_steps": 1}) for n in (1, 2, 10)),
        # Batches of consecutive rounds.
        *(([n], {"num_rounds": 1}) for n in (1, 4, 5, 20, 23, 1000)),
        # Repetitions of unlike numbers of rounds.
        ([1, 5, 9, 20], {"num_rounds": 1}),
        # Widened from six on.
        *(([1] * n, {"num_rounds": 1, "target": 0.01}) for n in (5, 6)),
    ],
)
@pytest.mark.parametrize("spread", [0.0, 0.2])
def test_intervals_are_what_other_code_says(write_study, numbers, fields, spread):
    trials = []
    for logs in drawn(numbers, spread):
        lines = lines_of(logs, is_interleaved="num_rounds" in fields)
        trials.append((lines, {"rank_0.jsonl": lines}))
    store = write_study(trials, **fields)
    check = verify_study(store)
    frame = points_frame(store).query("quantity == 'throughput' and kind == 'estimate'")
    (stated,) = frame["method"]

    assert not check.differences
    assert 1 == check.kinds["throughput"].num_recomputed
    assert ("widened" in stated) == ("target" in fields and len(numbers) > 5)


RATIOS = {"ratios of backends", "A/A control"}
OF_CASES = {"throughput", "speedup", "efficiency"}
HEADLINES = {*RATIOS, *OF_CASES, "quality", "losses of equivalence checks", "verdict"}


def test_a_longer_block_differs_in_each_figure_of_its_case(tmp_path):
    root = study_files.published("resnet50-two-cores")
    store = Store(shutil.copytree(root, tmp_path / "study"))
    cases = load_study(store).cases
    entry = next(of for of in cases if of.spec.num_replicas == 2).ok_entries[0]
    path = store.trial_dir(entry.trial_id) / "rank_0.jsonl"
    end = next(of for of in entry.result.blocks if of.is_valid).end_ns
    text = path.read_text()
    path.write_text(text.replace(f'"end_ns": {end}', f'"end_ns": {end + 1000}'))
    check = verify_study(store)
    kinds = [check.kinds[kind] for kind in HEADLINES & check.kinds.keys()]
    number, most = (
        sum(getattr(kind, name) for kind in kinds)
        for name in ("num_different", "num_recomputed")
    )

    assert OF_CASES | RATIOS == {kind.kind for kind in kinds if kind.num_different}
    assert number < most / 2
