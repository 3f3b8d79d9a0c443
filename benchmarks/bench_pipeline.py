"""Measures pipelines of two stages against one device, whole batches and memory.

python -m benchmarks.bench_pipeline [--processes 5]

*Serial* is the same pipeline on one core: as two devices of one core each that take
turns. Micro-batches are 512 rows of 512. The first step of workload ``transformer``,
preset ``laptop``, has micro-batches of one sequence. Intervals are over processes. On
two cores that share memory this says what the schedule gives, and nothing of GPUs.
"""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks import pipelines, runner
from benchmarks.pipelines import NUM_STAGES

NUM_TURNS, NUM_WARMUPS = 5, 2
MEMORY_PARTS = 16
MEGABYTE = 1e6
PARTS = 8
TOKENS = PARTS * 128

_Found = Mapping[str, Sequence[Mapping[str, float]]]
WAYS: dict[str, dict[str, Any]] = {
    "1F1B": {},
    "fill-drain": {"schedule": "fill_drain"},
    "fill-drain, recomputed": {"schedule": "fill_drain", "recompute": True},
}


def main() -> None:
    """Measures and prints the ratios."""
    parser = runner.make_parser(__doc__, num_repeats=5, name="--processes")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    arguments = parser.parse_args()
    for case in arguments.cases:
        measure, show = CASES[case]
        show(runner.take_turns(measure, arguments.num_repeats, show=str))


def _show_times(found: _Found) -> None:
    both, one = found["two cores"], found["one core"]
    for way, target in (("1F1B", 1.65), ("fill-drain", None)):
        runner.print_ratio(
            f"throughput, {way}, M = {PARTS} / serial",
            _of(one, way),
            _of(both, way),
            at_least=target,
        )
    runner.print_ratio(
        f"throughput, 1F1B, M = {PARTS} / the whole batch in one piece",
        _of(both, "one piece"),
        _of(both, "1F1B"),
        at_least=1.2,
    )
    runner.print_ratio(
        f"throughput, 1F1B, M = {PARTS} / two replicas of half the batch",
        _of(both, "two replicas"),
        _of(both, "1F1B"),
    )
    runner.print_ratio(
        "step time, fill-drain, recomputed / kept",
        _of(both, "fill-drain, recomputed"),
        _of(both, "fill-drain"),
        at_most=1.45,
    )
    runner.print_ratio(
        "first step of these layers, 1F1B / the whole batch in one piece",
        _of(both, "first 1F1B"),
        _of(both, "first one piece"),
    )


def _show_memory(found: _Found) -> None:
    peaks = found["memory"]
    for way, target in (("1F1B", 0.2), ("fill-drain, recomputed", 0.5)):
        runner.print_ratio(
            f"peak of activations, M = {MEMORY_PARTS}, {way} / fill-drain",
            _of(peaks, way),
            _of(peaks, "fill-drain"),
            at_most=target,
        )


def _show_first(found: _Found) -> None:
    for step, target in (("first", 2.0), ("second", None)):
        runner.print_ratio(
            f"{step} step, transformer laptop, 1F1B, M = {PARTS} / one piece",
            _of(found["stages"], step),
            _of(found["one piece"], step),
            at_most=target,
        )


def _first(num_stages: int) -> Any:
    return runner.measure(measure_first, arguments={"num_stages": num_stages})


def _of(processes: Sequence[Mapping[str, float]], way: str) -> list[float]:
    return [process[way] for process in processes]


def measure_first(num_stages: int) -> dict[str, float]:
    """Seconds of the first and of the second step of ``transformer``."""
    import replicator
    from workloads.transformer.study import WORKLOAD

    pipelines.limit_threads()
    repl = replicator.create(
        "in_graph", num_replicas=1, logical_devices_per_replica=num_stages
    )
    parts = {"pipeline_stages": num_stages, "num_microbatches": PARTS}
    program = WORKLOAD.build(
        repl,
        preset="laptop",
        data="synthetic",
        per_replica_batch_size=TOKENS,
        seed=1,
        options=parts if num_stages > 1 else {},
    )
    return {"first": _sec(program.run), "second": _sec(program.run)}


def measure_times() -> dict[str, float]:
    """By way: median over turns of the seconds of one step; and of the first one."""
    pipelines.limit_threads()
    run = {name: pipelines.build(PARTS, **way)[1] for name, way in WAYS.items()}
    run["one piece"] = pipelines.build(PARTS, is_whole=True)[1]
    run["two replicas"] = pipelines.build(PARTS, is_whole=True, num_replicas=2)[1]
    first = {f"first {name}": _sec(one) for name, one in run.items()}
    ways = {name: functools.partial(_sec, one) for name, one in run.items()}
    found = runner.take_turns(ways, NUM_TURNS, num_warmups=NUM_WARMUPS)
    return first | {name: statistics.median(sec) for name, sec in found.items()}


def measure_memory() -> dict[str, float]:
    """By way: the peak in megabytes above what was there before the step."""
    import tensorflow as tf

    pipelines.limit_threads()
    info = functools.partial(tf.config.experimental.get_memory_info, "CPU:0")
    found = {}
    for name, way in WAYS.items():
        _, run = pipelines.build(MEMORY_PARTS, **way)
        run()
        before = info()["current"]
        tf.config.experimental.reset_memory_stats("CPU:0")
        run()
        found[name] = (info()["peak"] - before) / MEGABYTE
    return found


def _sec(run: Any) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


CASES: dict[str, tuple[dict[str, Callable[[], Any]], Callable[[_Found], None]]] = {
    "times": (
        {
            "two cores": lambda: runner.measure(measure_times),
            "one core": lambda: runner.measure(measure_times, cores=runner.CORES[:1]),
        },
        _show_times,
    ),
    "memory": ({"memory": lambda: runner.measure(measure_memory)}, _show_memory),
    "first": (
        {
            "stages": lambda: _first(NUM_STAGES),
            "one piece": lambda: _first(1),
        },
        _show_first,
    ),
}


if __name__ == "__main__":
    main()
