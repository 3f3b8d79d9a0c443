"""A pipeline computes what one device computes: losses and all gradients."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from staged_model import PARTS, Model, batches, mean_squared

import replicator

# Of float32, whose sums have another order.
RTOL = 1e-5
NUM_STEPS = 20


class InTurn:
    """The micro-batches of a model one after the other, without a pipeline."""

    def __init__(self, model):
        self._model = model

    def loss_and_gradients(self, batch, loss_fn):
        """As those of ``Pipeline``."""
        variables = [v for s in self._model.stages for v in s.trainable_variables]
        losses, gradients = [], []
        for part in zip(*(tf.split(x, PARTS) for x in batch), strict=True):
            with tf.GradientTape() as tape:
                values, targets = part
                for k, stage in enumerate(self._model.stages):
                    with replicator.logical_device(k):
                        values = stage(values, training=True)
                losses.append(loss_fn(values, targets))
            gradients.append(tape.gradient(losses[-1], variables))
        means = [tf.add_n(of) / PARTS for of in zip(*gradients, strict=True)]
        return tf.add_n(losses) / PARTS, list(zip(means, variables, strict=True))


@pytest.mark.parametrize(
    ("num_replicas", "num_stages", "schedule", "recompute"),
    [
        (1, 2, "fill_drain", True),
        (1, 3, "one_forward_one_backward", False),
        (1, 4, "one_forward_one_backward", True),
        (2, 2, "one_forward_one_backward", True),
    ],
)
def test_with_dropout_gradients_are_those_of_one_device(
    num_replicas, num_stages, schedule, recompute
):
    """Losses and gradients of 20 steps of Adam; other masks would be far away."""
    losses, gradients = [], []
    for is_cut in (False, True):
        dropout = [lambda: keras.layers.Dropout(0.5, seed=3)]
        model = Model(num_replicas, num_stages, dropout)
        of = (
            model.pipeline(schedule=schedule, recompute=recompute)
            if is_cut
            else InTurn(model)
        )

        def step(batch, of=of, model=model):
            loss, pairs = of.loss_and_gradients(batch, mean_squared)
            model.optimizer.apply_gradients(pairs)
            return loss, {v.path: gradient for gradient, v in pairs}

        inputs = model.repl.make_input_iterator(batches)
        found = [model.repl.run(step, inputs) for _ in range(NUM_STEPS)]
        losses.append([[float(x) for x in loss] for loss, _ in found])
        gradients.append(
            [
                [by[r] for by in each.values()]
                for _, each in found
                for r in range(num_replicas)
            ]
        )

    np.testing.assert_allclose(losses[1], losses[0], rtol=RTOL)
    apart = [
        max(
            float(np.linalg.norm(a - b) / np.linalg.norm(a))
            for a, b in zip(one, other, strict=True)
        )
        for one, other in zip(*gradients, strict=True)
    ]
    assert NUM_STEPS * num_replicas == len(apart)
    assert max(apart) <= RTOL
