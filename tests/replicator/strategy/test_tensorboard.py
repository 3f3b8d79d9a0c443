"""The callback ``TensorBoard`` writes in ``repl.scope()`` what it writes without.

TensorFlow has no tensorboard any more: ``make test-communities`` has it.
"""

import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf

import replicator

pytest.importorskip("tensorboard")

TOLERANCE = 1e-5  # relative: sums of float32 in another order
X = np.random.RandomState(0).randn(22, 4).astype(np.float32)
Y = X.sum(axis=1, keepdims=True)


class Sequential(keras.Sequential):
    """A model that writes a summary in each of its steps."""

    def train_step(self, data):
        """Keras' step, and the mean of what the optimizer's learning rate is."""
        tf.summary.scalar("rate", self.optimizer.learning_rate)
        return super().train_step(data)


def _events(folder):
    found = {}
    for path in sorted(folder.rglob("events.*")):
        for record in tf.data.TFRecordDataset(str(path)):
            event = tf.compat.v1.Event.FromString(record.numpy())
            if event.graph_def:
                found[path.parent.name, "graph", event.step] = []
            for value in event.summary.value:
                key = path.parent.name, value.tag, event.step
                found.setdefault(key, []).append(tf.make_ndarray(value.tensor))
    return found


def _fitted(scope, folder):
    keras.utils.clear_session()
    keras.utils.set_random_seed(1)
    with scope:
        layers = [keras.Input((4,)), keras.layers.Dense(3), keras.layers.Dense(1)]
        model = Sequential(layers)
        model.compile("adam", "mse", metrics=["mae"])
    board = keras.callbacks.TensorBoard(
        folder,
        histogram_freq=1,
        update_freq="batch",
        write_images=True,
        write_steps_per_second=True,
        profile_batch=(2, 3),
    )
    model.fit(
        X,
        Y,
        batch_size=8,
        epochs=2,
        shuffle=False,
        validation_data=(X, Y),
        verbose=0,
        callbacks=[board],
    )
    model.evaluate(X, Y, verbose=0, callbacks=[board])
    return _events(folder)


@pytest.mark.parametrize("placement", ["shared", "mirrored"])
def test_event_files_are_those_of_plain_fit(placement, tmp_path):
    """Scalars, histograms, images, a traced graph, and one summary of each step.

    The summary has the number of the first step in both, when Keras traced it.
    """
    alone = _fitted(contextlib.nullcontext(), tmp_path / "alone")
    repl = replicator.create("in_graph", num_replicas=2, variable_placement=placement)
    both = _fitted(repl.scope(), tmp_path / "both")

    assert set(alone) == set(both)
    assert {"train", "validation"} == {run for run, _, _ in alone}
    tags = {tag for _, tag, _ in alone}
    assert {"batch_3", "keras", "epoch_loss", "epoch_mae", "batch_loss"} <= tags
    assert [6, 6] == [len(found["train", "rate", 1]) for found in (alone, both)]
    assert any(tag.endswith("kernel/histogram") for tag in tags)
    for (run, tag, step), values in alone.items():
        others = both[run, tag, step]
        assert len(values) == len(others)
        for one, two in zip(values, others, strict=True):
            is_number = one.dtype.kind == "f"
            if is_number and not tag.endswith("steps_per_second"):  # times differ
                np.testing.assert_allclose(two, one, TOLERANCE, 1e-6, err_msg=tag)
