"""Which functions are one step, their first trace, and what they draw."""

import functools
import gc
import inspect
import logging
import random
import warnings
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.autograph.pyct import transpiler

import replicator

# Of one piece of code: when a warning comes, and when an error.
NUM_TO_WARN, MOST = 5, 16
NUM_MODELS = MOST + 2


def _counted():
    traced = []

    def step(*args, **options):
        traced.append((args, options))
        return tf.constant(1.0)

    return step, traced


class _Model:
    def __init__(self, index=0):
        self.index = index
        self.traced = []

    def step(self, scale):
        self.traced.append(scale)
        return tf.constant(1.0) * scale

    def draw(self):
        return tf.constant(self.index)

    __call__ = draw


def test_partials_of_equal_parts_are_one_step(repl_once):
    step, traced = _counted()
    weight = tf.Variable(2.0)

    def run():
        repl_once.run(functools.partial(step, weight, (1, 1.0), shift=-0.0, name="a"))

    run()
    num_traces = len(traced)
    for _ in range(MOST + 2):
        run()

    assert num_traces == len(traced)


PARTIALS = {
    # Equal is not enough: 1, 1.0 and True are traced differently.
    "types": [((1,), {}), ((1.0,), {}), ((True,), {})],
    "signs": [((0.0,), {}), ((-0.0,), {})],
    "items": [(((1, 2),), {}), (((1, 3),), {})],
    "nests": [(((1,),), {}), ((1,), {})],
    # A value by position is none by name, and the other way round.
    "names": [
        ((1.0, 2.0), {}),
        ((1.0,), {"shift": 2.0}),
        ((2.0,), {"shift": 1.0}),
        ((), {"shift": 2.0, "scale": 1.0}),
    ],
}


@pytest.mark.parametrize("what", PARTIALS)
def test_partials_of_other_arguments_are_other_steps(what):
    repl = replicator.create("single")
    step, traced = _counted()
    for args, options in 2 * PARTIALS[what]:
        repl.run(functools.partial(step, *args, **options))

    assert repr(PARTIALS[what]) == repr(traced)


def test_a_partial_of_a_list_is_only_itself():
    """A list could change between two calls without leaving a trace."""
    repl, shifts = replicator.create("single"), [1.0]
    step, traced = _counted()
    for _ in range(2):
        repl.run(functools.partial(step, shifts))

    assert 2 == len(traced)


def test_a_partial_of_a_method_is_known_by_its_object():
    repl, model = replicator.create("single"), _Model()

    for _ in range(10):
        repl.run(functools.partial(model.step, 2.0))

    assert [2.0] == model.traced


@pytest.mark.parametrize("part", ["step", "model"])
def test_programs_of_a_partial_go_with_its_parts(in_graph, part):
    def step(model):
        return model.step(2.0)

    parts = {"step": step, "model": _Model()}
    del step
    in_graph.run(functools.partial(parts["step"], parts["model"]))
    assert "2 replicas, " in in_graph.explain()
    del parts[part]
    gc.collect()

    assert "no step has been traced yet" in in_graph.explain()


def test_programs_of_many_partials_of_numbers_do_not_pile_up():
    repl = replicator.create("in_graph", num_replicas=1)
    step, _ = _counted()

    def loop():
        for index in range(MOST + 4):
            repl.run(functools.partial(step, float(index)))

    with pytest.warns(replicator.RetraceWarning):
        loop()
    gc.collect()

    assert repl.explain().count("1 replicas, ") <= MOST


def _partial(repl):
    step, _ = _counted()
    for index in range(NUM_TO_WARN + 2):
        repl.run(functools.partial(step, tf.constant(float(index))))


def _partial_of_a_method(repl):
    model = _Model()
    for index in range(NUM_TO_WARN + 2):
        repl.run(functools.partial(model.step, float(index)))


def _lambda(repl):
    for _ in range(NUM_TO_WARN + 2):
        repl.run(lambda: tf.constant(1.0))


def _method_of_new_objects(repl):
    for index in range(NUM_MODELS):
        assert index == int(repl.run(_Model(index).draw)[1])


def _new_objects(repl):
    for index in range(NUM_MODELS):
        assert index == int(repl.run(_Model(index))[1])


def _check_said_once(repl, loop, name):
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        loop(repl)

    (warning,) = [w for w in seen if w.category is replicator.RetraceWarning]
    text = str(warning.message)
    assert text.startswith(f"{NUM_TO_WARN} different function ")
    assert f"{name}' were passed to run()" in text
    assert "once, outside the loop, and pass the same object every time" in text
    assert __file__ == warning.filename


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize(
    ("loop", "name"),
    [(_partial, "step"), (_partial_of_a_method, "step"), (_lambda, "<lambda>")],
)
def test_a_new_function_in_every_call_is_said_once(repl_once, loop, name):
    _check_said_once(repl_once, loop, name)


@pytest.mark.parametrize(
    ("loop", "name"), [(_method_of_new_objects, "draw"), (_new_objects, "_Model")]
)
def test_a_step_of_a_new_object_in_every_call_is_said_once(loop, name):
    """A stock strategy keeps the objects, so there nobody knows that they are gone."""
    _check_said_once(replicator.create("in_graph", num_replicas=2), loop, name)


