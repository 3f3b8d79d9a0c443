"""What nobody refers to any more is gone: programs, functions, copies of variables."""

import gc
import weakref

import keras
import psutil
import pytest
import tensorflow as tf
from tensorflow.python.eager import context as eager_context

import replicator


def function_names():
    return set(map(str, eager_context.context().list_function_names()))


def _make_step(repl, width=8, depth=1):
    """A training step over a model of its own, with batch norm (replica-local)."""
    with repl.context():
        layers = [keras.layers.Dense(width, activation="relu") for _ in range(depth)]
        model = keras.Sequential(
            [keras.Input((4,)), *layers, keras.layers.BatchNormalization()]
        )
        optimizer = repl.wrap_optimizer(keras.optimizers.SGD(0.1, momentum=0.9))

    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(tf.ones([2, 4]), training=True) ** 2)
        grads = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(grads, model.trainable_variables, strict=True))
        return loss

    return step


@pytest.mark.parametrize("name", ["single", "in_graph"])
def test_a_program_goes_with_its_step_function(name):
    """The step function is not kept, and neither are the functions made of it."""
    repl = replicator.create(name, num_replicas=1 if name == "single" else 2)
    gc.collect()
    before = function_names()

    step = _make_step(repl)
    repl.run(step)
    reference, num_added = weakref.ref(step), len(function_names() - before)
    del step
    gc.collect()

    assert num_added
    assert reference() is None
    assert set() == {n for n in function_names() - before if "replicated" in n}
    assert [] == repl._programs.items()


def test_a_method_keeps_its_program_as_long_as_its_object():
    """agent.step is made anew at each access, and still traced once."""
    repl = replicator.create("in_graph", num_replicas=2)
    traced = []

    class Agent:
        def step(self):
            traced.append(self)
            return tf.constant(1)

    agent = Agent()
    for _ in range(3):
        repl.run(agent.step)
        gc.collect()

    assert 1 == len(traced)
    traced.clear()
    del agent
    gc.collect()

    assert [] == repl._programs.items()


def test_other_programs_live_on_when_one_goes():
    """Two steps over one variable: the state outlives the first of them."""
    repl = replicator.create("in_graph", num_replicas=2)
    with repl.context():
        local = tf.Variable(0.0, trainable=False)

    def add():
        replica_id = replicator.get_replica_context().replica_id
        local.assign_add(tf.cast(replica_id + 1, tf.float32))
        return local.read_value()

    def read():
        return local.read_value()

    repl.run(add)
    repl.run(read)
    del add
    gc.collect()

    assert [1.0, 2.0] == [float(v) for v in repl.run(read)]


def test_copies_of_variables_go_with_the_model():
    """A model that is dropped takes its replica-local copies and slots with it."""
    repl = replicator.create("in_graph", num_replicas=4)
    step = _make_step(repl)
    repl.run(step)
    copies = [weakref.ref(c) for e in repl._table.entries() for c in e.copies]
    assert copies

    del step
    gc.collect()

    assert [] == repl._table.entries()
    assert [] == [c for c in copies if c() is not None]


def test_the_traced_graph_is_freed():
    """No graph object outlives the trace, custom gradients of collectives included."""
    repl = replicator.create("in_graph", num_replicas=2)

    def graphs():
        gc.collect()
        found = [o for o in gc.get_objects() if type(o).__name__ == "FuncGraph"]
        return {id(g) for g in found if g.name == "replica"}

    before = graphs()
    step = _make_step(repl)
    repl.run(step)

    assert set() == graphs() - before


def test_memory_does_not_grow_over_many_programs():
    """Models trained and dropped on one replicator need the memory of a few."""
    repl = replicator.create("in_graph", num_replicas=2)
    process = psutil.Process()

    def train(num_models):
        for _ in range(num_models):
            step = _make_step(repl, width=64, depth=6)
            repl._programs._num_traced.clear()  # as if each had code of its own
            repl.run(step)
            del step
            gc.collect()
        return process.memory_info().rss

    sizes, most = [train(3)], 8 * 2**20  # 2.5 MiB each, if graphs were kept
    # What other tests left may grow once; a leak grows every time.
    for _ in range(3):
        sizes.append(train(6))
        if sizes[-1] - sizes[-2] < most:
            break

    assert sizes[-1] - sizes[-2] < most, sizes
