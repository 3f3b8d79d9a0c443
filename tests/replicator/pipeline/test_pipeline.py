"""A model in stages trains as in one piece, with all options, or is refused."""

import collections
import functools
import itertools
import re

import keras
import numpy as np
import pytest
import tensorflow as tf
from graphs import before, partitions, together
from tiny_models import (
    PARTS,
    WIDTH,
    Model,
    batches,
    mean_squared,
    on_cpus,
    staged_examples,
)

import replicator
from replicator import PipelineError

SCHEDULES = ("fill_drain", "one_forward_one_backward")


def test_each_micro_batch_and_step_draws_its_own_mask():
    repl = on_cpus(1, 1)
    dropout = keras.layers.Dropout(0.5, seed=3)
    pipeline = replicator.Pipeline(
        [functools.partial(dropout, training=True)], num_microbatches=2
    )

    def step(powers):
        ones = tf.ones_like(powers)
        return pipeline.loss_and_gradients(
            (ones, powers), lambda kept, power: tf.reduce_sum(kept * power)
        )[0]

    # The loss says of each element whether it was kept: 2 * 2^i, over 2 micro-batches.
    powers = tf.reshape(2.0 ** tf.range(16.0), [2, 8])
    masks = [int(repl.run(lambda: step(powers))[0]) for _ in range(2)]

    drawn = [mask >> shift & 255 for mask in masks for shift in (0, 8)]
    assert len(set(drawn)) == 4


def test_batch_norm_has_statistics_of_micro_batches_and_one_update():
    """GPipe, appendix: moving averages from all micro-batches, once per batch."""
    model = Model(1, 2, [keras.layers.BatchNormalization])
    norm = model.stages[0].layers[1]
    dense = model.stages[0].layers[0]
    inputs = staged_examples()[: 4 * PARTS]
    values = np.array_split(np.tanh(inputs @ dense.kernel + dense.bias), PARTS)
    means = np.mean([part.mean(axis=0) for part in values], axis=0)
    variances = np.mean([part.var(axis=0) for part in values], axis=0)

    model.train(model.pipeline(recompute=True), 1)

    np.testing.assert_allclose(norm.moving_mean, 0.01 * means, rtol=1e-4, atol=1e-7)
    np.testing.assert_allclose(norm.moving_variance, 0.99 + 0.01 * variances, rtol=1e-5)


def test_gradients_of_low_precision_are_summed_in_float32():
    """256 + 1 is 256 in bfloat16, so that small micro-batches would vanish."""
    repl = on_cpus(1, 1)
    with repl.context():
        weight = tf.Variable(tf.ones([], tf.bfloat16))
    values = tf.constant([256.0, *[1.0] * 31], tf.bfloat16)

    def step():
        pipeline = replicator.Pipeline([lambda x: x * weight], num_microbatches=32)
        return pipeline.loss_and_gradients(
            (values, values), lambda x, _: tf.reduce_sum(x)
        )[1][0][0]

    assert float(repl.run(step)[0]) == float(tf.cast(287 / 32, tf.bfloat16))


def test_mixed_precision_casts_weights_once_per_step():
    layers = [
        lambda: keras.layers.Dense(WIDTH, dtype="mixed_bfloat16"),
        lambda: keras.layers.Activation("linear", dtype="float32"),
    ]
    plain, cut = (Model(1, 2, layers) for _ in range(2))
    found = {}
    losses, weights = plain.train(num_steps=2)

    def train():
        found["trained"] = cut.train(cut.pipeline(recompute=True), num_steps=2)

    casts = [
        node
        for graph in partitions(train)
        for node in graph.node
        if node.op == "Cast" and reads_a_variable(graph, node)
    ]

    np.testing.assert_allclose(found["trained"][0], losses, rtol=1e-2)
    np.testing.assert_allclose(found["trained"][1], weights, atol=2e-2)
    assert 2 * 2 == len(casts), [node.name for node in casts]


