"""Child process of bench_async: one process of a cluster with a parameter server.

    python -m benchmarks.async_steps '{"num_repeats": 5, ...}'

The chief trains the same tiny model by both engines over one coordinator, block by
block, and writes its figures as JSON to the path in ``result``. The others serve.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from replicator import server
from replicator.cluster import environment

if TYPE_CHECKING:
    from collections.abc import Callable

NUM_FEATURES = 16
BATCH_SIZE = 8


def main() -> None:
    """Serves, or measures what the JSON argument asks for."""
    config = json.loads(sys.argv[1])
    if environment.detect().config().kind != "chief":
        server.run([])
    from replicator.backends.asynchronous import MultiWorkerAsyncReplicator

    repl = MultiWorkerAsyncReplicator()
    engines = {"async": _ours(repl), "stock": _stock(repl)}
    measured: dict[str, dict[str, list[float]]] = {}
    for num_steps in config["steps_per_dispatch"]:
        num_dispatches = config["num_updates"] // (num_steps * repl.num_workers)
        for repeat in range(-1, config["num_repeats"]):
            order = list(engines.items())
            for name, (schedule, count) in order if repeat % 2 else reversed(order):
                before = count()
                start = time.perf_counter()
                # Those before the first repeat trace and warm up.
                for _ in range(num_dispatches if repeat >= 0 else 3):
                    schedule(num_steps)
                repl.join()
                repl.connection.coordinator.join()
                duration_sec = time.perf_counter() - start
                if repeat < 0:
                    continue
                num_updates = num_dispatches * num_steps * repl.num_workers
                figures = measured.setdefault(
                    f"{name} k={num_steps}", {"updates_per_sec": [], "num_lost": []}
                )
                figures["updates_per_sec"].append(num_updates / duration_sec)
                figures["num_lost"].append(num_updates - (count() - before))
    Path(config["result"]).write_text(json.dumps(measured), encoding="utf-8")


def _ours(repl: Any) -> tuple[Callable[[int], None], Callable[[], int]]:
    """Our engine: schedules one dispatch per worker; counts applied updates."""
    with repl.context():
        model, optimizer = _make_model()
        optimizer = repl.wrap_optimizer(optimizer)
    step = _make_step(model, optimizer)
    inputs = repl.make_input_iterator(lambda _: _dataset())
    return (
        lambda num_steps: repl.schedule(step, inputs, num_steps=num_steps),
        lambda: int(optimizer.iterations.numpy()),
    )


def _stock(repl: Any) -> tuple[Callable[[int], None], Callable[[], int]]:
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
    functions: dict[int, Any] = {}

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
        function = functions.setdefault(num_steps, make(num_steps))
        for _ in range(repl.num_workers):
            coordinator.schedule(function, args=(iterator,))

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

    return tf.data.Dataset.from_tensors(tf.ones([BATCH_SIZE, NUM_FEATURES])).repeat()


if __name__ == "__main__":
    main()
