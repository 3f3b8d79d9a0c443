"""The first trace of a step: its variables, what AutoGraph converts, and no other."""

import inspect
import logging
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.autograph.pyct import transpiler

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


@pytest.mark.parametrize(
    ("num_replicas", "kind"), [(1, "a number"), *((2, kind) for kind in INITIAL_VALUES)]
)
def test_a_module_makes_its_weight_in_the_first_step(num_replicas, kind):
    backend = "single" if num_replicas == 1 else "in_graph"
    repl = replicator.create(backend, num_replicas=num_replicas)
    module = Lazy(INITIAL_VALUES[kind])
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


ONE_EACH = replicator.PerReplica([tf.ones([])] * 2)
REFUSED = [
    # The second trace makes it again, so it would be new for every shape.
    (
        lambda _: tf.Variable(np.ones(2), name="mine") + 1.0,
        r"'mine'\) that it cannot create once",
    ),
    # Its initial value is of the batch.
    (Lazy(lambda x: 2.0 * x), r"variable \('lazy'\)"),
    (
        lambda _: keras.random.normal([2], seed=keras.random.SeedGenerator(1)),
        r"created a variable \('seed_generator_st",
    ),
]


@pytest.mark.parametrize(("step", "message"), REFUSED)
def test_what_a_step_cannot_create_once_is_refused(in_graph, step, message):
    with pytest.raises(errors.CreateVariableInStepError, match=message):
        in_graph.run(step, ONE_EACH)


def test_an_iterator_that_is_read_in_a_step_is_refused(in_graph):
    inputs = in_graph.make_input_iterator(lambda ctx: tf.data.Dataset.range(4).batch(1))

    with pytest.raises(
        errors.RunContextError, match=r"next\(inputs\) was called inside a step"
    ):
        in_graph.run(lambda: next(inputs))


LIBRARY = Path(replicator.__file__).parent


def test_a_step_and_stages_are_converted_and_what_calls_them_is_not(monkeypatch):
    """Of a pipeline that was a third of what was converted."""
    converted = {}
    original = transpiler.GenericTranspiler.transform_function

    def transform(self, function, context):
        converted[function.__name__] = Path(inspect.getfile(function))
        return original(self, function, context)

    monkeypatch.setattr(transpiler.GenericTranspiler, "transform_function", transform)
    repl = replicator.create("in_graph", num_replicas=1, logical_devices_per_replica=2)

    def stage(x):
        if tf.reduce_sum(x) > 0:  # Python alone could not
            x = x * 3.0
        return x

    def mean(outputs, targets):
        return tf.reduce_mean(outputs - targets)

    pipeline = replicator.Pipeline([stage, stage], num_microbatches=2)

    def step(x):
        if tf.reduce_max(x) > 1.0:
            x = x + 1.0
        return pipeline.loss_and_gradients((x, tf.zeros_like(x)), mean)[0]

    x = replicator.PerReplica([tf.constant([1.0, 3.0])])

    assert [27.0] == [float(loss) for loss in repl.run(step, x)]
    assert {"step", "stage", "mean"} == converted.keys()
    assert not [p for p in converted.values() if p.is_relative_to(LIBRARY)]


@pytest.fixture
def warnings_of_tensorflow():
    said = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: said.append(record.getMessage())
    logger = tf.get_logger()
    logger.addHandler(handler)
    yield said
    logger.removeHandler(handler)


def _train(repl, num_functions=3):
    """Ordinary steps with every kind of variable, each with two numbers of steps."""
    with repl.context():
        weight = tf.Variable(1.0)
        count = tf.Variable(
            0.0, trainable=False, synchronization=tf.VariableSynchronization.ON_READ
        )
        optimizer = repl.wrap_optimizer(keras.optimizers.SGD(0.1, momentum=0.9))
    inputs = repl.make_input_iterator(lambda _: tf.data.Dataset.range(3).repeat())

    def make_step(index):
        def step(x):
            count.assign_add(tf.cast(x, tf.float32))
            optimizer.apply([weight * index], [weight])
            return x

        return step

    for index in range(num_functions):
        step = make_step(float(index))
        for num_steps in (1, 4):
            repl.run(step, inputs, num_steps=num_steps)


@pytest.mark.parametrize("backend", ["single", "tf_mirrored"])
def test_ordinary_steps_make_tensorflow_say_nothing(backend, warnings_of_tensorflow):
    _train(replicator.create(backend, num_replicas=1))

    assert [] == [text for text in warnings_of_tensorflow if "retracing" in text]


def test_replicators_of_one_process_share_nothing(warnings_of_tensorflow):
    """As often as their own code is traced, TensorFlow says it of functions."""

    def make():
        return tf.function(lambda: tf.constant(1))

    for num_replicas in (1, 2, 4):
        _train(replicator.create("in_graph", num_replicas=num_replicas), 2)
    assert [] == [text for text in warnings_of_tensorflow if "retracing" in text]
    for _ in range(6):
        make()()

    assert [text for text in warnings_of_tensorflow if "retracing" in text]
