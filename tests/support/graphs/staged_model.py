"""A model in stages, trained in a pipeline or in one piece, for tests of pipelines."""

import functools

import keras
import numpy as np
import tensorflow as tf

import replicator

WIDTH, PARTS = 8, 4


def mean_squared(outputs, targets):
    return tf.reduce_mean(tf.square(outputs - targets))


def on_cpus(num_replicas, num_stages, **options):
    """A replicator whose replicas have a CPU device for each stage."""
    return replicator.create(
        "in_graph",
        num_replicas=num_replicas,
        devices=[f"CPU:{i}" for i in range(num_replicas * num_stages)],
        logical_devices_per_replica=num_stages,
        **options,
    )


class Model:
    """Stages on a replicator, and a step that trains them, in a pipeline or not."""

    def __init__(
        self, num_replicas, num_stages, layers=(), *, of_optimizer=None, **options
    ):
        keras.utils.set_random_seed(0)
        self.repl = on_cpus(num_replicas, num_stages, **options)
        self.stages = []
        with self.repl.context():
            for k in range(num_stages):
                with replicator.logical_device(k):
                    self.stages.append(
                        keras.Sequential(
                            [
                                keras.Input((WIDTH,)),
                                keras.layers.Dense(WIDTH, activation="tanh"),
                                *(make() for make in layers),
                            ]
                        )
                    )
            self.optimizer = self.repl.wrap_optimizer(
                keras.optimizers.Adam(0.01), **(of_optimizer or {})
            )
        self.is_scaled = "loss_scale" in (of_optimizer or {})

    def pipeline(self, **options):
        stages = [functools.partial(stage, training=True) for stage in self.stages]
        options = {"num_microbatches": PARTS} | options
        return replicator.Pipeline(stages, **options)

    def train(self, pipeline=None, num_steps=20):
        """Losses of each step and all weights after the last."""

        def loss_fn(outputs, targets):
            loss = mean_squared(outputs, targets)
            return self.optimizer.scale_loss(loss) if self.is_scaled else loss

        def step(batch):
            if pipeline is None:
                with tf.GradientTape() as tape:
                    values = batch[0]
                    for k, stage in enumerate(self.stages):
                        with replicator.logical_device(k):
                            values = stage(values, training=True)
                    loss = loss_fn(values, batch[1])
                variables = [v for s in self.stages for v in s.trainable_variables]
                found = zip(tape.gradient(loss, variables), variables, strict=True)
            else:
                loss, found = pipeline.loss_and_gradients(batch, loss_fn)
            self.optimizer.apply_gradients(found)
            return loss

        self.step = step  # explain() speaks of steps that still exist
        inputs = self.repl.make_input_iterator(batches)
        losses = [
            float(self.repl.reduce("mean", self.repl.run(step, inputs)))
            for _ in range(num_steps)
        ]
        self.repl.assert_in_sync()
        weights = [v.numpy().ravel() for s in self.stages for v in s.variables]
        return np.array(losses), np.concatenate(weights)


def examples():
    """Four batches of one replica."""
    return np.random.default_rng(0).standard_normal((64, WIDTH), np.float32)


def batches(context):
    """Four examples for each micro-batch of a replica."""
    x = examples()
    data = tf.data.Dataset.from_tensor_slices((x, np.roll(x, 1, axis=1)))
    data = data.shard(context.num_input_pipelines, context.input_pipeline_id)
    return data.repeat().batch(4 * PARTS, drop_remainder=True)
