"""The pipelines that several benchmarks measure: dense layers in two stages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

WIDTH, ROWS, NUM_LAYERS = 512, 512, 4
NUM_STAGES = 2


def limit_threads() -> None:
    """As many as there are devices, each of which computes one task at a time."""
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(NUM_STAGES)


def build(
    num_microbatches: int, *, is_whole: bool = False, num_replicas: int = 1, **way: Any
) -> tuple[Any, Callable[[], float]]:
    """Replicas on two devices in all, and a function that trains them for a step."""
    import keras
    import tensorflow as tf

    import replicator

    keras.utils.set_random_seed(0)
    num_devices = NUM_STAGES // num_replicas
    repl = replicator.create(
        "in_graph", num_replicas=num_replicas, logical_devices_per_replica=num_devices
    )
    with repl.context():
        stages = []
        for k in range(NUM_STAGES):
            with replicator.logical_device(k % num_devices):
                stages.append(_stage(keras))
        optimizer = repl.wrap_optimizer(keras.optimizers.SGD(0.01))
    pipeline = replicator.Pipeline(stages, num_microbatches=num_microbatches, **way)
    shape = [num_microbatches * ROWS // num_replicas, WIDTH]
    # Each replica has its own: what is the same for all is computed once.
    examples = replicator.PerReplica(
        [tf.random.stateless_normal(shape, (r, 1)) for r in range(num_replicas)]
    )

    def loss_fn(outputs: Any, targets: Any) -> Any:
        return tf.reduce_mean(tf.square(outputs - targets))

    def whole(batch: Any) -> tuple[Any, Any]:
        with tf.GradientTape() as tape:
            values = batch[0]
            for k, stage in enumerate(stages):
                with replicator.logical_device(k % num_devices):
                    values = stage(values)
            loss = loss_fn(values, batch[1])
        variables = [v for stage in stages for v in stage.trainable_variables]
        return loss, list(zip(tape.gradient(loss, variables), variables, strict=True))

    def step(inputs: Any) -> Any:
        batch = inputs, tf.zeros(shape)
        found = (
            whole(batch) if is_whole else pipeline.loss_and_gradients(batch, loss_fn)
        )
        optimizer.apply_gradients(found[1])
        return found[0]

    return repl, lambda: float(repl.run(step, examples)[0])


def _stage(keras: Any) -> Any:
    layers = [keras.layers.Dense(WIDTH, "tanh") for _ in range(NUM_LAYERS)]
    return keras.Sequential([keras.Input((WIDTH,)), *layers])
