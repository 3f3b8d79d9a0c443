"""The figures of a trial from what its ranks have written."""

import dataclasses
import json
import threading
import time

from harness.run import aggregate
from harness.run.trial_tree import TrialExit
from results.records.models import Phase, TrialStatus

SECOND = 1_000_000_000
GOOD_EXIT = TrialExit(
    exit_code=0, is_timed_out=False, timeout_sec=60, duration_sec=9, num_oom_kills=0
)
TRIAL_ID = "0" * 20


def write_rank(folder, rank, *, start, step, num_steps=6):
    """Writes a complete rank file; the first step is at ``start`` seconds."""
    lines = [
        {"kind": "facts", "num_parameters": 5, "example_unit": "images"}
        | {"global_batch_size": 8},
        {"kind": "first_step_done", "time_to_first_step_sec": 3.0},
    ]
    for index in range(num_steps):
        phase = ("first_step", "warmup", "measure")[min(index, 2)]
        begin = (start + index * step) * SECOND
        lines.append(
            {"kind": "step", "phase": phase, "index": index, "start_ns": begin}
            | {"end_ns": begin + step * SECOND, "loss": 1.0}
        )
    lines += [
        {"kind": "memory", "peak_memory_bytes": 7, "method": "faked"},
        {"kind": "phase", "phase": "report", "ns": 0},
        {"kind": "done", "ns": 0},
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / f"rank_{rank}.jsonl").write_text(text)


def conclude(folder, spec, **fields):
    return aggregate.conclude(TRIAL_ID, spec, folder, GOOD_EXIT, num_ranks=2, **fields)


def test_the_window_is_from_latest_start_to_latest_end(tmp_path, make_spec):
    """Throughput is not one rank's times the number of ranks."""
    write_rank(tmp_path, 0, start=0, step=1)
    write_rank(tmp_path, 1, start=1, step=2)
    result = conclude(tmp_path, make_spec()).result

    assert result is not None
    # Rank 0 measures from 2 to 6 s, rank 1 from 5 to 13 s.
    assert 13.0 - 5.0 == result.window_sec
    assert 8 * 4 / 8.0 == result.examples_per_sec
    assert [4, 4] == [len(rank.step_time_sec) for rank in result.ranks]


def test_a_rank_with_too_few_steps_is_no_result(tmp_path, make_spec):
    """The other rank's numbers are not enough."""
    write_rank(tmp_path, 0, start=0, step=1)
    write_rank(tmp_path, 1, start=0, step=1, num_steps=5)
    made = conclude(tmp_path, make_spec())

    assert made.status is TrialStatus.FAILED
    assert made.result is None
    assert made.failure is not None
    assert "rank 1 has steps [0, 1, 2, 3, 4], expected 0 to 5" in made.failure.reason


def test_a_rank_without_a_file_is_the_one_behind(tmp_path, make_spec):
    """A failure names the rank that got least far."""
    write_rank(tmp_path, 0, start=0, step=1)
    made = conclude(tmp_path, make_spec())

    assert made.failure is not None
    assert made.failure.phase is Phase.LAUNCH
    assert "rank 1 was in phase launch" in made.failure.reason


def test_a_rank_file_that_appears_late_is_waited_for(tmp_path, make_spec):
    """A network file system shows what another host wrote after a while."""
    write_rank(tmp_path, 0, start=0, step=1)
    late = threading.Timer(0.3, write_rank, (tmp_path, 1), {"start": 0, "step": 1})
    late.start()
    made = conclude(tmp_path, make_spec(), late_sec=20.0)
    late.join()

    assert made.status is TrialStatus.OK


def test_a_rank_file_that_never_appears_is_waited_for_only_so_long(tmp_path, make_spec):
    """And not at all where the trial has failed."""
    write_rank(tmp_path, 0, start=0, step=1)
    start = time.monotonic()
    made = conclude(tmp_path, make_spec(), late_sec=0.6)
    waited_sec = time.monotonic() - start
    aggregate.conclude(
        TRIAL_ID,
        make_spec(),
        tmp_path,
        dataclasses.replace(GOOD_EXIT, exit_code=1),
        num_ranks=2,
        late_sec=60.0,
    )

    assert made.status is TrialStatus.FAILED
    assert 0.6 <= waited_sec < 10
    assert time.monotonic() - start < 20


def test_a_broken_rank_file_is_a_failure_not_a_crash(tmp_path, make_spec):
    """One bad trial does not end a sweep."""
    (tmp_path / "rank_0.jsonl").write_text("what\n")
    made = conclude(tmp_path, make_spec())

    assert made.failure is not None
    assert "rank_0.jsonl line 1" in made.failure.reason