def test_too_many_functions_are_an_error():
    repl = replicator.create("single")

    def loop():
        for _ in range(100):
            repl.run(lambda: tf.constant(1.0))

    with (
        pytest.warns(replicator.RetraceWarning),
        pytest.raises(replicator.RetraceLimitError, match=r"17 different function obj"),
    ):
        loop()


def _objects_that_live(repl):
    for model in [_Model() for _ in range(NUM_TO_WARN + 1)]:
        repl.run(model.draw)
        repl.run(model)


def _objects_that_are_run_again(repl):
    for _ in range(NUM_TO_WARN + 1):
        model = _Model()
        for _ in range(2):
            repl.run(model.draw)


def _partials_of_different_objects(repl):
    for model in [_Model() for _ in range(NUM_TO_WARN + 1)]:
        for _ in range(2):
            repl.run(functools.partial(model.step, 1.0))


def _objects_at_the_address_of_others(repl):
    """Counts go with the object whose methods were counted."""
    for _ in range(3):
        model = _Model()
        for scale in [*range(NUM_TO_WARN - 1), 0]:
            repl.run(functools.partial(model.step, float(scale)))
        del model
        gc.collect()


@pytest.mark.parametrize(
    "loop",
    [
        _objects_that_live,
        _objects_that_are_run_again,
        _partials_of_different_objects,
        _objects_at_the_address_of_others,
    ],
)
def test_steps_that_are_not_traced_in_every_call_say_nothing(loop):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loop(replicator.create("single"))


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
    with pytest.raises(replicator.CreateVariableInStepError, match=message):
        in_graph.run(step, ONE_EACH)


def test_an_iterator_that_is_read_in_a_step_is_refused(in_graph):
    inputs = in_graph.make_input_iterator(lambda ctx: tf.data.Dataset.range(4).batch(1))

    with pytest.raises(
        replicator.RunContextError, match=r"next\(inputs\) was called inside a step"
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


def test_resetting_a_generator_resets_every_replica(in_graph):
    with in_graph.context():
        generator = tf.random.Generator.from_seed(5)

    def step():
        return generator.uniform([4])

    first = [v.numpy() for v in in_graph.run(step)]
    in_graph.run(step)
    generator.reset_from_seed(5)
    again = [v.numpy() for v in in_graph.run(step)]

    np.testing.assert_array_equal(first, again)


def _drawn(backend, num_replicas):
    keras.utils.set_random_seed(7)
    repl = replicator.create(backend, num_replicas=num_replicas)
    with repl.context():
        layer = keras.layers.Dropout(0.5, seed=3)
        generator = tf.random.Generator.from_seed(5)

    def step():
        return {
            "layer with a seed": layer(tf.ones([64]), training=True),
            "generator": generator.uniform([4]),
            "normal": keras.random.normal([8]),
            "dropout": keras.random.dropout(tf.ones([64]), 0.5),
            "shuffle": keras.random.shuffle(tf.range(64)),
            "sum": keras.ops.sum(keras.random.uniform([8])),
        }

    found = []
    for _ in range(3):
        found.append(repl.run(step))
        generator.uniform([1])  # outside, which all replicas notice
    return found


def test_replica_0_draws_what_one_device_draws():
    keras.utils.set_random_seed(7)
    outside = keras.random.normal([8]).numpy()
    alone, split = _drawn("single", 1), _drawn("in_graph", 2)

    np.testing.assert_array_equal(outside, alone[0]["normal"][0])
    for one, both in zip(alone, split, strict=True):
        for name, (value,) in one.items():
            np.testing.assert_array_equal(value, both[name][0])
            assert not np.array_equal(value, both[name][1])


def test_steps_and_programs_share_the_generator_of_keras(in_graph):
    def one():
        return keras.random.normal([8])

    def other():
        return keras.random.normal([8])

    drawn = [keras.random.normal([8]).numpy()]
    for step in (one, other, one):
        drawn += [value.numpy() for value in in_graph.run(step)]
    drawn.append(keras.random.normal([8]).numpy())

    assert len(drawn) == len({value.tobytes() for value in drawn})


def test_a_step_keeps_its_generator_when_keras_forgets_it(repl_once):
    def step():
        return keras.random.normal([8])

    before = repl_once.run(step)[0].numpy()
    keras.utils.set_random_seed(3)
    gc.collect()
    after = repl_once.run(step)[0].numpy()

    assert before.tobytes() != after.tobytes()


def test_a_step_that_draws_nothing_makes_no_generator(repl_once):
    keras.utils.set_random_seed(3)
    state = random.getstate()

    repl_once.run(lambda: tf.constant(1.0))

    assert state == random.getstate()


def test_a_step_that_fails_leaves_the_generator_as_keras_would(in_graph):
    def failing():
        keras.random.normal([2])
        raise ValueError("mine")

    keras.utils.set_random_seed(3)
    with pytest.raises(ValueError, match="mine"):
        in_graph.run(failing)

    state = random.getstate()
    in_graph.run(lambda: keras.random.normal([2]))
    assert state == random.getstate()  # no other one was made
