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
import os
import statistics
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from benchmarks import runner
from benchmarks.runner import CORES, Figure

NUM_BLOCKS, NUM_STEPS = 10, 5
NUM_WARMUP_STEPS = 15
"""A heap that keeps freed memory grows until about the 14th step."""
NUM_BLOCKS_OF_LOOP, NUM_STEPS_OF_LOOP = 12, 10
NUM_EXAMPLES = {"resnet50": 8, "sngan": 64}
EACH = tuple((core,) for core in CORES)


class Case(NamedTuple):
    """What is measured: the processes of one kind, started together."""

    backend: str  # Of the replicator.
    num_replicas: int  # In each process.
    workload: str = "resnet50"  # Whose step is measured.
    cores: tuple[Sequence[int], ...] = (CORES,)  # Of each process.
    starts_only: bool = False  # Whether nothing but its first step counts.


CASES = {
    "in_graph x2": Case("in_graph", 2),
    "tf_mirrored x2": Case("tf_mirrored", 2),
    "ceiling x2": Case("single", 1, cores=EACH),
    "in_graph x4": Case("in_graph", 4),
    "tf_mirrored x4": Case("tf_mirrored", 4),
    "in_graph x8": Case("in_graph", 8, starts_only=True),
    "tf_mirrored x8": Case("tf_mirrored", 8, starts_only=True),
    "SN-GAN, in_graph x2": Case("in_graph", 2, "sngan"),
    "SN-GAN, ceiling x2": Case("single", 1, "sngan", EACH),
}
PLAIN = "single / plain loop"
THROUGHPUT, FIRST = "throughput", "time to first step"
FIGURES = [
    *(
        Figure(f"{what}: {one} / {two}", (one, what), (two, what), **{bound: target})
        for what, one, two, bound, target in (
            (THROUGHPUT, "in_graph x2", "tf_mirrored x2", "at_least", 1.25),
            (THROUGHPUT, "in_graph x2", "ceiling x2", "at_least", 1.1),
            (
                *(THROUGHPUT, "SN-GAN, in_graph x2", "SN-GAN, ceiling x2"),
                *("at_least", 1.05),
            ),
            (THROUGHPUT, "in_graph x4", "tf_mirrored x4", "at_least", 1.5),
            (FIRST, "in_graph x4", "tf_mirrored x4", "at_most", 0.6),
            (FIRST, "in_graph x8", "tf_mirrored x8", "at_most", 0.5),
        )
    ),
    Figure(
        "step time: single / plain tf.function loop",
        (PLAIN, "single"),
        (PLAIN, "plain"),
        at_most=1.01,
    ),
]


def main() -> None:
    from harness.run import trial_tree
    from results.records.models import Allocator

    parser = runner.make_parser(__doc__, num_repeats=4)
    names = [allocator.value for allocator in Allocator]
    parser.add_argument("--allocator", choices=names, default=Allocator.DEFAULT.value)
    every = [*CASES, PLAIN]
    parser.add_argument("--cases", nargs="+", choices=every, default=every)
    given = parser.parse_args()
    allocator = Allocator(given.allocator)
    os.environ.update(trial_tree.allocator_variables(allocator, os.environ))
    print(f"allocator: {allocator.value}; cores {CORES}", flush=True)
    cases = [name for name in given.cases if name in CASES]
    by_case: dict[str, list[dict[str, float]]] = {name: [] for name in cases}
    for repeat in range(given.num_repeats):
        figures = _repetition(cases[:: -1 if repeat % 2 else 1])
        for name in cases:
            print(f"repeat {repeat} {name:20} {_shown(figures[name])}", flush=True)
            by_case[name].append(figures[name])
    if PLAIN in given.cases:
        blocks = runner.measure(compare_with_plain_loop, cores=CORES[:1])
        pairs = zip(blocks["single"], blocks["plain"], strict=True)
        by_case[PLAIN] = [{"single": one, "plain": two} for one, two in pairs]
    runner.print_figures(FIGURES, by_case)


def _repetition(names: list[str]) -> dict[str, dict[str, float]]:
    """Figures of each case: first steps, one after the other, then blocks of all."""
    figures: dict[str, dict[str, float]] = {}
    with contextlib.ExitStack() as living:
        blocks = {}
        for name in names:
            case = CASES[name]
            arguments = case._asdict()
            cores, starts_only = arguments.pop("cores"), arguments.pop("starts_only")
            processes = [
                runner.Process(
                    function=measure, arguments=arguments, cores=process_cores
                )
                for process_cores in cores
            ]
            with contextlib.ExitStack() as stack:
                ready, resume = stack.enter_context(runner.together(processes))
                figures[name] = {FIRST: max(ready)}
                if not starts_only:
                    living.enter_context(stack.pop_all())
                    blocks[name] = resume
        rates_of = runner.interleave(blocks, NUM_BLOCKS, num_warmups=1)
        for name, rates in rates_of.items():
            # Of all processes of a case.
            figures[name][THROUGHPUT] = statistics.geometric_mean(map(sum, rates))
    return figures


def _shown(figures: dict[str, float]) -> str:
    rate, text = figures.get(THROUGHPUT), f"first step {figures[FIRST]:5.1f} s"
    return text if rate is None else f"{rate:6.1f} images/s, {text}"


def measure(backend: str, num_replicas: int, workload: str) -> Iterator[float]:
    """Yields the time to the first step, then examples per second of each block."""
    runner.set_threads()
    start = time.perf_counter()
    program = _build(backend, num_replicas, workload)
    program.run()
    yield time.perf_counter() - start
    runner.seconds(program.run, NUM_WARMUP_STEPS)
    while True:
        yield program.global_batch_size / runner.seconds(program.run, NUM_STEPS)


def compare_with_plain_loop() -> dict[str, list[float]]:
    """Median step times of blocks of `single` and of a loop without the replicator."""
    runner.set_threads()
    ways = {"single": _build("single", 1, "resnet50").run, "plain": _plain_loop()}
    for run in (*ways.values(),) * (1 + NUM_WARMUP_STEPS):
        run()

    def block(name: str) -> float:
        return runner.medians({name: ways[name]}, NUM_STEPS_OF_LOOP)[name]

    blocks = {name: functools.partial(block, name) for name in ways}
    return runner.interleave(blocks, NUM_BLOCKS_OF_LOOP)


def _build(backend: str, num_replicas: int, workload: str) -> Any:
    import replicator

    repl = replicator.create(backend, num_replicas=num_replicas)
    return runner.program(workload, repl, batch=NUM_EXAMPLES[workload])


def _plain_loop() -> Any:
    """ResNet-50 as a user without this library writes it, with the fused update."""
    import tensorflow as tf

    import replicator
    from workloads import WORKLOADS, resnet50
    from workloads.data import Images

    config = WORKLOADS["resnet50"].make_config("laptop", {})
    model = resnet50.ResNet50(config)
    weights = [w.value for w in model.trainable_variables]
    slots = [tf.Variable(tf.zeros_like(w)) for w in weights]
    images = Images(None, config, data="synthetic", seed=0)
    dataset = images.batches(replicator.InputContext(), 8)

    @tf.function
    def step(iterator: Any) -> Any:
        batch = next(iterator)
        with tf.GradientTape() as tape:
            logits = model(batch["image"], training=True)
            losses = resnet50.softmax_cross_entropy(batch["label"], logits)
            loss = tf.reduce_mean(losses)
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
