"""How fast the in-graph engine is, as ratios measured in one run.

    python -m benchmarks.bench_replicator [--repeats N] [--cases NAME...]

ResNet-50, 64 pixels, 8 examples per replica, and SN-GAN, 16 pixels and 64 examples,
on synthetic data and two cores. Every repeat runs every case once, each in fresh
processes, the order reversed in every other repeat (ABBA), and ratios are paired within
a repeat. The *ceiling* is two single-device programs side by side, on TensorFlow's own
graph, pinned to one core each, that never communicate.

With ``--allocator keep`` the C library keeps freed memory instead of giving it back to
the kernel, as in sweeps (``harness/run/trial_tree.py``). TensorFlow's CPU allocator is
plain malloc, so with the defaults every large temporary costs page faults; programs
with many of them (stock Keras updates) gain a lot, and a comparison that hides this
would not be fair.
"""

from __future__ import annotations

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

NUM_STEPS = 20
NUM_WARMUP_STEPS = 15
"""A heap that keeps freed memory grows until about the 14th step."""
NUM_BLOCKS = 12
NUM_STEPS_PER_BLOCK = 10

# By workload.
NUM_EXAMPLES = {"resnet50": 8, "sngan": 64}


class Case(NamedTuple):
    """What is measured: the processes of one kind, started together.

    Attributes:
      backend: Of the replicator.
      num_replicas: In each process.
      cores: Of each process.
      workload: Whose step is measured.
      num_steps: Of the window.
    """

    backend: str
    num_replicas: int
    cores: list[list[int]]
    workload: str = "resnet50"
    num_steps: int = NUM_STEPS


CASES = {
    "in_graph x2": Case("in_graph", 2, [[*CORES]]),
    "tf_mirrored x2": Case("tf_mirrored", 2, [[*CORES]]),
    "ceiling x2": Case("single", 1, [[core] for core in CORES]),
    "in_graph x4": Case("in_graph", 4, [[*CORES]]),
    "tf_mirrored x4": Case("tf_mirrored", 4, [[*CORES]]),
    # Measured for their start only, so few steps follow.
    "in_graph x8": Case("in_graph", 8, [[*CORES]], num_steps=2),
    "tf_mirrored x8": Case("tf_mirrored", 8, [[*CORES]], num_steps=2),
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
    measured = runner.take_turns(
        {name: functools.partial(_run_case, CASES[name]) for name in arguments.cases},
        arguments.num_repeats,
        show=lambda figures: (
            f"{figures['examples_per_sec']:6.1f} images/s, "
            f"first step {figures['time_to_first_step_sec']:5.1f} s"
        ),
    )
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


def _run_case(case: Case) -> dict[str, float]:
    """Runs the processes of one case together; throughput is of all of them."""
    arguments = case._asdict()
    cores = arguments.pop("cores")
    outputs = runner.measure_together(
        [
            runner.Process(function=measure, arguments=arguments, cores=own)
            for own in cores
        ]
    )
    windows = [window for _, window in outputs]
    start = max(window["start_sec"] for window in windows)
    end = max(window["end_sec"] for window in windows)
    return {
        "examples_per_sec": sum(w["num_examples"] for w in windows) / (end - start),
        "time_to_first_step_sec": max(ready for ready, _ in outputs),
    }


def measure(
    backend: str, num_replicas: int, workload: str, num_steps: int
) -> Iterator[Any]:
    """Yields the time to the first step when warm, then the window of all steps."""
    _set_threads()
    start = time.perf_counter()
    program = _build(backend, num_replicas, workload)
    program.run()
    time_to_first_step_sec = time.perf_counter() - start
    if num_steps == NUM_STEPS:  # the others are measured for their start only
        for _ in range(NUM_WARMUP_STEPS):
            program.run()
    yield time_to_first_step_sec
    start = time.monotonic()
    for _ in range(num_steps):
        program.run()
    yield {
        "start_sec": start,
        "end_sec": time.monotonic(),
        "num_examples": program.global_batch_size * num_steps,
    }


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

    module = importlib.import_module(f"workloads.{workload}.workload")
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
    from workloads.resnet50 import losses
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
            loss = tf.reduce_mean(losses.softmax_cross_entropy(batch["label"], logits))
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