def reads_a_variable(graph, node):
    by_name = {other.name: other for other in graph.node}
    source = by_name.get(node.input[0].partition(":")[0])
    while source is not None and source.op == "Identity":
        source = by_name.get(source.input[0].partition(":")[0])
    return source is not None and source.op == "ReadVariableOp"


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_executed_graph_has_the_order_of_the_schedule(schedule):
    """Every product of a task is before every one of the next task of its device."""
    model = Model(2, 2, variable_placement="mirrored")
    pipeline = model.pipeline(schedule=schedule)

    found = partitions(lambda: model.train(pipeline, 1))

    # A stage's gradients are reduced when its own tasks are over, not all tasks.
    joined = together(found)
    ended_before = before(joined)
    last = f"/stage_0_{pipeline.schedule[0][-1]}/"
    is_last_needed = {
        (int(node.device[-1]) % 2, any(last in n for n in ended_before(node.name)))
        for node in joined.node
        if node.op == "AddN" and "/collective_" in node.name
    }
    assert {(0, True), (1, False)} == is_last_needed
    num_checked = 0
    for graph in found:
        ended_before = before(graph)
        tasks = products_by_task(graph)
        for replica, k in {(replica, k) for replica, k, _ in tasks}:
            own = [tasks[replica, k, str(task)] for task in pipeline.schedule[k]]
            for first, second in itertools.pairwise(own):
                assert all(first <= ended_before(product) for product in second)
                num_checked += 1
        # A replica waits for no task of another one.
        for (replica, *_), own in tasks.items():
            waited = set().union(*(ended_before(product) for product in own))
            assert not [
                n for n in waited if n.startswith(f"replica_{1 - replica}/stage")
            ]
    assert num_checked == 2 * 2 * (2 * PARTS - 1)


def products_by_task(graph):
    found = collections.defaultdict(set)
    for node in graph.node:
        part = re.search(r"replica_(\d+)/stage_(\d+)_([FB]\d+)/", node.name)
        if part and "MatMul" in node.op:
            replica, k, task = part.groups()
            found[int(replica), int(k), task].add(node.name)
    return found


def test_explain_draws_the_schedule():
    model = Model(1, 2)
    pipeline = model.pipeline()
    model.train(pipeline, 1)

    assert pipeline.describe() in model.repl.explain()
    assert "stage 1     F0 B0 F1 B1" in pipeline.describe()
    # Of 4 examples of 8 numbers: tanh of two micro-batches; of one micro-batch its
    # input, tanh, and the difference from its targets.
    assert (
        "stage 0 keeps activations of at most 2 micro-batches, 256 bytes\n"
        "stage 1 keeps activations of at most 1 micro-batches, 384 bytes"
    ) in model.repl.explain()


class InTurn:
    def __init__(self, model):
        self._model = model

    def loss_and_gradients(self, batch, loss_fn):
        variables = [v for s in self._model.stages for v in s.trainable_variables]
        losses, gradients = [], []
        for part in zip(*(tf.split(x, PARTS) for x in batch), strict=True):
            with tf.GradientTape() as tape:
                values, targets = part
                for k, stage in enumerate(self._model.stages):
                    with replicator.logical_device(k):
                        values = stage(values, training=True)
                losses.append(loss_fn(values, targets))
            gradients.append(tape.gradient(losses[-1], variables))
        means = [tf.add_n(of) / PARTS for of in zip(*gradients, strict=True)]
        return tf.add_n(losses) / PARTS, list(zip(means, variables, strict=True))


@functools.cache
def trained(num_replicas, num_stages, of_pipeline=(), **options):
    dropout = [lambda: keras.layers.Dropout(0.5, seed=3)]
    model = Model(num_replicas, num_stages, dropout, **options)
    of = model.pipeline(**dict(of_pipeline)) if of_pipeline else InTurn(model)

    def step(batch):
        loss, pairs = of.loss_and_gradients(batch, mean_squared)
        model.optimizer.apply_gradients(pairs)
        return loss, {v.path: gradient for gradient, v in pairs}

    inputs = model.repl.make_input_iterator(batches)
    found = [model.repl.run(step, inputs) for _ in range(NUM_STEPS)]
    model.repl.assert_in_sync()
    gradients = [
        np.concatenate([np.ravel(by[r]) for by in of_step.values()])
        for _, of_step in found
        for r in range(num_replicas)
    ]
    weights = [v.numpy().ravel() for s in model.stages for v in s.trainable_variables]
    return [[*map(float, loss)] for loss, _ in found], gradients, weights


NUM_STEPS = 10


