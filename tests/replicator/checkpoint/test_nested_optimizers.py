"""A wrapped optimizer is saved wherever it hangs."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import replicator
from replicator import PerReplica

NUM_STEPS = 3


class Trainer(tf.Module):
    def __init__(self, repl, place="attribute"):
        super().__init__()
        with repl.context():
            self.weight = tf.Variable([1.0, 2.0])
            optimizer = repl.wrap_optimizer(keras.optimizers.SGD(0.1, momentum=0.9))
        self.optimizer = {
            "attribute": optimizer,
            "list": [optimizer],
            "dict": {"main": optimizer},
        }[place]
        self.apply = optimizer.apply_gradients

    def step(self, x):
        self.apply([(x * self.weight, self.weight)])


def _run(repl, trainer, num_steps=NUM_STEPS):
    x = PerReplica([tf.constant(1.0 + r) for r in range(repl.num_replicas)])
    for _ in range(num_steps):
        repl.run(trainer.step, x)
    return trainer.weight.numpy()


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize("place", ["attribute", "list", "dict"])
def test_a_plain_checkpoint_keeps_momentum_and_step(repl_once, place, tmp_path):
    """Training continues as if it had never stopped."""
    repl = repl_once
    trainer = Trainer(repl, place)
    _run(repl, trainer)
    path = tf.train.Checkpoint(trainer=trainer).save(tmp_path / "plain")
    expected = _run(repl, trainer)

    other = Trainer(repl, place)
    _run(repl, other, 1)  # makes the slots
    tf.train.Checkpoint(trainer=other).restore(path).assert_consumed()

    np.testing.assert_array_equal(expected, _run(repl, other))


def test_what_is_restored_before_the_slots_exist_reaches_them(tmp_path):
    """TensorFlow keeps values for variables that are made later."""
    repl = replicator.create("in_graph", num_replicas=2)
    trainer = Trainer(repl)
    _run(repl, trainer)
    path = tf.train.Checkpoint(trainer=trainer).save(tmp_path / "plain")
    expected = _run(repl, trainer)

    other = Trainer(repl)
    tf.train.Checkpoint(trainer=other).restore(path)

    np.testing.assert_array_equal(expected, _run(repl, other))


def test_a_checkpoint_leaves_the_library(tmp_path):
    """An optimizer of Keras in the same place reads it, and the other way round."""
    repl = replicator.create("in_graph", num_replicas=2)
    trainer = Trainer(repl)
    _run(repl, trainer)
    path = tf.train.Checkpoint(trainer=trainer).save(tmp_path / "plain")
    expected = _run(repl, trainer)

    plain = tf.Module()
    plain.weight = tf.Variable([0.0, 0.0])
    plain.optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
    plain.optimizer.build([plain.weight])
    tf.train.Checkpoint(trainer=plain).restore(path).assert_existing_objects_matched()
    for _ in range(NUM_STEPS):
        # The mean over two replicas of x = 1 and 2.
        plain.optimizer.apply([1.5 * plain.weight], [plain.weight])

    np.testing.assert_allclose(plain.weight.numpy(), expected, rtol=1e-6)


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize("place", ["attribute", "list", "dict"])
def test_the_checkpoint_manager_finds_it_and_its_step(repl_once, place, tmp_path):
    """save() needs no step, and slots are made before they are restored."""
    repl = repl_once
    trainer = Trainer(repl, place)
    manager = repl.make_checkpoint_manager(tmp_path, trainer=trainer)
    _run(repl, trainer)
    manager.save()
    expected = _run(repl, trainer)

    other = Trainer(repl, place)
    restored = repl.make_checkpoint_manager(tmp_path, trainer=other).restore()

    assert NUM_STEPS == restored.step
    np.testing.assert_array_equal(expected, _run(repl, other))
