"""An epoch whose last step has fewer examples than replicas, on any backend."""

import tempfile

import keras
import numpy as np
import tensorflow as tf

import replicator

NUM_EXAMPLES = 58  # seven global batches of 8, and two examples
LARGEST = 65504.0  # of float16


def run(repl):
    """Trains a normalized model, and reads and saves the half of an epoch."""
    return {
        **train(repl, 9),
        "mean": float(repl.run(_mean_of_largest)[0]),
        **_read_half(repl),
    }


def make_inputs(repl, global_batch_size):
    """Shuffled numbers, divided into global batches."""

    def input_fn(ctx):
        data = tf.data.Dataset.range(NUM_EXAMPLES).shuffle(NUM_EXAMPLES, seed=3)
        return replicator.split_global_batches(data, ctx, global_batch_size)

    return repl.make_input_iterator(input_fn)


def read(repl, inputs, num_steps):
    """The examples of some steps that this process is fed."""
    steps = [repl.run(tf.identity, inputs) for _ in range(num_steps)]
    return [int(x) for parts in steps for part in parts for x in part.numpy()]


def make_manager(repl, folder, inputs):
    """What saves the position, beside a number."""
    with repl.context():
        number = tf.Variable(0, trainable=False)
    return repl.make_checkpoint_manager(folder, inputs=inputs, number=number)


def train(repl, num_examples, make_norm=replicator.CrossReplicaBatchNormalization):
    """Losses and variables of an epoch in global batches of 8."""
    rng = np.random.default_rng(0)
    xs = rng.normal(size=(num_examples, 3)).astype(np.float32)
    ys = rng.normal(size=num_examples).astype(np.float32)

    def input_fn(ctx):
        data = tf.data.Dataset.from_tensor_slices((xs, ys))
        return replicator.split_global_batches(data, ctx, 8)

    keras.utils.set_random_seed(1)
    with repl.context():
        norm = make_norm(momentum=0.5)
        layers = [keras.layers.Dense(4), norm, keras.layers.Dense(1)]
        model = keras.Sequential([keras.Input((3,)), *layers])
        optimizer = repl.wrap_optimizer(keras.optimizers.SGD(0.1))
    inputs = repl.make_input_iterator(input_fn)

    def step(batch):
        x, y = batch
        with tf.GradientTape() as tape:
            error = model(x, training=True)[:, 0] - y
            loss = replicator.mean_over_examples(error**2)
        variables = model.trainable_variables
        grads = tape.gradient(loss, variables)
        optimizer.apply_gradients(zip(grads, variables, strict=True))
        return loss

    losses = [
        float(repl.reduce("mean", repl.run(step, inputs)))
        for _ in range(-(-num_examples // 8))
    ]
    weights = [np.asarray(v).ravel().tolist() for v in model.variables]
    return {"losses": losses, "weights": weights}


def _mean_of_largest():
    return replicator.all_mean(tf.constant(LARGEST, tf.float16))


def _read_half(repl):
    inputs = make_inputs(repl, 8)
    # Of the chief: the others have folders of their own.
    folder = repl.gather_bytes(tempfile.mkdtemp().encode())[0].decode()
    manager = make_manager(repl, folder, inputs)
    examples = read(repl, inputs, 4)
    manager.save(4)
    return {"examples": examples, "folder": folder}


def check(results):
    """Compares what processes saw with one device, and goes on where they saved."""
    expected = run(replicator.create("single"))
    for result in results:
        np.testing.assert_allclose(expected["losses"], result["losses"], rtol=1e-5)
        for want, value in zip(expected["weights"], result["weights"], strict=True):
            np.testing.assert_allclose(want, value, rtol=1e-4, atol=1e-6)
        assert LARGEST == result["mean"]
    examples = [example for result in results for example in result["examples"]]
    assert sorted(expected["examples"]) == sorted(examples)
    # Four replicas and another global batch take over: each example once.
    repl = replicator.create("in_graph", num_replicas=4)
    inputs = make_inputs(repl, 16)
    manager = make_manager(repl, results[0]["folder"], inputs)
    assert "skipping the 2 steps" in manager.restore().input_position
    examples += read(repl, inputs, 2)
    assert list(range(NUM_EXAMPLES)) == sorted(examples)
