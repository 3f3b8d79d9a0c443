"""Named dimensions: one device is the oracle for every layout of a mesh."""

import contextlib
import re

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.experimental import dtensor

import replicator

MESHES = {"1x2": (1, 2), "2x1": (2, 1), "2x2": (2, 2)}
# As Megatron-LM splits a block: heads and hidden units.
NAMES = {
    "(query|key|value)/kernel": ("width", "heads", "size"),
    "(query|key|value)/bias": ("heads", "size"),
    "attention_output/kernel": ("heads", "size", "width"),
    "expand/kernel": ("width", "hidden"),
    "expand/bias": ("hidden",),
    "contract/kernel": ("hidden", "width"),
}
NUM_STEPS, BATCH, LENGTH, NUM_TOKENS, WIDTH = 10, 4, 6, 16, 8


def on_mesh(batch, model, layout=None, names=None):
    return replicator.create(
        "dtensor",
        mesh={"batch": batch, "model": model},
        layout={"heads": "model", "hidden": "model"} if layout is None else layout,
        names=NAMES if names is None else names,
    )


class Block(keras.layers.Layer):
    def __init__(self, name):
        super().__init__(name=name)
        self.norms = [keras.layers.LayerNormalization(name=f"norm{i}") for i in (0, 1)]
        self.attention = keras.layers.MultiHeadAttention(2, 4, name="attention")
        self.expand = keras.layers.Dense(16, activation="tanh", name="expand")
        self.contract = keras.layers.Dense(WIDTH, name="contract")

    def call(self, x):
        normed = self.norms[0](x)
        x += self.attention(normed, normed, use_causal_mask=True)
        return x + self.contract(self.expand(self.norms[1](x)))


def transformer(num_blocks=1):
    keras.utils.set_random_seed(7)
    tokens = keras.Input((LENGTH,), dtype="int32")
    x = keras.layers.Embedding(NUM_TOKENS, WIDTH, name="tokens")(tokens)
    for index in range(num_blocks):
        x = Block(f"block_{index}")(x)
    return keras.Model(tokens, keras.layers.Dense(NUM_TOKENS, name="logits")(x))


def tokens_of(ctx):
    drawn = np.random.default_rng(0).integers(
        0, NUM_TOKENS, [NUM_STEPS * BATCH, LENGTH]
    )
    rows = tf.data.Dataset.from_tensor_slices(drawn.astype(np.int32))
    return replicator.split_global_batches(rows, ctx, BATCH)


def mean_nats(model, batch):
    logits = model(batch)
    return tf.reduce_mean(
        keras.losses.sparse_categorical_crossentropy(batch, logits, from_logits=True)
    )


def trained(repl, num_steps=NUM_STEPS, num_blocks=1):
    with repl.context():
        model = transformer(num_blocks)
        optimizer = keras.optimizers.AdamW(0.01, weight_decay=0.1)
        optimizer = repl.wrap_optimizer(optimizer)
        # A step that makes slots is traced twice; conformance has such steps.
        optimizer.build(model.trainable_variables)

    def step(batch):
        with tf.GradientTape() as tape:
            loss = mean_nats(model, batch)
        variables = model.trainable_variables
        gradients = tape.gradient(loss, variables)
        optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return loss

    inputs = repl.make_input_iterator(tokens_of)
    losses = [repl.reduce("mean", repl.run(step, inputs)) for _ in range(num_steps)]
    return [float(loss) for loss in losses], model, step


@contextlib.contextmanager
def float64():
    for kind in ("float64", "float32"):
        keras.config.set_floatx(kind)
        keras.config.set_dtype_policy(kind)
        if kind == "float64":
            yield


def test_a_transformer_trains_as_on_one_device():
    repl = on_mesh(2, 2)
    with float64():
        alone, *_ = trained(replicator.create("single"))
        losses, model, step = trained(repl)

    np.testing.assert_allclose(losses, alone, rtol=1e-10)
    repl.assert_in_sync()
    assert "CollectiveReduceV2" in repl.explain(), step
    kernel = next(v for v in model.variables if v.path.endswith("expand/kernel"))
    assert (WIDTH, 16) == kernel.numpy().shape, "a read is of the whole"


