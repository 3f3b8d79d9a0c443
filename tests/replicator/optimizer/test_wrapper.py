"""What an optimizer does with gradients, whoever wrapped it."""

from __future__ import annotations

import functools

import keras
import pytest
import tensorflow as tf

import replicator


@pytest.mark.parametrize(
    "kind",
    [keras.optimizers.SGD, functools.partial(keras.optimizers.SGD, momentum=0.5)],
    ids=["sgd", "momentum"],
)
@pytest.mark.parametrize("num_wrapped", [1, 4])
def test_a_step_is_whole_whoever_wrapped_the_optimizer(
    in_graph, wrapped, kind, num_wrapped
):
    """Wrapped for 4 replicas or 1, and run by 1 as for debugging, or by 2."""
    owner = replicator.create("in_graph", num_replicas=num_wrapped)
    for repl in (replicator.create("single"), in_graph):
        weights, optimizer = wrapped(owner, kind)
        pair = tf.constant([1.0, 2.0]), weights[0]

        repl.run(
            lambda optimizer=optimizer, pair=pair: optimizer.apply_gradients([pair])
        )

        assert optimizer.uses_fused_update
        assert [0.5, 1.0] == weights[0].numpy().tolist()


@pytest.mark.parametrize("accumulation_steps", [1, 2])
def test_a_variable_may_get_its_first_gradient_later(
    in_graph, wrapped, accumulation_steps
):
    """Keras makes state for all variables that it is given, with gradients or not."""
    adam, options = keras.optimizers.Adam, {"accumulation_steps": accumulation_steps}
    weights, optimizer = wrapped(in_graph, adam, **options)
    ones = tf.ones([2])

    for grads in ([ones, None], [None, ones]):
        pairs = list(zip(grads, weights, strict=True))
        for _ in range(accumulation_steps):
            in_graph.run(lambda pairs=pairs: optimizer.apply_gradients(pairs))

    assert 1.0 - 0.5 == pytest.approx(float(weights[0][0]), rel=1e-5)
    assert float(weights[1][0]) < 3.0


def test_an_optimizer_of_tensorflow_1_is_told_how_to_do_without():
    """It is none of Keras 3; gradients that are averaged are all that it needs."""
    repl = replicator.create("in_graph", num_replicas=2)
    optimizer = tf.compat.v1.train.GradientDescentOptimizer(0.5)

    with pytest.raises(
        TypeError,
        match=r"'GradientDescentOptimizer' has no 'apply'; pass for example "
        r"keras.*unwrapped and pass averages to it: apply_gradients\(zip\(rep.*all_mea",
    ):
        repl.wrap_optimizer(optimizer)
