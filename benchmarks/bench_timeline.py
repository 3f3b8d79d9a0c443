"""Measures what a timeline costs, how well it knows clocks, and the idle shares it has.

python -m benchmarks.bench_timeline [--processes 5]

Idle shares are those of the pipelines of ``bench_pipeline``. *Off* compares the step of
a replicator that has recorded a timeline with that of one which never did, *on* the
steps of a timeline with and without marks, which take turns. Clocks are those of two
worker processes of this host. Intervals are over processes.
"""

from __future__ import annotations

import functools
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import pipelines, runner

TARGETS = {2: None, 4: 3.0, 8: 3.0, 16: None}
"""By number of micro-batches, how many points from the formula are allowed."""
NUM_PARTS = 8
NUM_RECORDED = 6
_NEVER = "1970-01-01T00:00:00Z"  # records have a time, and these are not kept
NUM_BLOCKS, NUM_STEPS = 6, 5
TIMEOUT_SEC = 120.0


def main() -> None:
    """Measures and prints all figures."""
    parser = runner.make_parser(__doc__, num_repeats=5, name="--processes")
    num_processes = parser.parse_args().num_repeats
    found = runner.take_turns(
        {
            "pipelines": lambda: runner.measure(measure_pipelines),
            "clocks": _measure_clocks,
        },
        num_processes,
        show=str,
    )
    processes = found["pipelines"]
    for num_parts, target in TARGETS.items():
        _print_idle(num_parts, target, [p[f"idle {num_parts}"] for p in processes])
    runner.print_value(
        "step time, timeline off / never on",
        [p["off"] for p in processes],
        "",
        at_least=0.98,
        at_most=1.02,
    )
    runner.print_value(
        "step time with marks / without", [p["on"] for p in processes], "", at_most=1.1
    )
    runner.print_value(
        "largest error of clocks, 2 processes",
        [1000 * bound for bound in found["clocks"]],
        "ms",
        at_most=1.0,
    )


def _print_idle(num_parts: int, target: float | None, shares: list[float]) -> None:
    num_stages = pipelines.NUM_STAGES
    formula = 100 * (num_stages - 1) / (num_parts + num_stages - 1)
    runner.print_value(
        f"idle share, 2 stages, M = {num_parts} (by the formula {formula:.1f} %)",
        [100 * share for share in shares],
        "%",
        at_least=None if target is None else formula - target,
        at_most=None if target is None else formula + target,
    )


def measure_pipelines() -> dict[str, float]:
    """Idle shares by number of micro-batches; step time ratios with a timeline."""
    pipelines.limit_threads()
    found = {}
    for num_parts in TARGETS:
        repl, run = pipelines.build(num_parts)
        document = _recorded(repl, run)
        found[f"idle {num_parts}"] = _idle_share(document)
        if num_parts == NUM_PARTS:
            found["on"] = document["otherData"]["cost"][0]
            found["off"] = _off(run)
    return found


def _off(recorded: Any) -> float:
    """Step time after a timeline, as a multiple of that without one."""
    _, never = pipelines.build(NUM_PARTS)
    never()
    ways = {
        "recorded": functools.partial(_block_sec, recorded),
        "never": functools.partial(_block_sec, never),
    }
    found = runner.take_turns(ways, NUM_BLOCKS, num_warmups=1)
    ratios = [a / b for a, b in zip(found["recorded"], found["never"], strict=True)]
    return statistics.geometric_mean(ratios)


def _block_sec(run: Any) -> float:
    times = []
    for _ in range(NUM_STEPS):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def _recorded(repl: Any, run: Any) -> dict[str, Any]:
    """The file of a timeline of some steps, which the first worker writes."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        run()
        repl.timeline(path, steps=NUM_RECORDED)
        while repl.is_recording:
            run()
        if not path.exists():
            return {}
        return dict(json.loads(path.read_text(encoding="utf-8")))


def _idle_share(document: dict[str, Any]) -> float:
    """The mean over recorded steps of the mean over devices."""
    from results.study import timeline

    shares = []
    for step in range(1, NUM_RECORDED + 1):
        own = [
            event
            for event in document["traceEvents"]
            if event["ph"] != "X" or event["args"]["step"] == step
        ]
        kept = timeline.record({**document, "traceEvents": own}, "0" * 20, _NEVER)
        (tasks,) = timeline.tasks(kept).values()
        shares.append(timeline.idle_share(tasks))
    return statistics.fmean(shares)


def _measure_clocks() -> float:
    """The bound of a timeline of two worker processes, in seconds."""
    return float(
        runner.measure_cluster(
            runner.Process(function=measure_worker, cores=()),
            timeout_sec=TIMEOUT_SEC,
            kinds=["worker"],
            num_workers=2,
            cpusets=[[core] for core in runner.CORES],
        )
    )


def measure_worker() -> float | None:
    """Records one worker of a cluster; worker 0 returns the bound of the clocks."""
    import tensorflow as tf

    import replicator

    repl = replicator.create("multi_worker", num_replicas=2)
    with repl.context():
        weight = tf.Variable(tf.ones([64, 64]))

    def step() -> Any:
        return tf.reduce_sum(replicator.all_mean(tf.matmul(weight, weight)))

    document = _recorded(repl, functools.partial(repl.run, step))
    if not document:
        return None
    return max(clock["bound_sec"] for clock in document["otherData"]["clocks"])


if __name__ == "__main__":
    main()