def test_a_block_communicates_as_in_megatron_and_takes_half_of_each_device():
    """Two sums in the forward pass, and two in the backward pass."""
    repls = [on_mesh(1, 2) for _ in range(2)]
    kept = [
        trained(repl, num_steps=1, num_blocks=num_blocks)
        for num_blocks, repl in enumerate(repls)
    ]
    without, one = (repl.counts() for repl in repls)
    rows = re.findall(r"  (\S+) \(.*split \((.*?)\): (\d+) bytes", repls[1].summary())
    bytes_of = {path: (int(size), axes) for path, axes, size in rows}
    split = {path: each for path, each in bytes_of.items() if "model" in each[1]}
    kernels = [path for path in split if "expand" in path and "kernel" in path]

    assert 4 == one["collectives"] - without["collectives"], kept
    assert 3 == len(kernels), "the kernel, its momentum and its velocity"
    assert {4 * WIDTH * 16 // 2} == {split[path][0] for path in kernels}
    assert 4 * WIDTH == bytes_of["block_0/norm0/gamma"][0]
    assert one["variable_bytes"] == 2 * sum(n for n, _ in bytes_of.values())


def linear(repl):
    with repl.context():
        keras.utils.set_random_seed(3)
        layers = [keras.layers.Dense(8, name="expand"), keras.layers.Dense(2)]
        model = keras.Sequential([keras.Input((4,)), *layers])
        velocities = [tf.Variable(tf.zeros(v.shape)) for v in model.trainable_variables]
        count = tf.Variable(0.0, trainable=False)
    return model, velocities, count


def rows_of(ctx):
    x = np.random.default_rng(1).normal(size=[32, 4]).astype(np.float32)
    rows = tf.data.Dataset.from_tensor_slices(x)
    return replicator.split_global_batches(rows, ctx, 8)


@pytest.mark.parametrize(
    ("sizes", "names"),
    [
        (MESHES["1x2"], ("inputs", None)),
        (MESHES["2x2"], (None, "hidden")),
        (MESHES["2x1"], (None, None)),
    ],
    ids=str,
)
def test_updates_by_hand_are_in_their_order(sizes, names):
    """DTensor, as it comes, loses an update of what is assigned twice."""
    found = []
    for repl in (
        replicator.create("single"),
        on_mesh(*sizes, {"inputs": "model", "hidden": "model"}, {"kernel": names}),
    ):
        model, velocities, count = linear(repl)

        def step(x, model=model, velocities=velocities, count=count):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((model(x) - 1.0) ** 2)
            weights = model.trainable_variables
            for w, v, g in zip(
                weights, velocities, tape.gradient(loss, weights), strict=True
            ):
                v.assign(0.9 * v - 0.1 * g)
                w.assign_add(v)
            count.assign_add(1.0)
            return loss, count.read_value()

        inputs = repl.make_input_iterator(rows_of)
        runs = [repl.reduce("mean", repl.run(step, inputs)) for _ in range(4)]
        found.append([[float(loss), int(number)] for loss, number in runs])
        found.append([w.numpy() for w in model.weights])
    np.testing.assert_allclose(found[2], found[0], rtol=1e-5)
    for ours, theirs in zip(found[3], found[1], strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)


def test_a_shape_can_have_two_layouts():
    """DTensor's own cache would give the second the parts of the first."""
    repl = on_mesh(2, 2, names={})
    value = np.arange(8.0, dtype=np.float32).reshape(4, 2)
    with repl.context():
        made = [tf.Variable(value, name=str(i)) for i in range(4)]
        replicator.named(made[1], "hidden", None)
        replicator.named(made[2], None, "hidden")
        replicator.named(made[3], "hidden", "other")

    for variable in made:
        np.testing.assert_array_equal(value, variable.numpy())
        variable.assign(2 * value)
        variable.assign_add(value)
        variable.assign_sub(value)
        np.testing.assert_array_equal(2 * value, np.asarray(variable))


def test_outside_of_steps_a_model_is_whole():
    """It predicts and is differentiated on one device; functions see later updates."""
    weight = np.arange(12.0, dtype=np.float32).reshape(4, 3)
    rows, kept = tf.constant([2, 0]), tf.Variable(weight)
    repl = on_mesh(1, 2, names={})
    with repl.context():
        split = replicator.named(tf.Variable(weight, name="rows"), "hidden", None)

    def outputs(of):
        variable = {"split": split, "kept": kept}[of]
        with tf.GradientTape() as tape:
            value = tf.reduce_sum(variable[1:] ** 2) + tf.reduce_sum(
                tf.gather(variable, rows) * variable.read_value()[:2]
            )
            value += tf.reduce_sum(tf.gather_nd(variable, [[3, 1]]))
        return value, tf.convert_to_tensor(tape.gradient(value, variable))

    function = tf.function(outputs, autograph=False)
    for _ in range(2):
        for call in (outputs, function):
            for found, expected in zip(call("split"), call("kept"), strict=True):
                np.testing.assert_array_equal(found, expected)
        split.assign(2 * weight)
        kept.assign(2 * weight)


def test_checkpoints_are_those_of_other_backends(tmp_path):
    names = {"expand/kernel": (None, "hidden"), "contract/kernel": ("hidden", None)}
    saved = on_mesh(2, 2, names=names)
    others = [replicator.create("in_graph", num_replicas=2), on_mesh(1, 2)]
    expected = None
    for repl in (saved, *others):
        model, *_ = linear(repl)
        with repl.context():
            optimizer = repl.wrap_optimizer(keras.optimizers.Adam(0.01))
            optimizer.build(model.trainable_variables)
        manager = repl.make_checkpoint_manager(
            tmp_path, model=model, optimizer=optimizer
        )
        variables = [*model.variables, *optimizer.wrapped.variables]
        if expected is None:
            for variable in variables[:-1]:
                variable.assign(np.ones(variable.shape) * 3)
            expected = [variable.numpy() for variable in variables]
            manager.save()
        manager.restore()
        for variable, value in zip(variables, expected, strict=True):
            np.testing.assert_array_equal(variable.numpy(), value)


def test_copies_that_differ_are_named():
    repl = on_mesh(2, 1, names={})
    with repl.context():
        weight = tf.Variable(tf.zeros([1000]), name="weight")
    repl.assert_in_sync()
    parts = [tf.zeros([1000]), tf.ones([1000])]
    layout = dtensor.Layout.replicated(repl.rules.mesh, 1)
    tf.raw_ops.AssignVariableOp(
        resource=weight.handle, value=dtensor.pack(parts, layout)
    )

    with pytest.raises(replicator.ReplicasOutOfSyncError, match="weight"):
        repl.assert_in_sync()


def make(**options):
    return lambda: replicator.create("dtensor", **options)


def in_context(make_variable, **options):
    def run():
        repl = on_mesh(1, 2, **options)
        with repl.context():
            make_variable(repl)

    return run


def wrapping(**options):
    return in_context(lambda r: r.wrap_optimizer(keras.optimizers.SGD(), **options))


def stepped(step, values, batch=2):
    def run():
        repl = on_mesh(batch, 1)
        repl.run(step, replicator.PerReplica(values))

    return run


def run_over(repl, dataset):
    return repl.run(tf.identity, repl.make_input_iterator(lambda ctx: dataset))


def inverse_of(*names):
    repl = on_mesh(1, 2, names={"square": names})
    with repl.context():
        square = tf.Variable(np.eye(4), name="square")
    repl.run(lambda: tf.linalg.inv(square + 1.0))


BAD = {
    "no mesh": (make(mesh=[2, 2]), r"mesh=\[2, 2\] must be a dictionary"),
    "size": (make(mesh={"batch": 0}), "'batch' has the size 0"),
    "axis": (make(mesh={"a b": 1}), "'a b' is not a name"),
    "replicas": (
        make(mesh={"batch": 2}, num_replicas=4),
        "num_replicas=4 does not match the mesh, whose axis 'batch' has 2",
        replicator.DeviceError,
    ),
    "layout": (
        make(mesh={"batch": 1}, layout={"hidden": "model"}),
        "splits 'hidden' over 'model', which is no axis of the mesh; use one of batch",
    ),
    "rule": (
        make(mesh={"batch": 1}, names={"(": ("a",)}),
        r"'\(' is not one: missing \)",
    ),
    "rank": (
        in_context(lambda _: tf.Variable([1.0], name="w"), names={"w": ("a", "b")}),
        "'w' has 1 dimensions, but got 2 names",
    ),
    "divided": (
        in_context(lambda _: tf.Variable([1.0], name="w"), names={"w": ("hidden",)}),
        "'w' has 1 in its dimension 'hidden', which the 2 devices of the axis 'model'",
    ),
    "twice": (
        in_context(
            lambda _: tf.Variable([[1.0]], name="w"), names={"w": ("heads", "hidden")}
        ),
        "splits two over the axis 'model'",
    ),
    "named": (lambda: replicator.named(1.0, "a"), "takes a variable", TypeError),
    "option": (
        wrapping(accumulation_steps=2),
        "accumulation_steps=2 does not work with DTensorReplicator",
        replicator.OptimizerOptionError,
    ),
    "compression": (
        wrapping(compression="bfloat16"),
        "compression='bfloat16' does not work with DTensorReplicator: DTensor sends",
        replicator.OptimizerOptionError,
    ),
    "prefetch": (
        in_context(lambda r: r.make_input_iterator(rows_of, prefetch_to_device=2)),
        "prefetch",
        replicator.InputModeError,
    ),
    "uneven": (
        lambda: run_over(on_mesh(2, 1), tf.data.Dataset.range(3).batch(2)),
        r"shapes \(2,\), \(1,\), but a mesh divides a batch evenly",
    ),
    "number": (stepped(tf.identity, [1.0, 2.0]), "dimension of examples"),
    "operation": (
        stepped(
            lambda x: tf.linalg.inv(tf.eye(2) + tf.reduce_sum(x)), [tf.ones([2])] * 2
        ),
        "DTensor cannot split MatrixInverse",
    ),
    "square": (
        lambda: inverse_of("hidden", None),
        r"MatrixInverse \(in no layer\), which gets square \(model, unsharded\); give",
    ),
    "layer": (
        stepped(
            lambda x: tf.compat.v1.nn.fused_batch_norm(
                tf.reshape(x, [2, 2, 2, 1]), tf.ones([1]), tf.zeros([1]), name="norm"
            )[0],
            [tf.ones([1, 8 // 2])] * 2,
        ),
        "DTensor cannot split FusedBatchNormV3",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_what_makes_no_sense_is_one_line(name):
    run, message, *kind = BAD[name]
    with pytest.raises(*kind or [replicator.LayoutError], match=message) as caught:
        run()
    assert "\n" not in str(caught.value).split("in user code:")[0].strip()


def test_a_process_in_which_updates_would_be_lost_is_refused(monkeypatch):
    variable = "DTENSOR_ENABLE_COMBINE_ALL_REDUCES_OPTIMIZATION"
    monkeypatch.setenv(variable, "1")
    with pytest.raises(
        replicator.LayoutError, match=f"in silence: {variable} is '1'; set it to 0"
    ):
        on_mesh(1, 1)
    monkeypatch.delenv(variable)
    with pytest.raises(replicator.LayoutError, match="DTensor was started before"):
        on_mesh(1, 1)


def test_data_end_as_on_other_backends():
    repl = on_mesh(2, 1)
    inputs = repl.make_input_iterator(rows_of)
    step = tf.identity

    assert [4, 4] == [len(each) for each in repl.run(step, inputs, num_steps=4)]
    with pytest.raises(tf.errors.OutOfRangeError):
        repl.run(step, inputs)
    assert inputs.is_at_end
    assert 4 == inputs.num_steps == repl.num_steps_run
    inputs.reinitialize()
    again = np.concatenate([each.numpy() for each in repl.run(step, inputs)])
    alone = replicator.create("single")
    expected = alone.run(step, alone.make_input_iterator(rows_of))[0]
    np.testing.assert_array_equal(again, expected)
