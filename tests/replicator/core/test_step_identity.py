"""Which function objects are one step, and what is said of too many."""

import functools
import gc
import warnings

import pytest
import tensorflow as tf

import replicator
from replicator import errors

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

    with pytest.warns(errors.RetraceWarning):
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

    (warning,) = [w for w in seen if w.category is errors.RetraceWarning]
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
        pytest.warns(errors.RetraceWarning),
        pytest.raises(errors.RetraceLimitError, match=r"17 different function obj"),
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
