"""What a worker process of a cluster finds when it trains by ``fit``."""

import contextlib
import time

import keras
import numpy as np
import tensorflow as tf

import replicator

NUM_EXAMPLES = 37  # a last batch of 5 examples over 4 replicas


def set_up(_folder, backend):
    made = replicator.create(backend, num_replicas=4)
    return (made,)


def fitted(scope, wrapped=lambda optimizer: optimizer):
    keras.utils.clear_session()
    keras.utils.set_random_seed(1)
    x = np.random.RandomState(0).randn(NUM_EXAMPLES, 4).astype(np.float32)
    y = x.sum(axis=1, keepdims=True)
    with scope:
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        optimizer = wrapped(keras.optimizers.SGD(0.05, momentum=0.9))
        model.compile(optimizer, "mse", metrics=["mae"])
    fit = {"batch_size": 16, "epochs": 2, "verbose": 0, "validation_split": 0.3}
    rates = keras.callbacks.ReduceLROnPlateau(patience=1, min_delta=10.0)
    history = model.fit(x, y, callbacks=[rates], **fit).history
    return {
        **{name: list(map(float, values)) for name, values in history.items()},
        "weights": [w.tolist() for w in model.get_weights()],
        "scores": model.evaluate(x, y, verbose=0),
        "predictions": model.predict(x, batch_size=16, verbose=0).tolist(),
    }


def alone():
    return fitted(contextlib.nullcontext())


def values(repl):
    """A value per replica, reduced, gathered and read by a collective in a step."""
    strategy = repl.as_strategy()
    own = strategy.experimental_distribute_values_from_function(
        lambda ctx: tf.cast(ctx.replica_id_in_sync_group, tf.float32)
    )
    rows = strategy.run(lambda x: tf.fill([tf.cast(x, tf.int32) + 1], x), args=(own,))

    @tf.function
    def in_function(x):
        return strategy.reduce("SUM", x, axis=None)

    return {
        "sum": float(strategy.reduce("SUM", own, axis=None)),
        "sum in a function": float(in_function(own)),
        "mean of rows": float(strategy.reduce("MEAN", rows, axis=0)),
        "gathered": strategy.gather(rows, axis=0).numpy().tolist(),
    }


def turns(repl):
    """Reductions and a step of one function, which each worker could begin with."""
    strategy = repl.as_strategy()
    with strategy.scope():
        total = tf.Variable(0.0)
    own = strategy.experimental_distribute_values_from_function(
        lambda ctx: tf.cast(ctx.replica_id_in_sync_group, tf.float32)
    )
    large = strategy.run(lambda x: x + 100.0, args=(own,))

    def step(x):
        replica = tf.distribute.get_replica_context()
        total.assign_add(replica.all_reduce("SUM", x))

    def late(worker):
        return tf.numpy_function(
            lambda: time.sleep(0.1 * (repl.worker_id == worker)), [], []
        )

    @tf.function
    def train(x, y):
        both = late(0), late(1)
        with tf.control_dependencies([both[0]]):
            first = strategy.reduce("SUM", x, axis=None)
        with tf.control_dependencies([both[1]]):
            second = strategy.reduce("SUM", y, axis=None)
        for _ in tf.range(2):
            first += strategy.reduce("SUM", x, axis=None)
        strategy.run(step, args=(y,))
        return first, second, strategy.reduce("SUM", x, axis=None)

    found = [list(map(float, train(own, large))) for _ in range(2)]
    return {"found": found, "total": float(total)}


def unseeded(repl):
    """Why workers cannot share out the batches of a dataset in any order."""
    tf.random.set_seed(None)
    try:
        repl.as_strategy().experimental_distribute_dataset(
            tf.data.Dataset.range(4).batch(4)
        )
    except replicator.ReplicatorError as error:
        return str(error)
    return ""


def counted(repl):
    return read_once(repl.scope())


def read_once(scope):
    """Epochs with validation, of batches of other sizes than the last."""
    log = []
    keras.utils.set_random_seed(1)
    with scope:
        model = keras.Sequential([keras.layers.Dense(1, kernel_initializer="ones")])
        model.compile(keras.optimizers.SGD(0.05), "mse")

    def batches(name):
        log.append(f"open {name}")
        for index, size in enumerate((8, 5, 6, 7)):
            log.append(f"{name} {index}")
            x = np.linspace(index, index + 1, size, dtype=np.float32)[:, None] / 4
            yield x, np.sin(3 * x)

    def dataset(name):
        spec = tf.TensorSpec((None, 1))
        return tf.data.Dataset.from_generator(
            lambda: batches(name), output_signature=(spec, spec)
        )

    history = model.fit(
        dataset("train"), epochs=2, validation_data=dataset("held out"), verbose=0
    ).history
    model.evaluate(batches("generator"), verbose=0)
    losses = [*history["loss"], *history["val_loss"]]
    return {"log": log, "losses": list(map(float, losses))}


CASES = {
    "counted": counted,
    "fit": lambda repl: fitted(repl.scope(verify=True)),
    "wrapped": lambda repl: fitted(repl.scope(), repl.wrap_optimizer),
    "values": values,
    "turns": turns,
    "unseeded": unseeded,
}
