"""A result is derived anew from rank files, which must not contradict themselves."""

from __future__ import annotations

import copy
import json
import math
from typing import TYPE_CHECKING, Any

import pytest

from results.verify import check, trials
from results.verify.trials import RawError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

MS = 1_000_000
LOAD = {
    "foreign_cpu_fraction": 0.01,
    "foreign_resolution": 0.02,
    "stolen_cpu_fraction": 0.0,
    "stolen_resolution": 0.02,
    "run_delay_sec": 0.001,
    "num_throttled": 0,
}

Lines = list[dict[str, Any]]


def step(index: int, phase: str, start: int, duration: int):
    """Returns the line of a step; times are in milliseconds."""
    return {
        "kind": "step",
        "phase": phase,
        "index": index,
        "start_ns": start * MS,
        "end_ns": (start + duration) * MS,
        "loss": 2.0,
    }


def turn(round_index: int, start: int, end: int):
    """Returns the line of a turn of two steps; times are in milliseconds."""
    return {
        "kind": "turn",
        "round_index": round_index,
        "attempt": 0,
        "start_ns": start * MS,
        "end_ns": end * MS,
        "num_steps": 2,
        "user_sec": 0.5,
        "system_sec": 0.25,
        "minor_faults": 3,
        "major_faults": 0,
        "involuntary_switches": 1,
        "num_retraces": 0,
    }


def rank_lines():
    """Returns the lines of a rank: two steps to warm up, two turns of two steps."""
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
        turn(0, 100, 120),
        step(4, "measure", 200, 20),
        step(5, "measure", 220, 20),
        turn(1, 199, 240),
        {"kind": "memory", "peak_memory_bytes": 7, "method": "x"},
        {"kind": "sanity", "name": "s", "is_passed": True, "detail": ""},
        {"kind": "done", "ns": 300 * MS},
    ]


def write(folder: Path, *ranks: Lines, loads: Lines | None = None):
    """Writes the raw observations of a trial."""
    folder.mkdir(exist_ok=True)
    for rank, lines in enumerate(ranks):
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (folder / f"rank_{rank}.jsonl").write_text(text)
    if loads is not None:
        text = "".join(json.dumps(line) + "\n" for line in loads)
        (folder / "turns.jsonl").write_text(text)
    return folder


def load(round_index: int, **fields: Any):
    """Returns the line of the load within a turn."""
    return {"round_index": round_index, "attempt": 0, **LOAD, **fields}


def test_turns_are_joined_over_ranks(tmp_path):
    """From the latest start to the latest end; sums of what processes used."""
    second = rank_lines()
    second[9] = turn(0, 99, 120)
    second[10]["end_ns"] = second[11]["start_ns"] = 221 * MS
    second[11]["end_ns"] = 250 * MS
    second[12] = turn(1, 200, 250)
    folder = write(
        tmp_path / "t",
        rank_lines(),
        second,
        loads=[load(0), load(1, foreign_cpu_fraction=0.06)],
    )
    found = trials.read_trial(folder, num_warmup_steps=2)
    first, last = found.result["turns"]

    assert found.is_complete
    assert (100 * MS, 120 * MS) == (first["start_ns"], first["end_ns"])
    assert (200 * MS, 250 * MS) == (last["start_ns"], last["end_ns"])
    assert (1.0, 0.5, 6) == tuple(
        last[name] for name in ("user_sec", "system_sec", "minor_faults")
    )
    assert [False, True] == [first["is_void"], last["is_void"]]
    assert 0.07 == found.result["window_sec"]
    rates = check.log_rates({"only": found.result})
    assert {"only": {0: pytest.approx(math.log(800.0))}} == rates


@pytest.mark.parametrize(
    ("hosts", "window_sec"), [(("a", "a"), 0.13), (("a", "b"), 0.14)]
)
def test_clocks_of_two_machines_are_not_compared(
    tmp_path, hosts: tuple[str, str], window_sec: float
):
    """Rank 1 is the faster one, and its machine started a second earlier."""
    ranks = [[line for line in rank_lines() if line["kind"] != "turn"] for _ in hosts]
    (last,) = [line for line in ranks[1] if line.get("index") == 5]
    last["end_ns"] -= 10 * MS
    for line in ranks[1]:
        for name in {"ns", "start_ns", "end_ns"} & line.keys():
            line[name] += 1000 * MS
    for host, lines in zip(hosts, ranks, strict=True):
        lines.insert(0, {"kind": "clock", "host": host})
    folder = write(tmp_path / "t", *ranks)
    found = trials.read_trial(folder, num_warmup_steps=2)

    assert window_sec == found.result["window_sec"]


