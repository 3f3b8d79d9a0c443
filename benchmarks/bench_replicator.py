"""How fast the in-graph engine is, as ratios measured in one run.

    python -m benchmarks.bench_replicator [--repeats N] [--cases NAME...]

ResNet-50, 64 pixels, 8 examples per replica, and SN-GAN, 16 pixels and 64 examples,
on synthetic data and two cores. Every repeat starts fresh processes of every case, one
case after the other, which then take turns of a few steps, in an order that is reversed
in every other round; ratios are paired within a repeat. The *ceiling* is two
single-device programs side by side, on TensorFlow's own graph, pinned to one core each,
that never communicate.

With ``--allocator keep`` the C library keeps freed memory instead of giving it back to
the kernel, as in sweeps (``harness/run/trial_tree.py``). TensorFlow's CPU allocator is
plain malloc, so with the defaults every large temporary costs page faults; programs
with many of them (stock Keras updates) gain a lot, and a comparison that hides this
would not be fair.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import statistics
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from benchmarks import runner
from benchmarks.runner import CORES
from harness.run import trial_tree
from results.records.models import Allocator

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

NUM_TURNS, NUM_STEPS = 10, 5
NUM_WARMUP_STEPS = 15
"""A heap that keeps freed memory grows until about the 14th step."""
NUM_BLOCKS = 12
NUM_STEPS_PER_BLOCK = 10

# By workload.
NUM_EXAMPLES = {"resnet50": 8, "sngan": 64}


class Case(NamedTuple):
    """What is measured: the processes of one kind, started together."""

    backend: str  # Of the replicator.
    num_replicas: int  # In each process.
    cores: list[list[int]]  # Of each process.
    workload: str = "resnet50"  # Whose step is measured.
    starts_only: bool = False  # Whether nothing but its first step counts.


CASES = {
    "in_graph x2": Case("in_graph", 2, [[*CORES]]),
    "tf_mirrored x2": Case("tf_mirrored", 2, [[*CORES]]),
    "ceiling x2": Case("single", 1, [[core] for core in CORES]),
    "in_graph x4": Case("in_graph", 4, [[*CORES]]),
    "tf_mirrored x4": Case("tf_mirrored", 4, [[*CORES]]),
    "in_graph x8": Case("in_graph", 8, [[*CORES]], starts_only=True),
    "tf_mirrored x8": Case("tf_mirrored", 8, [[*CORES]], starts_only=True),
    "SN-GAN, in_graph x2": Case("in_graph", 2, [[*CORES]], "sngan"),
    "SN-GAN, ceiling x2": Case("single", 1, [[core] for core in CORES], "sngan"),
}

THROUGHPUT = "throughput", "examples_per_sec"
FIRST_STEP = "time to first step", "time_to_first_step_sec"
FIGURES: list[tuple[tuple[str, str], str, str, dict[str, float]]] = [
    (THROUGHPUT, "in_graph x2", "tf_mirrored x2", {"at_least": 1.25}),
    (THROUGHPUT, "in_graph x2", "ceiling x2", {"at_least": 1.1}),
    (THROUGHPUT, "SN-GAN, in_graph x2", "SN-GAN, ceiling x2", {"at_least": 1.05}),
    (THROUGHPUT, "in_graph x4", "tf_mirrored x4", {"at_least": 1.5}),
    (FIRST_STEP, "in_graph x4", "tf_mirrored x4", {"at_most": 0.6}),
    (FIRST_STEP, "in_graph x8", "tf_mirrored x8", {"at_most": 0.5}),
]


def main() -> None:
    """Runs all cases and prints measurements, ratios and targets."""
    parser = runner.make_parser(__doc__, num_repeats=4)
    names = [allocator.value for allocator in Allocator]
    parser.add_argument("--allocator", choices=names, default=Allocator.DEFAULT.value)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    arguments = parser.parse_args()
    allocator = Allocator(arguments.allocator)
    os.environ.update(trial_tree.allocator_variables(allocator, os.environ))
    print(f"allocator: {allocator.value}; cores {CORES}", flush=True)
    measured: dict[str, list[dict[str, float]]] = {n: [] for n in arguments.cases}
    for repeat in range(arguments.num_repeats):
        found = _generation(arguments.cases[:: -1 if repeat % 2 else 1])
        for name in arguments.cases:
            print(f"repeat {repeat} {name:20} {_shown(found[name])}", flush=True)
            measured[name].append(found[name])
    for (title, metric), first, second, target in FIGURES:
        if first in measured and second in measured:
            runner.print_ratio(
                f"{title}: {first} / {second}",
                *([one[metric] for one in measured[name]] for name in (first, second)),
                **target,
            )
    if len(arguments.cases) == len(CASES):
        blocks = runner.measure(
            compare_with_plain_loop,
            arguments={"num_blocks": NUM_BLOCKS},
            cores=CORES[:1],
        )
        runner.print_ratio(
            "step time: single / plain tf.function loop",
            blocks["single"],
            blocks["plain"],
            at_most=1.01,
        )


def _generation(names: list[str]) -> dict[str, dict[str, float]]:
    """Figures of each case: first steps, one after the other, then turns of all."""
    figures: dict[str, dict[str, float]] = {}
    with contextlib.ExitStack() as living:
        turns = {}
        for name in names:
            with contextlib.ExitStack() as stack:
                together = runner.together(_processes(CASES[name]))
                ready, resume = stack.enter_context(together)
                figures[name] = {FIRST_STEP[1]: max(ready)}
                if not CASES[name].starts_only:
                    living.enter_context(stack.pop_all())
                    turns[name] = functools.partial(_rate, resume)
        found = runner.take_turns(turns, NUM_TURNS, num_warmups=1)
        for name, rates in found.items():
            figures[name][THROUGHPUT[1]] = statistics.geometric_mean(rates)
    return figures


def _processes(case: Case) -> list[runner.Process]:
    arguments = {
        "backend": case.backend,
        "num_replicas": case.num_replicas,
        "workload": case.workload,
    }
    return [
        runner.Process(function=measure, arguments=arguments, cores=cores)
        for cores in case.cores
    ]


def _rate(resume: Callable[[], list[float]]) -> float:
    """Examples per second of all processes of a case."""
    return sum(resume())


def _shown(figures: dict[str, float]) -> str:
    rate, first = figures.get(THROUGHPUT[1]), figures[FIRST_STEP[1]]
    text = f"first step {first:5.1f} s"
    return text if rate is None else f"{rate:6.1f} images/s, {text}"


def measure(backend: str, num_replicas: int, workload: str) -> Iterator[float]:
    """Yields the time to the first step, then examples per second of each turn."""
    _set_threads()
    start = time.perf_counter()
    program = _build(backend, num_replicas, workload)
    program.run()
    yield time.perf_counter() - start
    for _ in range(NUM_WARMUP_STEPS):
        program.run()
    while True:
        start = time.perf_counter()
        for _ in range(NUM_STEPS):
            program.run()
        seconds = time.perf_counter() - start
        yield program.global_batch_size * NUM_STEPS / seconds


def compare_with_plain_loop(num_blocks: int) -> dict[str, list[float]]:
    """Median step times of blocks of `single` and of a loop without the replicator."""
    _set_threads()
    ways = {"single": _build("single", 1, "resnet50").run, "plain": _plain_loop()}
    for run in (*ways.values(),) * (1 + NUM_WARMUP_STEPS):
        run()
    turns = {name: functools.partial(_block, run) for name, run in ways.items()}
    return runner.take_turns(turns, num_blocks)


def _block(run: Callable[[], Any]) -> float:
    """The median time of some steps."""
    times = []
    for _ in range(NUM_STEPS_PER_BLOCK):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def _set_threads() -> None:
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(len(os.sched_getaffinity(0)))


def _build(kind: str, num_replicas: int, workload: str) -> Any:
    import replicator
    from workloads.catalog import WORKLOADS

    module = importlib.import_module(WORKLOADS[workload].module)
    return module.WORKLOAD.build(
        replicator.create(kind, num_replicas=num_replicas),
        preset="laptop",
        data="synthetic",
        per_replica_batch_size=NUM_EXAMPLES[workload],
        seed=0,
        options={},
    )


def _plain_loop() -> Any:
    """ResNet-50 as a user without this library writes it, with the fused update."""
    import tensorflow as tf

    from workloads.data import pipeline
    from workloads.resnet50 import model as model_lib
    from workloads.resnet50.config import make_config
    from workloads.resnet50.model import ResNet50

    config = make_config("laptop", {})
    model = ResNet50(
        num_classes=config.num_classes,
        version=config.version,
        zero_gamma=config.zero_gamma,
        compute_dtype=config.compute_dtype,
        seed=0,
    )
    weights = [w.value for w in model.trainable_variables]
    slots = [tf.Variable(tf.zeros_like(w)) for w in weights]
    dataset = pipeline.synthetic_dataset(
        pipeline.PipelineConfig(
            per_replica_batch_size=8,
            image_size=config.image_size,
            seed=0,
            shuffle_buffer_size=config.shuffle_buffer_size,
            num_threads=config.num_input_threads,
        ),
        num_classes=config.num_classes,
    )

    @tf.function
    def step(iterator: Any) -> Any:
        batch = next(iterator)
        with tf.GradientTape() as tape:
            logits = model(batch["image"], training=True)
            loss = tf.reduce_mean(
                model_lib.softmax_cross_entropy(batch["label"], logits)
            )
        for weight, slot, grad in zip(
            weights, slots, tape.gradient(loss, weights), strict=True
        ):
            tf.raw_ops.ResourceApplyKerasMomentum(
                var=weight.handle, accum=slot.handle, lr=0.003, grad=grad, momentum=0.9
            )
        return loss

    iterator = iter(dataset)
    return lambda: float(step(iterator))


if __name__ == "__main__":
    main()
