"""Measures what the client costs a step of 5 ms, against the same loop without it.

python -m benchmarks.bench_client [--generations 4]

A loop computes for 5 ms per step: plain, and with ``scaling_client`` in a relay whose
turns this script gives. Steps of both ways alternate within one process, so both see
the same noise. The interval is over fresh processes.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import runner, turns

STEP_NS = 5_000_000
STEPS_PER_TURN = 60
NUM_TURNS = 10
MOST_RATIO = 1.01


def main() -> None:
    """Measures, and prints the ratio."""
    parser = runner.make_parser(__doc__, num_repeats=4, name="--generations")
    found = runner.take_turns(
        {"client": lambda: runner.measure(measure, cores=runner.CORES[:1])},
        parser.parse_args().num_repeats,
        show=lambda f: f"{f['with_ns'] / f['plain_ns']:.5f}",
    )["client"]
    runner.print_ratio(
        "time of 600 steps of 5 ms with the client / without it",
        [f["with_ns"] for f in found],
        [f["plain_ns"] for f in found],
        at_most=MOST_RATIO,
    )


def measure() -> dict[str, float]:
    """Nanoseconds of as many steps with the client, and without it."""
    from harness.client import scaling_client

    plain_ns = with_ns = 0
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        asked = {
            "protocol": scaling_client.PROTOCOL,
            "num_replicas": 1,
            "per_replica_batch_size": 4,
            "global_batch_size": 4,
            "unit": "examples",
            "seed": 0,
            "num_warmup_steps": 3,
            "num_measured_steps": None,
            "control": "none",
            "is_evaluated": False,
        }
        (Path(folder) / scaling_client.TRIAL_FILE).write_text(json.dumps(asked))
        address = turns.start_giving(NUM_TURNS, STEPS_PER_TURN)
        os.environ[scaling_client.TRIAL_VARIABLE] = folder
        os.environ[scaling_client.ADDRESS_VARIABLE] = address
        run: Any = scaling_client.connect()
        stack.callback(run.close)
        steps = iter(run.steps())
        for _ in range(3):
            _train(next(steps))
        step = next(steps)  # waits for the turn, which is not part of it
        for number in range(1, NUM_TURNS * STEPS_PER_TURN + 1):
            start_ns = time.monotonic_ns()
            _compute()
            middle_ns = time.monotonic_ns()
            _train(step)
            if number % STEPS_PER_TURN:
                step = next(steps)
            end_ns = time.monotonic_ns()
            plain_ns += middle_ns - start_ns
            with_ns += end_ns - middle_ns
            if not number % STEPS_PER_TURN:
                step = next(steps, None)
        assert step is None
    return {"plain_ns": plain_ns, "with_ns": with_ns}


def _train(step: Any) -> None:
    step.done(loss=_compute(), examples=4)


def _compute() -> float:
    """Takes the same number of operations each time, about 5 ms."""
    total = 0.0
    for number in range(_num_operations()):
        total += number * 1e-9
    return total


_FOUND: list[int] = []


def _num_operations() -> int:
    """How many take 5 ms here; counted once in a process."""
    if not _FOUND:
        count, best_ns = 50_000, float("inf")
        for _ in range(20):
            start_ns = time.monotonic_ns()
            total = 0.0
            for number in range(count):
                total += number * 1e-9
            best_ns = min(best_ns, time.monotonic_ns() - start_ns)
        _FOUND.append(round(count * STEP_NS / best_ns))
    return _FOUND[0]


if __name__ == "__main__":
    main()
