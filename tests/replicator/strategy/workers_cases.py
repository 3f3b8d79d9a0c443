"""What a worker process of a cluster finds when it trains by ``fit``."""

import time

import keras
import numpy as np
import tensorflow as tf

import replicator

NUM_EXAMPLES = 37  # a last batch of 5 examples over 4 replicas
X = np.random.RandomState(0).randn(NUM_EXAMPLES, 4).astype(np.float32)
Y = X.sum(axis=1, keepdims=True)
SGD = keras.optimizers.SGD


def set_up(folder, backend):
    return replicator.create(backend, num_replicas=4), folder


def made(scope, wrapped=lambda optimizer: optimizer):
    keras.utils.clear_session()
    keras.utils.set_random_seed(1)
    with scope:
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile(wrapped(SGD(0.05, momentum=0.9)), "mse", metrics=["mae"])
    return model


def fitted(scope, *wrapped):
    """Shuffled, with a split, a callback that reads scores, and all predictions."""
    model = made(scope, *wrapped)
    fit = {"batch_size": 16, "epochs": 2, "verbose": 0, "validation_split": 0.3}
    rates = keras.callbacks.ReduceLROnPlateau(patience=1, min_delta=10.0)
    history = model.fit(X, Y, callbacks=[rates], **fit).history
    scores = model.evaluate(X, Y, verbose=0)
    # Five examples, which replicas share unevenly.
    few = model.evaluate(X[:5], Y[:5], verbose=0)
    model.train_on_batch(X[:5], Y[:5])
    return {
        **{name: list(map(float, values)) for name, values in history.items()},
        "scores": [scores, few],
        "predictions": model.predict(X, batch_size=16, verbose=0).tolist(),
        "weights": np.concatenate(list(map(np.ravel, model.get_weights()))).tolist(),
    }


def values(repl, _folder):
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


def turns(repl, _folder):
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


def unseeded(repl, _folder):
    """Why workers cannot share out the batches of a dataset in any order."""
    tf.random.set_seed(None)
    try:
        repl.as_strategy().experimental_distribute_dataset(
            tf.data.Dataset.range(4).batch(4)
        )
    except replicator.ReplicatorError as error:
        return str(error)
    return ""


def read_once(scope):
    """Epochs with validation, of batches of other sizes than the last."""
    log = []
    keras.utils.set_random_seed(1)
    with scope:
        model = keras.Sequential([keras.layers.Dense(1, kernel_initializer="ones")])
        model.compile(SGD(0.05), "mse")

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


def _message(repl, callback):
    try:
        made(repl.scope()).fit(X, Y, verbose=0, callbacks=[callback])
    except replicator.ReplicatorError as error:
        return str(error)
    return ""


def shared(repl, folder):
    """The messages for files that both workers would write."""
    kinds = keras.callbacks
    callbacks = (
        kinds.ModelCheckpoint(folder / "best.keras"),
        kinds.CSVLogger(folder / "log.csv"),
        kinds.TensorBoard(folder / "board"),
        kinds.BackupAndRestore(folder / str(repl.worker_id)),
    )
    messages = [_message(repl, callback) for callback in callbacks]
    return messages, sorted(path.name for path in folder.glob("b*"))


CASES = {
    "counted": lambda repl, _: read_once(repl.scope()),
    "fit": lambda repl, _: fitted(repl.scope(verify=True)),
    "wrapped": lambda repl, _: fitted(repl.scope(), repl.wrap_optimizer),
    "values": values,
    "turns": turns,
    "unseeded": unseeded,
    "shared": shared,
}
