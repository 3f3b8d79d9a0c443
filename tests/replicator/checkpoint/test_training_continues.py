"""Training goes on from a checkpoint, on any backend and number of replicas."""

from __future__ import annotations

import dataclasses
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import replicator
from replicator import InputReplicationMode

NUM_EXAMPLES = 96
GLOBAL_BATCH_SIZE = 8
_RNG = np.random.default_rng(0)
XS = _RNG.normal(size=(NUM_EXAMPLES, 6)).astype(np.float32)
YS = _RNG.normal(size=(NUM_EXAMPLES, 1)).astype(np.float32)
CPUS = [f"CPU:{i}" for i in range(4)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Training:
    """A replicator with all that a training loop holds."""

    repl: Any
    model: Any
    optimizer: Any
    inputs: Any
    step: Any

    def losses(self, num_steps):
        """Trains; returns each step's mean loss."""
        return [
            float(self.repl.reduce("mean", self.repl.run(self.step, self.inputs)))
            for _ in range(num_steps)
        ]

    def manager(self, directory, **options):
        """What saves all of it."""
        return self.repl.make_checkpoint_manager(
            directory,
            inputs=self.inputs,
            model=self.model,
            optimizer=self.optimizer,
            **options,
        )


def _input_fn(ctx):
    share = ctx.get_per_replica_batch_size(GLOBAL_BATCH_SIZE)
    data = tf.data.Dataset.from_tensor_slices((XS, YS)).shuffle(NUM_EXAMPLES, seed=5)
    data = data.shard(ctx.num_input_pipelines, ctx.input_pipeline_id)
    return data.repeat().batch(share, drop_remainder=True)


def _training(
    name,
    num_replicas,
    *,
    is_local=False,
    mode=InputReplicationMode.PER_WORKER,
    **options,
):
    """Regression; ``is_local`` adds batch norm and dropout, which differ by replica."""
    keras.utils.set_random_seed(1)
    repl = replicator.create(name, num_replicas=num_replicas, **options)
    layers = [keras.Input((6,)), keras.layers.Dense(8, activation="tanh")]
    with repl.context():
        if is_local:
            layers += [keras.layers.BatchNormalization(), keras.layers.Dropout(0.3)]
        model = keras.Sequential([*layers, keras.layers.Dense(1)])
        optimizer = repl.wrap_optimizer(keras.optimizers.Adam(0.01))
    inputs = repl.make_input_iterator(_input_fn, mode)

    def step(batch):
        x, y = batch
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
        grads = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(grads, model.trainable_variables, strict=True))
        return loss

    return Training(
        repl=repl, model=model, optimizer=optimizer, inputs=inputs, step=step
    )


def _mirrored(num_replicas):
    devices = CPUS[:num_replicas]
    return {"devices": devices, "variable_placement": "mirrored"}


@pytest.mark.parametrize("placement", ["shared", "mirrored"])
def test_four_replicas_continue_bit_for_bit(tmp_path, placement):
    """Batch norm, dropout, Adam and a shuffled epoch: equal losses and weights."""
    options = _mirrored(4) if placement == "mirrored" else {}
    before = _training("in_graph", 4, is_local=True, **options)
    before.losses(5)
    before.manager(tmp_path).save()
    expected = before.losses(20)

    after = _training("in_graph", 4, is_local=True, **options)
    restored = after.manager(tmp_path).restore()

    assert expected == after.losses(20)
    for a, b in zip(before.model.variables, after.model.variables, strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())
    assert 5 == restored.step
    assert "each replica its own" in restored.local_state
    assert "exact, from the state of the iterators" == restored.input_position


@pytest.mark.parametrize("mode", list(InputReplicationMode))
def test_fewer_replicas_continue_the_same_curve(tmp_path, mode):
    """Four, then two, then one, then four replicas: the losses of never stopping."""
    whole = _training("in_graph", 4, mode=mode)
    expected = whole.losses(16)

    got = []
    for name, num_replicas in [
        ("in_graph", 4),
        ("in_graph", 2),
        ("single", 1),
        ("in_graph", 4),
    ]:
        part = _training(name, num_replicas, mode=mode)
        manager = part.manager(tmp_path)
        manager.restore()
        got += part.losses(4)
        manager.save()

    np.testing.assert_allclose(expected, got, rtol=1e-5)


def test_a_stock_strategy_takes_over_and_hands_back(tmp_path):
    """in_graph, tf_mirrored, in_graph: one curve, from one set of files."""
    expected = _training("single", 1).losses(12)

    got = []
    for name in ("in_graph", "tf_mirrored", "in_graph"):
        part = _training(name, 2, devices=CPUS[:2])
        manager = part.manager(tmp_path)
        manager.restore()
        got += part.losses(4)
        manager.save()
        assert name == manager.read_metadata().backend

    np.testing.assert_allclose(expected, got, rtol=1e-5)


def test_restoring_in_place_undoes_what_came_after(tmp_path):
    """The replicator that saved goes back, replica-local state and inputs included."""
    training = _training("in_graph", 4, is_local=True)
    manager = training.manager(tmp_path)
    training.losses(3)
    manager.save()
    expected = training.losses(6)

    manager.restore()

    assert expected == training.losses(6)


def test_a_module_and_a_plain_optimizer_are_saved_too(tmp_path):
    """tf.Module, an optimizer that nobody wrapped, and plain variables."""

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
