"""Measures what the measuring itself costs a step of 5 ms.

python -m benchmarks.bench_measuring [--generations 4]

A program whose step takes 5 ms by its own clock is measured as a trial: in one window,
and in turns of a relay that this script gives. What the harness states as the time of
the steps, less what the steps took by their own clock, is its cost. The interval is
over fresh processes.
"""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import runner, turns

if TYPE_CHECKING:
    from harness.client.scaling_client import Channel

STEP_NS = 5_000_000
NUM_STEPS = 600
STEPS_PER_TURN = 60
MOST_RATIO = 1.01
WAYS = ("window", "relay")


class SpinningProgram:
    """Computes for 5 ms per step, and adds up what that took by its own clock."""

    num_parameters = 1
    flops_per_example = None
    compute_dtype = "float32"
    per_replica_batch_size = global_batch_size = 4

    def __init__(self) -> None:
        self.own_ns: list[int] = []

    def run(self, num_steps: int = 1) -> float:
        """Takes 5 ms."""
        assert num_steps == 1
        start_ns = time.monotonic_ns()
        now_ns = start_ns
        while now_ns < start_ns + STEP_NS:
            now_ns = time.monotonic_ns()
        self.own_ns.append(now_ns - start_ns)
        return 1.0 / len(self.own_ns)

    def sanity(self) -> tuple[()]:
        """Checks nothing."""
        return ()

    def window_metrics(self) -> tuple[()]:
        """Counts nothing."""
        return ()

    def start_window(self) -> None:
        """Does nothing."""

    pause = resume = start_window

    def explain(self) -> str:
        """Nothing is communicated."""
        return ""


def main() -> None:
    """Measures and prints both ways."""
    parser = runner.make_parser(__doc__, num_repeats=4, name="--generations")
    num_processes = parser.parse_args().num_repeats
    found = runner.take_turns(
        {
            way: lambda way=way: runner.measure(
                measure, arguments={"way": way}, cores=runner.CORES[:1]
            )
            for way in WAYS
        },
        num_processes,
        show=lambda figures: f"{figures['cost_us']:.1f} us per step",
    )
    for way, figures in found.items():
        runner.print_value(
            f"{way}: cost of measuring a step", [f["cost_us"] for f in figures], "us"
        )
        runner.print_ratio(
            f"{way}: stated time of steps / their own time",
            [f["stated_ns"] for f in figures],
            [f["own_ns"] for f in figures],
            at_most=MOST_RATIO,
        )


def measure(way: str) -> dict[str, float]:
    """Stated and own nanoseconds of the measured steps of one trial."""
    from harness.client.scaling_client import RankFile, ResidentMemory
    from harness.trial import measure as measure_module
    from harness.trial.rank_file import rank_path, read_rank

    spec = _spec(way)
    program: Any = SpinningProgram()
    with tempfile.TemporaryDirectory() as folder:
        writer = RankFile(rank_path(Path(folder), 0), time.monotonic_ns)
        measure_module.measure_trial(
            lambda: program,
            spec,
            writer,
            example_unit="examples",
            memory=ResidentMemory(),
            channel=_channel() if way == "relay" else None,
        )
        writer.close()
        log = read_rank(Path(folder), 0)
        lines = rank_path(Path(folder), 0).read_text(encoding="utf-8").splitlines()
    own_ns = sum(program.own_ns[spec.num_warmup_steps :])
    if way == "relay":
        turns = [turn for turn in map(json.loads, lines) if turn["kind"] == "turn"]
        stated_ns = sum(turn["end_ns"] - turn["start_ns"] for turn in turns)
    else:
        measured = log.steps[spec.num_warmup_steps :]
        stated_ns = measured[-1].end_ns - measured[0].start_ns
    return {
        "own_ns": own_ns,
        "stated_ns": stated_ns,
        "cost_us": (stated_ns - own_ns) / NUM_STEPS / 1e3,
    }


def _spec(way: str) -> Any:
    from results.records.models import Order, TrialSpec

    is_relay = way == "relay"
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
        num_warmup_steps=3,
        num_measured_steps=None if is_relay else NUM_STEPS,
        order=Order.RELAY if is_relay else Order.SEQUENTIAL,
        is_evaluated=False,
        repetition_index=0,
        seed=1,
    )


def _channel() -> Channel:
    """A connection to a thread that gives turns."""
    from harness.client.scaling_client import Channel

    return Channel(turns.start_giving(NUM_STEPS // STEPS_PER_TURN, STEPS_PER_TURN), 0)


if __name__ == "__main__":
    main()
