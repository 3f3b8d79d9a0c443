"""Variables that the first trace of a step creates."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import replicator
from replicator import errors


class Lazy(tf.Module):
    def __init__(self, initial_value):
        super().__init__()
        self.initial_value, self.weight = initial_value, None

    def __call__(self, x):
        if self.weight is None:
            self.weight = tf.Variable(self.initial_value(x), name="lazy")
        return x * self.weight


INITIAL_VALUES = {
    "a number": lambda _: 2.0,
    "a function": lambda _: lambda: tf.constant(2.0),
    "a tensor of the graph": lambda _: tf.reduce_sum(tf.ones([2])),
}


@pytest.mark.parametrize("num_replicas", [1, 2])
@pytest.mark.parametrize("initial_value", INITIAL_VALUES.values(), ids=INITIAL_VALUES)
def test_a_module_makes_its_weight_in_the_first_step(num_replicas, initial_value):
    """Once for all replicas and for all steps; a gradient reaches it."""
    backend = "single" if num_replicas == 1 else "in_graph"
    repl = replicator.create(backend, num_replicas=num_replicas)
    module = Lazy(initial_value)
    optimizer = repl.wrap_optimizer(keras.optimizers.SGD(0.5))

    def step(x):
        with tf.GradientTape() as tape:
            y = module(x)
        optimizer.apply(tape.gradient([y], [module.weight]), [module.weight])
        return y

    one = replicator.PerReplica([tf.ones([])] * num_replicas)
    found = [list(map(float, repl.run(step, one))) for _ in range(2)]

    assert [[2.0] * num_replicas, [1.5] * num_replicas] == found
    assert 1.0 == float(module.weight)


def test_a_model_is_built_by_its_first_batch(in_graph):
    """With metrics that compile() has not made yet, as Keras does without replicas."""
    keras.utils.set_random_seed(1)
    with in_graph.context():
        model = keras.Sequential([keras.layers.Dense(1, kernel_initializer="ones")])
        model.compile(loss="mse", metrics=["mae"])

    def step(x):
        y = model(x, training=True)
        return model.compute_metrics(x, tf.zeros_like(y), y)["mae"]

    x = tf.ones([2, 3])
    found = in_graph.run(step, replicator.PerReplica([x] * in_graph.num_replicas))

    assert [3.0] * in_graph.num_replicas == [float(value) for value in found]
    assert (3, 1) == model.layers[0].kernel.shape


def test_a_variable_of_each_trace_is_refused(in_graph):
    """The second trace makes it again, so it would be new for every shape."""
    with pytest.raises(
        errors.CreateVariableInStepError, match=r"'mine'\) that it cannot create once"
    ):
        in_graph.run(lambda: tf.Variable(np.ones(2), name="mine") + 1.0)


def test_a_variable_that_depends_on_the_batch_is_refused(in_graph):
    """Its initial value exists in the step only."""
    module = Lazy(lambda x: 2.0 * x)
    one = replicator.PerReplica([tf.ones([])] * in_graph.num_replicas)

    with pytest.raises(errors.CreateVariableInStepError, match=r"variable \('lazy'\)"):
        in_graph.run(module, one)


def test_an_iterator_that_is_read_in_a_step_is_refused(in_graph):
    """It would read one batch while tracing, for all steps."""
    inputs = in_graph.make_input_iterator(lambda ctx: tf.data.Dataset.range(4).batch(1))

    with pytest.raises(
        errors.RunContextError, match=r"next\(inputs\) was called inside a step"
    ):
        in_graph.run(lambda: next(inputs))
