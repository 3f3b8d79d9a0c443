"""How fast asynchronous updates are, as ratios measured in one run.

    python -m benchmarks.bench_async [--repeats N] [--updates N]

A perceptron of three layers on two workers and one parameter server, all on one machine
and more processes than cores. The peer is ``tf.distribute.ParameterServerStrategy``
with Keras' own updates, over the same coordinator, in the same processes. Every repeat
runs a block of updates with each, the order reversed in every other repeat (ABBA);
ratios are paired within a repeat. An update is lost when the optimizer's own count of
updates misses it.
"""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING, Any

from benchmarks import runner

if TYPE_CHECKING:
    from collections.abc import Callable

    Engine = tuple[Callable[[int], None], Callable[[], int]]

NUM_FEATURES, PER_REPLICA_BATCH_SIZE = 16, 8
STEPS_PER_DISPATCH = (1, 10)
TIMEOUT_SEC = 280.0


def main() -> None:
    parser = runner.make_parser(__doc__, num_repeats=7)
    parser.add_argument(
        "--updates", type=runner.positive, default=1000, help="of one block"
    )
    given = parser.parse_args()
    num_cores = len(os.sched_getaffinity(0))
    print(f"2 workers, 1 server, 1 chief on {num_cores} cores", flush=True)
    arguments = {"num_repeats": given.num_repeats, "num_updates": given.updates}
    measured = runner.measure_cluster(
        runner.Process(function=measure, arguments=arguments, cores=()),
        timeout_sec=TIMEOUT_SEC,
        kinds=["chief"],
        num_workers=2,
        num_ps=1,
        has_chief=True,
    )
    for num_steps, by_engine in zip(STEPS_PER_DISPATCH, measured, strict=True):
        rates = {}
        for engine, blocks in by_engine.items():
            rates[engine] = [block["updates_per_sec"] for block in blocks]
            title = f"{engine} k={num_steps}"
            runner.print_figure(title, rates[engine], unit="updates/s")
            num_lost = sum(block["num_lost"] for block in blocks)
            num_all = sum(block["num_updates"] for block in blocks)
            print(f"{title}: {num_lost} of {num_all} updates lost")
        title = f"updates per second, k={num_steps}: async / ParameterServerStrategy"
        runner.print_figure(title, rates["async"], rates["stock"], at_least=1.0)


def measure(num_repeats: int, num_updates: int) -> list[dict[str, list[Any]]] | None:
    """Serves; the chief returns the blocks of both engines, by steps per dispatch."""
    from replicator.cluster import environment

    if environment.detect().config().kind != "chief":
        from replicator import server

        server.run([])
    from replicator.backends.asynchronous import MultiWorkerAsyncReplicator

    repl = MultiWorkerAsyncReplicator()
    engines = {"async": _ours(repl), "stock": _stock(repl)}
    return [
        runner.interleave(
            {
                name: functools.partial(_block, repl, engine, num_steps, num_updates)
                for name, engine in engines.items()
            },
            num_repeats,
            num_warmups=1,  # traces
        )
        for num_steps in STEPS_PER_DISPATCH
    ]


def _block(
    repl: Any, engine: Engine, num_steps: int, num_updates: int
) -> dict[str, float]:
    """Updates per second of one block, and how many of them were lost."""
    schedule, count = engine
    num_dispatches = max(1, num_updates // (num_steps * repl.num_workers))
    before = count()

    def run() -> None:
        for _ in range(num_dispatches):
            schedule(num_steps)
        repl.join()
        repl.connection.coordinator.join()

    duration_sec = runner.seconds(run)
    num_made = num_dispatches * num_steps * repl.num_workers
    return {
        "updates_per_sec": num_made / duration_sec,
        "num_updates": num_made,
        "num_lost": num_made - (count() - before),
    }


def _ours(repl: Any) -> Engine:
    with repl.context():
        model, optimizer = _make_model()
        optimizer = repl.wrap_optimizer(optimizer)
    step = _make_step(model, optimizer)
    inputs = repl.make_input_iterator(lambda _: _dataset())
    return (
        lambda num_steps: repl.schedule(step, inputs, num_steps=num_steps),
        lambda: int(optimizer.iterations.numpy()),
    )


def _stock(repl: Any) -> Engine:
    """ParameterServerStrategy as its documentation shows, on the same coordinator."""
    import tensorflow as tf

    strategy, coordinator = repl.connection.strategy, repl.connection.coordinator
    with strategy.scope():
        model, optimizer = _make_model()
        optimizer.build(model.trainable_variables)
    step = _make_step(model, optimizer)
    dataset = coordinator.create_per_worker_dataset(
        lambda: strategy.distribute_datasets_from_function(lambda _: _dataset())
    )
    iterator = iter(dataset)

    @functools.cache
    def make(num_steps: int) -> Any:
        @tf.function
        def run_steps(iterator: Any) -> Any:
            loss = 0.0
            for _ in tf.range(num_steps):
                loss = strategy.run(step, args=(next(iterator),))
            return loss

        @tf.function
        def one_step(iterator: Any) -> Any:
            return strategy.run(step, args=(next(iterator),))

        return one_step if num_steps == 1 else run_steps

    def schedule(num_steps: int) -> None:
        for _ in range(repl.num_workers):
            coordinator.schedule(make(num_steps), args=(iterator,))

    return schedule, lambda: int(optimizer.iterations.numpy())


def _make_model() -> tuple[Any, Any]:
    import keras

    model = keras.Sequential(
        [
            keras.Input((NUM_FEATURES,)),
            keras.layers.Dense(32, activation="relu"),
            keras.layers.Dense(32, activation="relu"),
            keras.layers.Dense(1),
        ]
    )
    return model, keras.optimizers.SGD(1e-3, momentum=0.9)


def _make_step(model: Any, optimizer: Any) -> Callable[[Any], Any]:
    import tensorflow as tf

    def step(batch: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(batch, training=True) - 1.0) ** 2)
        weights = model.trainable_variables
        grads = tape.gradient(loss, weights)
        optimizer.apply_gradients(zip(grads, weights, strict=True))
        return loss

    return step


def _dataset() -> Any:
    import tensorflow as tf

    return tf.data.Dataset.from_tensors(
        tf.ones([PER_REPLICA_BATCH_SIZE, NUM_FEATURES])
    ).repeat()


if __name__ == "__main__":
    main()