@pytest.mark.parametrize(
    ("num_replicas", "num_stages", "schedule", "recompute", "options"),
    [
        (1, 3, "one_forward_one_backward", False, {}),
        (2, 2, "one_forward_one_backward", True, {}),
        (2, 2, "fill_drain", False, {"variable_placement": "mirrored"}),
    ],
)
def test_with_dropout_it_trains_as_one_device(
    num_replicas, num_stages, schedule, recompute, options
):
    """Losses and gradients to 1e-5; with other masks they would be far away."""
    of_pipeline = ("schedule", schedule), ("recompute", recompute)

    losses, gradients, weights = trained(num_replicas, num_stages)
    found, own, kept = trained(num_replicas, num_stages, of_pipeline, **options)

    np.testing.assert_allclose(found, losses, rtol=1e-5)
    for want, got in zip(gradients, own, strict=True):
        assert np.linalg.norm(got - want) <= 1e-5 * np.linalg.norm(want)
    for want, got in zip(weights, kept, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=2e-5)


@functools.cache
def in_one_piece_after_four():
    return Model(2, 2).train(num_steps=4)


@pytest.mark.parametrize(
    "of_optimizer",
    [
        {"global_clipnorm": 0.01, "compression": "bfloat16"},
        {"sharded_update": "gradients", "accumulation_steps": 2},
        {
            "sharded_update": "gradients",
            "global_clipnorm": 0.01,
            "loss_scale": "dynamic",
        },
    ],
    ids=lambda options: "+".join(map(str, options.values())),
)
@pytest.mark.parametrize("placement", ["shared", "mirrored"])
@pytest.mark.covering(strength=1)
def test_options_of_the_optimizer_combine(of_optimizer, placement):
    options = {"of_optimizer": of_optimizer, "variable_placement": placement}
    plain, cut = (Model(2, 2, **options) for _ in range(2))

    losses, weights = plain.train(num_steps=4)
    found, own = cut.train(cut.pipeline(), num_steps=4)

    np.testing.assert_allclose(found, losses, rtol=1e-5)
    np.testing.assert_allclose(own, weights, rtol=1e-3, atol=2e-5)
    assert np.abs(own - in_one_piece_after_four()[1]).max() > 1e-4, "options act"


def test_owners_keep_the_sums_of_a_stage_on_its_devices():
    model = Model(
        2,
        2,
        variable_placement="mirrored",
        of_optimizer={"sharded_update": "gradients"},
    )
    model.train(model.pipeline(), num_steps=1)

    ((_, program),) = model.repl._programs.items()
    buckets = [
        bucket
        for plan in program.plans
        for bucket in plan.buckets
        if bucket.is_for_owner
    ]
    # Kernel and offset of stage 0, then those of stage 1.
    for bucket in buckets:
        assert {bucket.logical_device} == {place // 2 for place in bucket.positions}
    assert [0, 1, 2, 3] == sorted(p for b in buckets for p in b.positions)
    assert 2 == len({bucket.owner for bucket in buckets})


def test_summary_has_the_bytes_of_the_fullest_device_with_activations():
    """Of a stage, not of the whole replica: weights, gradients, state, activations."""
    model = Model(
        2,
        2,
        variable_placement="mirrored",
        of_optimizer={"sharded_update": "gradients"},
    )
    model.optimizer.build([v for s in model.stages for v in s.trainable_variables])

    def table():
        *lines, last = model.repl.summary(1_100).replace(",", "").splitlines()[-4:]
        # A level that is refused is not said to fit.
        assert last == (
            "  parameters: not here a replica has several devices on which its "
            "variables are"
        )
        return {line.split()[0]: line.split()[1:] for line in lines}

    before = table()
    model.train(model.pipeline(), num_steps=1)
    after = table()

    # Weights, gradients, two values of Adam for each. Of two owners of a stage, one has
    # the kernel and the other one the offsets.
    kernel, stage = 4 * WIDTH * WIDTH, 4 * (WIDTH * WIDTH + WIDTH)
    assert before == {
        level: [*map(str, (*row, sum(row))), *fits, "1100"]
        for level, row, fits in (
            ("none", (stage, stage, 2 * stage), ("does", "not", "fit")),
            ("state", (stage, stage, 2 * kernel), ("fits",)),
            ("gradients", (stage, kernel, 2 * kernel), ("fits",)),
        )
    }
    assert "fullest of 4 devices" in model.repl.summary()
    # Stage 1 keeps 384 bytes of activations, as explain() says.
    assert {"384"} == {row[3] for row in after.values()}
    assert [1088 + 384, "does"] == [int(after["state"][4]), after["state"][5]]


def test_parameters_of_stages_are_not_sharded():
    with pytest.raises(
        replicator.OptimizerOptionError,
        match=r"'parameters' does not work with InGraphReplicator: a replica has .*; "
        r"use sharded_update='gradients'$",
    ):
        Model(2, 2, of_optimizer={"sharded_update": "parameters"})


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
