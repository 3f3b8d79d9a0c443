"""What a worker process finds: callbacks that write files, batches of odd size."""

import contextlib
import sys
from pathlib import Path

import keras
import numpy as np

import replicator

X = np.random.RandomState(0).randn(21, 4).astype(np.float32)
Y = X.sum(axis=1, keepdims=True)


def set_up(folder):
    return replicator.create("multi_worker", num_replicas=2), Path(folder)


def _model(scope):
    keras.utils.clear_session()
    keras.utils.set_random_seed(1)
    with scope:
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.05, momentum=0.9), "mse")
    return model


def _fitted(model, callbacks, epochs=3):
    model.fit(X, Y, batch_size=8, epochs=epochs, verbose=0, callbacks=callbacks)
    return [w.tolist() for w in model.get_weights()]


def alone(scope):
    """Weights after three epochs on one device, which nothing interrupts."""
    return _fitted(_model(scope), [])


def odd(repl=None, _folder=None):
    """Scores, predictions and an update of five examples, over two workers."""
    model = _model(contextlib.nullcontext() if repl is None else repl.scope())
    score = model.evaluate(X[:5], Y[:5], verbose=0)
    predicted = model.predict(X[:5], verbose=0)
    model.train_on_batch(X[:5], Y[:5])
    return [score, predicted.tolist(), *(w.tolist() for w in model.get_weights())]


def shared(repl, folder):
    """The messages for files that both workers would write."""
    made = keras.callbacks
    messages = [
        _message(repl, callback)
        for callback in (
            made.ModelCheckpoint(folder / "best.keras"),
            made.CSVLogger(folder / "log.csv"),
            made.TensorBoard(folder / "board"),
            made.BackupAndRestore(folder / str(repl.worker_id)),
        )
    ]
    return messages, sorted(path.name for path in folder.glob("b*"))


def _message(repl, callback):
    try:
        _fitted(_model(repl.scope()), callback)
    except replicator.ReplicatorError as error:
        return str(error)
    return ""


def resumed(repl, folder):
    """Weights of a training that ends in its third epoch and goes on."""
    own = folder / f"of_{repl.worker_id}"
    own.mkdir()
    made = keras.callbacks

    def callbacks():
        backup = made.BackupAndRestore(
            folder / "saved",
            save_freq="epoch" if repl.is_chief else sys.maxsize,
            delete_checkpoint=repl.is_chief,
        )
        every = [made.CSVLogger(own / "log.csv"), backup]
        if repl.is_chief:
            every.append(made.ModelCheckpoint(folder / "last.keras"))
        return every

    def fail(epoch):
        if epoch == 2:
            raise KeyboardInterrupt

    at_begin = made.LambdaCallback(on_epoch_begin=lambda epoch, logs: fail(epoch))
    try:
        _fitted(_model(repl.scope()), [*callbacks(), at_begin])
    except KeyboardInterrupt:
        first = (own / "log.csv").read_text()
    weights = saved = _fitted(_model(repl.scope()), callbacks())
    if repl.is_chief:
        model = keras.models.load_model(folder / "last.keras")
        saved = [w.tolist() for w in model.get_weights()]
    return {
        "weights": weights,
        "epochs": [
            len(text.splitlines()) - 1
            for text in (first, (own / "log.csv").read_text())
        ],
        "saved": saved,
    }


CASES = {"odd": odd, "shared": shared, "resumed": resumed}