def test_programs_that_never_communicate_have_a_batch_each(tmp_path):
    """Ranks of one program share a batch."""
    folder = write(tmp_path / "t", rank_lines(), rank_lines())

    for is_solo, size in ((True, 16), (False, 8)):
        found = trials.read_trial(folder, num_warmup_steps=2, is_solo=is_solo)
        assert size == found.result["global_batch_size"]


def test_a_failed_check_makes_a_trial_incomplete(tmp_path):
    """As does a process that did not finish."""
    lines = rank_lines()
    insane = copy.deepcopy(lines)
    insane[-2]["is_passed"] = False

    for number, changed in enumerate([insane, lines[:-1]]):
        folder = write(tmp_path / str(number), changed)
        assert not trials.read_trial(folder, num_warmup_steps=2).is_complete


@pytest.mark.parametrize(
    ("fields", "num_retraces", "is_void"),
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
        ({}, 1, True),
    ],
)
def test_the_void_rule(fields: dict[str, Any], num_retraces: int, *, is_void: bool):
    """3 % of foreign and 1 % of stolen time, and what can be rounding; one core."""
    assert is_void == trials.is_void(LOAD | fields, num_retraces)


def _drop(index: int):
    return lambda lines: lines.pop(index) and None


def _set(index: int, name: str, value: Any):
    return lambda lines: lines[index].update({name: value})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_set(5, "index", 7), r"the steps of rank 0 are not numbered from 0 on"),
        (_set(8, "start_ns", 105 * MS), r"step 3 of rank 0 overlaps another, or lies"),
        (_set(7, "phase", "train"), r"step 2 of rank 0 overlaps another, or lies"),
        (_set(9, "end_ns", 121 * MS), r"the turn of round 0 of rank 0 does not have"),
        (_drop(12), r"rank 0 has measured steps outside of turns"),
        (_drop(1), r"a line is malformed: ValueError: not enough values to unpack"),
        (_drop(3), r"a line is malformed: IndexError: "),
    ],
)
def test_what_contradicts_itself_is_refused(
    tmp_path, change: Callable[[Lines], None], message: str
):
    """The message names the rank and the step or turn."""
    lines = rank_lines()
    change(lines)
    folder = write(tmp_path / "t", lines)

    with pytest.raises(RawError, match=f"^{message}"):
        trials.read_trial(folder, num_warmup_steps=2)


def test_files_that_do_not_match_are_refused(tmp_path):
    """Turns of ranks, the load within turns, the numbers of ranks."""
    other = [line for line in rank_lines() if line["kind"] != "turn"]
    with pytest.raises(RawError, match=r"^ranks have different turns"):
        trials.read_trial(
            write(tmp_path / "a", rank_lines(), other), num_warmup_steps=2
        )
    with pytest.raises(
        RawError, match=r"^turns\.jsonl and the rank files have different turns"
    ):
        trials.read_trial(
            write(tmp_path / "b", rank_lines(), loads=[load(0)]), num_warmup_steps=2
        )
    folder = write(tmp_path / "c", rank_lines(), rank_lines())
    (folder / "rank_0.jsonl").unlink()
    with pytest.raises(RawError, match=r"^rank files are \['rank_1\.jsonl'\]"):
        trials.read_trial(folder, num_warmup_steps=2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", r"rank_0\.jsonl line 1 is no JSON object"),
        ("[]", r"rank_0\.jsonl line 1 is no JSON object"),
    ],
)
def test_lines_that_are_not_records_are_refused(tmp_path, text: str, message: str):
    """With the file and the line."""
    (tmp_path / "rank_0.jsonl").write_text(text)

    with pytest.raises(RawError, match=f"^{message}"):
        trials.read_trial(tmp_path, num_warmup_steps=2)


def test_no_rank_file_is_no_raw_observation(tmp_path):
    """Which differs from one that is wrong."""
    with pytest.raises(FileNotFoundError, match=r"no rank file in "):
        trials.read_trial(tmp_path, num_warmup_steps=2)


def test_points_of_a_quality_run_agree_with_the_steps(tmp_path):
    """Their numbers of steps and examples, and the time without the first step."""
    point = {"kind": "point", "num_steps": 6, "num_examples": 48, "quality": []}
    lines = [*rank_lines()[:-1], point | {"train_time_sec": 0.07}, rank_lines()[-1]]
    folder = write(tmp_path / "good", lines)
    found = trials.read_trial(folder, num_warmup_steps=2).result["curve"]
    assert [6] == [of["num_steps"] for of in found]

    for name, value in (("num_steps", 5), ("train_time_sec", 0.071)):
        wrong = copy.deepcopy(lines)
        wrong[-2][name] = value
        with pytest.raises(RawError, match=r"^the point after \d+ steps does not have"):
            trials.read_trial(write(tmp_path / name, wrong), num_warmup_steps=2)
