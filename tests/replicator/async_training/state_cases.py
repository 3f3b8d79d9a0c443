"""Cases of two workers and two servers about state: checkpoints, and what is kept."""

import gc
import tempfile
import weakref

import numpy as np
import tensorflow as tf
import tiny_models

import replicator
from replicator.backends.asynchronous import MultiWorkerAsyncReplicator

CASES = {}


def case(function):
    CASES[function.__name__] = function
    return function


def by_pipeline(ctx):
    """Batches of integers: 1 from pipeline 0, 2 from pipeline 1, and so on."""
    return tf.data.Dataset.from_tensors(float(ctx.input_pipeline_id + 1)).repeat()


def _trained(repl, *, num_steps):
    training = tiny_models.Training(repl, "batch norm")
    if num_steps:
        training.run(num_steps, num_steps_per_run=num_steps)
    return training.model, training.optimizer, training.inputs


def _values(model, optimizer):
    variables = [*model.variables, *optimizer.wrapped.variables]
    return [np.asarray(v).tolist() for v in variables]


@case
def checkpoints():
    repl = MultiWorkerAsyncReplicator()
    model, optimizer, inputs = _trained(repl, num_steps=4)
    here = "/job:chief/replica:0/task:0/device:CPU:0"
    others = {
        "single": lambda: replicator.create("single", devices=[here]),
        "in_graph": lambda: replicator.create(
            "in_graph", num_replicas=2, devices=[here, here]
        ),
        "async": MultiWorkerAsyncReplicator,
    }
    found = {}
    for name, make in others.items():
        folder = tempfile.mkdtemp()
        repl.make_checkpoint_manager(
            folder, inputs=inputs, model=model, optimizer=optimizer
        ).save()
        other = make()
        its_model, its_optimizer, its_inputs = _trained(other, num_steps=0)
        manager = other.make_checkpoint_manager(
            folder, inputs=its_inputs, model=its_model, optimizer=its_optimizer
        )
        restored = manager.restore()
        there = _values(its_model, its_optimizer)
        its_model, its_optimizer, _ = _trained(other, num_steps=3)
        back = other.make_checkpoint_manager(
            tempfile.mkdtemp(), model=its_model, optimizer=its_optimizer
        ).save()
        again_model, again_optimizer, _ = _trained(repl, num_steps=0)
        repl.make_checkpoint_manager(
            tempfile.mkdtemp(), model=again_model, optimizer=again_optimizer
        ).restore(back)
        found[name] = [
            restored.step,
            restored.input_position,
            there == _values(model, optimizer),
            _values(again_model, again_optimizer) == _values(its_model, its_optimizer),
        ]
    return found


@case
def dropped_step():
    repl = MultiWorkerAsyncReplicator()
    with repl.context():
        weight = tf.Variable(0.0)

    def step():
        weight.assign_add(1.0)

    repl.run(step)
    repl.schedule(step)
    held, num_before = weakref.ref(step), len(repl._programs.items())
    del step
    repl.join()
    gc.collect()
    return [held() is None, num_before, len(repl._programs.items()), float(weight)]


@case
def failed_step():
    """What is read after a step that failed on one worker, and what a reset does."""
    repl = MultiWorkerAsyncReplicator()
    with repl.context():
        state = tf.Variable(0.0, trainable=False)
        limit = tf.Variable(9.0, trainable=False)

    def step(x):
        added = state.assign(state + x)
        with tf.control_dependencies([added]):
            tf.debugging.assert_less(x, limit)
        return state.read_value()

    inputs = repl.make_input_iterator(by_pipeline)
    repl.run(step, inputs)
    limit.assign(2.0)
    try:
        repl.run(step, inputs)
    except tf.errors.InvalidArgumentError:
        limit.assign(9.0)
    failed = float(state)
    state.assign(failed)
    reset = [float(value) for value in repl.run(step, inputs)]
    return [failed, reset, inputs.num_steps]
