"""Training continues from a checkpoint, whatever it is restored into."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from tiny_models import Training

import replicator
from replicator import PerReplica

CPUS = [f"CPU:{i}" for i in range(4)]


def _training(name, num_replicas, *, is_local=False, mode="PER_WORKER", **options):
    """Shuffled batches; ``is_local`` adds state that differs by replica."""
    repl = replicator.create(name, num_replicas=num_replicas, **options)
    model = "batch norm and dropout" if is_local else "dense"
    return Training(repl, model, mode=mode, is_shuffled=True)


def _manager(training, folder):
    return training.make_manager(folder, inputs=training.inputs)


def test_replicas_continue_bit_for_bit(tmp_path):
    options = {"devices": CPUS[:2], "variable_placement": "mirrored"}
    before = _training("in_graph", 2, is_local=True, **options)
    before.run(5)
    manager = _manager(before, tmp_path)
    manager.save()
    expected = before.run(10)

    after = _training("in_graph", 2, is_local=True, **options)
    restored = _manager(after, tmp_path).restore()
    manager.restore()

    assert expected == after.run(10) == before.run(10)
    for a, b in zip(before.model.variables, after.model.variables, strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())
    assert 5 == restored.step
    assert "each replica its own" in restored.local_state
    assert "exact, from the state of the iterators" == restored.input_position


def test_other_replicas_and_backends_continue_the_same_curve(tmp_path):
    parts = [("in_graph", 4), ("in_graph", 2), ("single", 1), ("tf_mirrored", 2)]
    parts.append(("in_graph", 4))
    expected = _training("single", 1, mode="PER_REPLICA").run(3 * len(parts))

    got = []
    for name, count in parts:
        part = _training(name, count, mode="PER_REPLICA", devices=CPUS[:count])
        manager = _manager(part, tmp_path)
        manager.restore()
        got += part.run(3)
        manager.save()
        assert name == manager.read_metadata().backend

    np.testing.assert_allclose(expected, got, rtol=1e-5)


def test_a_module_and_a_plain_optimizer_are_saved_too(tmp_path):
    class Net(tf.Module):
        def __init__(self):
            super().__init__()
            self.layers = [tf.Variable([1.0, 2.0]), tf.Variable([3.0])]

    def make():
        repl = replicator.create("in_graph", num_replicas=2)
        with repl.context():
            net, optimizer = Net(), keras.optimizers.SGD(0.1, momentum=0.9)
            optimizer.build(net.layers)
        return net, repl.make_checkpoint_manager(tmp_path, net=net, optimizer=optimizer)

    net, manager = make()
    net.layers[1].assign([30.0])
    manager.save(1)
    net, manager = make()

    assert 6 == manager.restore().num_variables  # 2, their momenta, step and rate
    assert [30.0] == net.layers[1].numpy().tolist()


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
@pytest.mark.parametrize("how", ["plain", "plain, with slots", "manager"])
@pytest.mark.parametrize("place", ["attribute", "list", "dict"])
def test_momentum_and_step_are_found_in_a_module(repl_once, place, how, tmp_path):
    """TensorFlow keeps values for slots that are made later; save() needs no step."""
    if how == "plain" and isinstance(repl_once, replicator.StrategyReplicator):
        pytest.xfail("slots that a stock strategy makes later start at zero")
    trainer, other = Trainer(repl_once, place), Trainer(repl_once, place)
    _run(repl_once, trainer)

    def manage(each):
        return repl_once.make_checkpoint_manager(tmp_path / "ours", trainer=each)

    if how == "manager":
        manage(trainer).save()
    path = tf.train.Checkpoint(trainer=trainer).save(tmp_path / "plain")
    expected = _run(repl_once, trainer)

    if how == "manager":
        assert NUM_STEPS == manage(other).restore().step
    else:
        if how == "plain, with slots":
            _run(repl_once, other, 1)
        restored = tf.train.Checkpoint(trainer=other).restore(path)
        if how == "plain, with slots":
            restored.assert_consumed()

    np.testing.assert_array_equal(expected, _run(repl_once, other))


def test_a_checkpoint_leaves_the_library(tmp_path):
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
