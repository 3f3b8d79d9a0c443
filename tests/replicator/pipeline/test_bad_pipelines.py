"""Pipelines that cannot train are refused, in one line that says what to do."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from tiny_models import mean_squared, on_cpus

import replicator
from replicator.errors import PipelineError

BATCH = (np.ones([8, 3], np.float32), np.ones([8, 3], np.float32))


def times(variable):
    return lambda x: x * variable


def refused(message, stages, batch=BATCH, loss_fn=mean_squared, **options):
    repl = on_cpus(1, 2)
    pipeline = replicator.Pipeline(stages, **({"num_microbatches": 2} | options))
    with pytest.raises(PipelineError, match=message):
        repl.run(lambda: pipeline.loss_and_gradients(batch, loss_fn)[0])


def test_a_pipeline_outside_of_a_step():
    pipeline = replicator.Pipeline([tf.identity], num_microbatches=2)
    with pytest.raises(PipelineError, match="called outside a step; call it in"):
        pipeline.loss_and_gradients(BATCH, mean_squared)


def test_pipelines_that_do_not_fit():
    refused(
        "3 stages needs as many logical devices, but a replica here has 2; create the "
        "replicator with logical_devices_per_replica=3",
        [tf.identity] * 3,
    )
    refused(
        "a batch of 8 examples cannot be cut into 3 micro-batches of one size; use a "
        "per-replica batch size that num_microbatches divides, and drop_remainder=True",
        [tf.identity, tf.identity],
        num_microbatches=3,
    )
    refused("a batch without examples cannot be cut", [tf.identity], (1.0, BATCH[1]))
    refused("got a .*; pass a pair of inputs and targets", [tf.identity], BATCH[0])
    with_weights = keras.Sequential([keras.Input((4,)), keras.layers.Dense(4)])
    refused(
        r"stage 1 does not take what stage 0 returns \(float32\[4, 3\]\): Input 0 .* "
        "of layer .* is incompatible .*; make the outputs of a stage the inputs",
        [tf.identity, with_weights],
    )
    refused(  # one per example is not a mean
        "but the loss of a micro-batch is a floating-point scalar; return the mean",
        [tf.identity, tf.identity],
        loss_fn=lambda outputs, targets: tf.reduce_sum(outputs - targets, axis=1),
    )


class Counting(keras.layers.Layer):
    def build(self, _):
        self.seen = self.add_weight(
            name="seen", initializer="zeros", trainable=False, aggregation="sum"
        )

    def call(self, values):
        self.seen.assign(self.seen + tf.reduce_sum(values))
        return values


def test_a_variable_of_two_stages():
    """It is on one device; of two that update it, the last one would win."""
    trained = tf.Variable(2.0, name="shared")
    updated = Counting()
    updated.build([8, 3])
    refused(
        r"variable 'shared:0' is used by stages 0 and 1 .*, but it is on one device",
        [times(trained), times(trained)],
    )
    refused(
        r"variable '.*seen.*' is used by stages 0 and 1 \(counting\w*, counting\w*\), "
        "but it is on one device",
        [updated, updated],
    )


def test_what_stages_would_create():
    class Own(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(3)

        def call(self, x):
            return self.dense(x)

    refused(
        r"stage 1 \(dense\w*\) has no variables yet; make them outside of the step, "
        r"with logical_device\(1\): stage.build\(input_shape\)",
        [tf.identity, keras.layers.Dense(3)],
    )
    refused(
        r"stage 0 creates a variable, which would be on no device of the stage; create "
        r"it outside of the step, with logical_device\(0\)",
        [lambda x: x * tf.Variable(2.0)],
    )
    refused("stage 0 creates a variable", [lambda x: x * keras.Variable(2.0)])
    own = Own()
    own.build((None, 3))  # makes nothing inside
    refused(
        r"stage 0 creates a variable, .* with logical_device\(0\): call the layer "
        r"once, such as stage\(tf.zeros\(shape\)\)",
        [own, tf.identity],
    )


def test_communication_in_a_stage():
    """It would join replicas at other times, and once per micro-batch."""
    repl = on_cpus(1, 1)
    with repl.context():
        weight = tf.Variable(2.0)
        optimizer = repl.wrap_optimizer(keras.optimizers.SGD(0.1))
    optimizer.build([weight])

    def updates(x):
        optimizer.apply_gradients([(tf.ones([]), weight)])
        return x

    refused(
        "stage 1 calls all_reduce, or an optimizer that does, but a stage works on one",
        [tf.identity, replicator.all_mean],
    )
    refused(
        "stage 0 calls all_reduce, or an optimizer that does, .*; communicate, and "
        "apply gradients, before or after the pipeline",
        [updates],
    )


def test_effects_in_a_stage_name_the_line():
    counter = tf.Variable(0.0, trainable=False)

    def prints(x):
        tf.print("seen", tf.shape(x))
        return x

    def calls(x):
        return tf.ensure_shape(tf.numpy_function(np.abs, [x], tf.float32), x.shape)

    def counts(x):
        counter.assign_add(1.0)
        return x

    def draws(x):
        return x + tf.random.normal(tf.shape(x))

    refused(r"stage 0 runs PrintV2 at .*tf.print\(.*, whose effect would", [prints])
    refused(r"stage 0 runs \w*PyFunc at .*numpy_function\(.*whose effect", [calls])
    refused(r"stage 0 changes a tf.Variable \(AssignAdd\w+ at .*assign_add", [counts])
    refused(r"stage 0 draws random numbers by Random\w+ at .*tf.random.no", [draws])


def test_a_tensor_of_the_step_in_a_stage():
    """A gradient through it would be lost without a word."""
    scale = tf.Variable(2.0)
    repl = on_cpus(1, 1)

    def step():
        value = scale * 3.0
        pipeline = replicator.Pipeline([lambda x: x * value], num_microbatches=2)
        return pipeline.loss_and_gradients(BATCH, mean_squared)[0]

    with pytest.raises(PipelineError, match=r"stage 0 uses at .*x \* value.* a tensor"):
        repl.run(step)
