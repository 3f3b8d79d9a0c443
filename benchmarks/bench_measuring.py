"""Measures what the harness costs: its command line, and a step of 5 ms.

python -m benchmarks.bench_measuring [--repeats 4] [--cases NAME...]

*help* and *plan* are whole processes, as a user sees them. *window* and *interleaved
study*: a program whose step takes 5 ms by its own clock is measured as a trial, in one
window, and in turns that this script gives. What the harness states as the time of the
steps, less what the steps took by their own clock, is its cost.

*client* is a loop that computes for 5 ms per step: plain, and with ``scaling_client``
in such blocks. Steps of both ways alternate within one process, so both see the same
noise. Intervals are over fresh processes.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import runner
from benchmarks.runner import Figure

STEP_NS = 5_000_000
NUM_STEPS, STEPS_PER_BLOCK, NUM_WARMUP_STEPS = 600, 60, 3
NUM_BLOCKS = NUM_STEPS // STEPS_PER_BLOCK
MOST_RATIO = 1.01
# 2 backends x (1 baseline + 3 weak + 3 strong), the A/A control, 72 repetitions, and 4
# quality runs.
PLAN = (
    *("sweep", "--dry-run", "--workload=resnet50", "--preset=laptop"),
    *("--replicas=1,2,4,8", "--repeats=72"),
)


def run_command(*args: str) -> float:
    start = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "harness", *args],
        cwd=runner.ROOT,
        check=True,
        capture_output=True,
    )
    return time.perf_counter() - start


def start_giving() -> str:
    """Starts a thread that gives blocks, as the harness does; returns its address."""
    from harness.client.scaling_client import native_address

    address = f"@bench-measuring-{os.getpid()}"
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    server.bind(native_address(address))
    server.listen(1)
    threading.Thread(target=_give_blocks, args=(server,), daemon=True).start()
    return address


def _give_blocks(server: socket.socket) -> None:
    connection, _ = server.accept()
    block = {"command": "turn", "attempt": 0, "num_steps": STEPS_PER_BLOCK}
    commands: list[dict[str, Any]] = [
        {"command": "build", "is_alone": True},
        {"command": "warm_up", "heap_fraction": 0.0},
        *({**block, "round_index": index} for index in range(NUM_BLOCKS)),
        {"command": "finish"},
    ]
    with server, connection, connection.makefile("r", encoding="utf-8") as lines:
        for command in commands:
            lines.readline()
            connection.sendall(json.dumps(command).encode("ascii") + b"\n")


class SpinningProgram:
    """Computes for 5 ms per step, and adds up what that took by its own clock."""

    num_parameters = 1
    flops_per_example = None
    compute_dtype = "float32"
    per_replica_batch_size = global_batch_size = 4

    def __init__(self) -> None:
        self.own_ns: list[int] = []

    def run(self, num_steps: int = 1) -> float:
        assert num_steps == 1
        start_ns = time.monotonic_ns()
        now_ns = start_ns
        while now_ns < start_ns + STEP_NS:
            now_ns = time.monotonic_ns()
        self.own_ns.append(now_ns - start_ns)
        return 1.0 / len(self.own_ns)

    def sanity(self) -> tuple[()]:
        """Checks and counts nothing."""
        return ()

    window_metrics = sanity

    def start_window(self) -> None:
        """Does nothing."""

    pause = resume = start_window

    def explain(self) -> str:
        return ""


def measure_trial(way: str) -> dict[str, float]:
    """Stated and own nanoseconds of the measured steps of one trial."""
    from harness.client.scaling_client import Channel, RankFile, ResidentMemory
    from harness.trial import measure
    from harness.trial.rank_file import rank_path, read_rank

    is_interleaved = way == "relay"
    program: Any = SpinningProgram()
    with tempfile.TemporaryDirectory() as folder:
        path = rank_path(Path(folder), 0)
        writer = RankFile(path, time.monotonic_ns)
        measure.measure_trial(
            lambda: program,
            _spec(is_interleaved=is_interleaved),
            writer,
            example_unit="examples",
            memory=ResidentMemory(),
            channel=Channel(start_giving(), 0) if is_interleaved else None,
        )
        writer.close()
        log = read_rank(Path(folder), 0)
        lines = path.read_text(encoding="utf-8").splitlines()
    own_ns = sum(program.own_ns[NUM_WARMUP_STEPS:])
    if is_interleaved:
        blocks = [block for block in map(json.loads, lines) if block["kind"] == "turn"]
        stated_ns = sum(block["end_ns"] - block["start_ns"] for block in blocks)
    else:
        measured = log.steps[NUM_WARMUP_STEPS:]
        stated_ns = measured[-1].end_ns - measured[0].start_ns
    cost_us = (stated_ns - own_ns) / NUM_STEPS / 1e3
    return {"own_ns": own_ns, "stated_ns": stated_ns, "cost_us": cost_us}


def _spec(*, is_interleaved: bool) -> Any:
    from results.records.models import Order, TrialSpec

    return TrialSpec(
        workload="resnet50",
        workload_version="1",
        code_digest="0",
        preset="smoke",
        data="synthetic",
        backend="single",
        num_replicas=1,
        per_replica_batch_size=4,
        global_batch_size=4,
        cores_per_replica=1,
        num_warmup_steps=NUM_WARMUP_STEPS,
        num_measured_steps=None if is_interleaved else NUM_STEPS,
        order=Order.INTERLEAVED if is_interleaved else Order.SEQUENTIAL,
        is_evaluated=False,
        repetition_index=0,
        seed=1,
    )


def measure_client() -> dict[str, float]:
    """Nanoseconds of as many steps with the client, and without it."""
    from harness.client import scaling_client

    own_ns = stated_ns = 0
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        asked = {
            "protocol": scaling_client.PROTOCOL,
            "num_replicas": 1,
            "per_replica_batch_size": 4,
            "global_batch_size": 4,
            "unit": "examples",
            "seed": 0,
            "num_warmup_steps": NUM_WARMUP_STEPS,
            "num_measured_steps": None,
            "control": "none",
            "is_evaluated": False,
        }
        (Path(folder) / scaling_client.TRIAL_FILE).write_text(json.dumps(asked))
        os.environ[scaling_client.TRIAL_VARIABLE] = folder
        os.environ[scaling_client.ADDRESS_VARIABLE] = start_giving()
        run: Any = scaling_client.connect()
        stack.callback(run.close)
        steps = iter(run.steps())
        for _ in range(NUM_WARMUP_STEPS):
            _train(next(steps))
        step = next(steps)  # waits for the block, which is not part of it
        for number in range(1, NUM_STEPS + 1):
            start_ns = time.monotonic_ns()
            _compute()
            middle_ns = time.monotonic_ns()
            _train(step)
            if number % STEPS_PER_BLOCK:
                step = next(steps)
            end_ns = time.monotonic_ns()
            own_ns += middle_ns - start_ns
            stated_ns += end_ns - middle_ns
            if not number % STEPS_PER_BLOCK:
                step = next(steps, None)
        assert step is None
    cost_us = (stated_ns - own_ns) / NUM_STEPS / 1e3
    return {"own_ns": own_ns, "stated_ns": stated_ns, "cost_us": cost_us}


def _train(step: Any) -> None:
    step.done(loss=_compute(), examples=4)


def _compute(number: int = 0) -> float:
    """Takes the same number of operations each time, by default about 5 ms."""
    total = 0.0
    for term in range(number or _num_operations()):
        total += term * 1e-9
    return total


@functools.cache
def _num_operations() -> int:
    number = 50_000
    best = min(runner.seconds(lambda: _compute(number)) for _ in range(20))
    return round(number * STEP_NS / 1e9 / best)


ONE_CORE = functools.partial(runner.measure, cores=runner.CORES[:1])
WAYS: dict[str, Callable[[], Any]] = {
    "help": lambda: run_command("--help"),
    "plan": lambda: run_command(*PLAN),
    "window": lambda: ONE_CORE(measure_trial, way="window"),
    "relay": lambda: ONE_CORE(measure_trial, way="relay"),
    "client": lambda: ONE_CORE(measure_client),
}
FIGURES = [
    Figure("python -m harness --help", ("help",), unit="s", at_most=0.4),
    Figure("plan of 1,084 trials", ("plan",), unit="s", at_most=2.0),
    *(
        figure
        for way in ("window", "relay", "client")
        for figure in (
            Figure(f"{way}: cost of measuring a step", (way, "cost_us"), unit="us"),
            Figure(
                f"{way}: stated time of steps / their own time",
                (way, "stated_ns"),
                (way, "own_ns"),
                at_most=MOST_RATIO,
            ),
        )
    ),
]

if __name__ == "__main__":
    runner.run(__doc__, WAYS, FIGURES, num_repeats=4)
