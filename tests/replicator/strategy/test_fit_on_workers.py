"""``fit`` and reductions on workers with two replicas each, and files of callbacks."""

import contextlib
import functools
import time
from pathlib import Path

import case_cluster
import keras
import numpy as np
import pytest
import tensorflow as tf
from case_cluster import check, check_message

import replicator

NUM_EXAMPLES = 37  # a last batch of 5 examples over 4 replicas
X = np.random.RandomState(0).randn(NUM_EXAMPLES, 4).astype(np.float32)
Y = X.sum(axis=1, keepdims=True)
SGD = keras.optimizers.SGD


def set_up(folder, backend):
    return replicator.create(backend, num_replicas=4), folder


def runs_once(repl):
    return repl.num_local_replicas == repl.num_replicas


def made(scope, wrapped=lambda optimizer: optimizer):
    keras.utils.clear_session(free_memory=False)
    keras.utils.set_random_seed(1)
    with scope:
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile(wrapped(SGD(0.05, momentum=0.9)), "mse", metrics=["mae"])
    return model


def check_fit(expected, found):
    check(list(expected), list(found))
    check(expected.pop("log", None), found.pop("log", None))
    for key, value in expected.items():  # sums of float32 in another order
        np.testing.assert_allclose(found[key], value, 1e-5, 1e-6, err_msg=key)


def fit_equals_one_device(repl, _folder):
    if runs_once(repl):
        found = fitted(repl.scope(), repl.wrap_optimizer)
    else:
        found = fitted(repl.scope(verify=True))
    if repl.is_chief:
        check_fit(fitted(contextlib.nullcontext()), found)


def fitted(scope, *wrapped):
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


def values_of_all_workers_are_reduced_and_joined(repl, _folder):
    strategy = repl.as_strategy()
    own = strategy.experimental_distribute_values_from_function(
        lambda ctx: tf.cast(ctx.replica_id_in_sync_group, tf.float32)
    )
    rows = strategy.run(lambda x: tf.fill([tf.cast(x, tf.int32) + 1], x), args=(own,))

    @tf.function
    def in_function(x):
        return strategy.reduce("SUM", x, axis=None)

    check(6.0, float(strategy.reduce("SUM", own, axis=None)))
    check(6.0, float(in_function(own)))
    np.testing.assert_allclose(strategy.reduce("MEAN", rows, axis=0), 2.0, 1e-6)
    gathered = strategy.gather(rows, axis=0).numpy().tolist()
    check([0.0, *[1.0] * 2, *[2.0] * 3, *[3.0] * 4], gathered)


def reductions_and_steps_of_one_function_take_turns(repl, _folder):
    """They ran at once, and each worker could begin with another."""
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

    for _ in range(2):
        check([18.0, 406.0, 6.0], list(map(float, train(own, large))))
    check(812.0, float(total))


def batches_in_an_unknown_order_are_refused(repl, _folder):
    tf.random.set_seed(None)
    data, strategy = tf.data.Dataset.range(4).batch(4), repl.as_strategy()
    check_message(
        "no error" if runs_once(repl) else r"keras.utils.set_random_seed\(seed\)",
        lambda: strategy.experimental_distribute_dataset(data),
    )


def sources_are_read_as_on_one_device(repl, _folder):
    found = read_once(repl.scope())
    if repl.is_chief:
        check_fit(read_once(contextlib.nullcontext()), found)


def read_once(scope):
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


def files_of_two_workers_are_refused_before_they_are_written(repl, folder):
    if runs_once(repl):
        return
    files = keras.callbacks
    own = r"in each of 2 worker processes; give each .*\{repl\.worker_id\}.*is_chief"
    for pattern, callback in {
        rf"ModelCheckpoint writes .*best\.keras {own}": files.ModelCheckpoint(
            folder / "best.keras"
        ),
        rf"CSVLogger writes .*log\.csv {own}": files.CSVLogger(folder / "log.csv"),
        rf"TensorBoard writes .*board {own}": files.TensorBoard(folder / "board"),
        r"BackupAndRestore saves in .*save_freq=\"epoch\" if repl\.is_chief": (
            files.BackupAndRestore(folder / str(repl.worker_id))
        ),
    }.items():
        fit, how = made(repl.scope()).fit, {"verbose": 0, "callbacks": [callback]}
        check_message(pattern, functools.partial(fit, X, Y, **how))
    assert not (folder / "best.keras").exists()
    assert not (folder / "board").exists()


CASES = {
    case.__name__: case
    for case in (
        sources_are_read_as_on_one_device,
        fit_equals_one_device,
        values_of_all_workers_are_reduced_and_joined,
        reductions_and_steps_of_one_function_take_turns,
        batches_in_an_unknown_order_are_refused,
        files_of_two_workers_are_refused_before_they_are_written,
    )
}


pytestmark = pytest.mark.processes

FOLDER = Path(__file__).parent
RUNNERS = {
    "multi_worker": [("worker", 0), ("worker", 1)],
    "multi_worker_in_graph": [("worker", 0)],
}


@pytest.fixture(scope="module", params=RUNNERS)
def workers(request, tmp_path_factory):
    return case_cluster.ran(
        "test_fit_on_workers",
        tmp_path_factory.mktemp(request.param),
        path=FOLDER,
        num_workers=2,
        runners=RUNNERS[request.param],
        options={"backend": request.param},
    )


@pytest.mark.parametrize("case", CASES)
def test_two_workers(workers, case):
    assert not any(workers.values(case))
