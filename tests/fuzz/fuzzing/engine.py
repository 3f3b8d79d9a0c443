"""Runs a program by the library."""

from __future__ import annotations

from unittest import mock

import numpy as np
import tensorflow as tf

import replicator
from fuzzing import source, values, variance
from fuzzing.comparing import DifferenceError, Seen
from replicator.core import devices


def run(program, repl=None):
    setting = program.setting
    repl = repl or make_replicator(setting.placement, setting.num_replicas)
    with repl.context():
        variables = {v.name: make_variable(v) for v in program.variables}
    step = source.make_step(program, variables)
    seen = Seen()
    written = set()
    calls = values.schedule(program)
    done = _feed(repl, step, program, calls)
    for call in calls:
        for write in setting.outside:
            if write.step == call.steps[0] and write not in written:
                written.add(write)
                _write(program, variables[write.variable], write)
        if call.fails is not None:
            _fail(done)
            seen.failed.update({n: v.numpy() for n, v in variables.items()})
            repl.assert_in_sync()
            for variable in program.variables:
                if variable.name in variance.may_differ(program):
                    value = values.recovered_value(program, variable, seen.failed)
                    variables[variable.name].assign(value)
            continue
        outputs = next(done)()
        seen.outputs.append(
            [[o[r].numpy() for o in outputs] for r in range(repl.num_local_replicas)]
        )
        seen.means.append(
            [repl.reduce("mean", o).numpy() for o in outputs if o[0].dtype.is_floating]
        )
        seen.outside.append({n: v.numpy() for n, v in variables.items()})
    repl.assert_in_sync()
    return seen


def _fail(done):
    call = next(done)
    try:
        call()
    except tf.errors.InvalidArgumentError as error:
        if source.FAILURE not in str(error):
            raise
        return
    raise DifferenceError("a step in which a replica fails raised nothing")


def _write(program, variable, write):
    value = values.outside_value(program, write, variable.numpy())
    if write.kind == "add":
        variable.assign_add(value)
    else:
        variable.assign(value)


def make_replicator(placement, count):
    if placement == "shared":
        return replicator.create("in_graph", num_replicas=count)
    memory = str if placement == "separate" else devices.memory
    with mock.patch.object(devices, "memory", memory):
        return replicator.create(
            "in_graph",
            num_replicas=count,
            devices=[f"CPU:{index}" for index in range(count)],
            variable_placement="mirrored",
        )


def local_replicas(repl):
    first = repl.first_replica_id
    return range(first, first + repl.num_local_replicas)


def make_variable(variable):
    return tf.Variable(
        values.initial_value(variable),
        trainable=variable.trainable,
        name=variable.name,
        synchronization=tf.VariableSynchronization[variable.synchronization],
        aggregation=tf.VariableAggregation[variable.aggregation],
    )


def _feed(repl, step, program, calls):
    names = [name for name, _ in program.inputs]
    feeds = [values.batches_of(program, call) for call in calls]
    if not names:
        for call in calls:
            yield lambda c=call: repl.run(step, num_steps=len(c.steps))
    elif program.setting.feed == "values":
        for (batches,) in feeds:
            own = [batches[r] for r in local_replicas(repl)]
            fed = tuple(
                replicator.PerReplica([tf.constant(batch[name]) for batch in own])
                for name in names
            )
            yield lambda fed=fed: repl.run(step, fed)
    else:
        inputs = _iterator(repl, program, [step for feed in feeds for step in feed])
        for call in calls:
            yield lambda c=call: repl.run(step, inputs, num_steps=len(c.steps))


def _iterator(repl, program, steps):
    """A pipeline per replica that gives its batches of these steps."""
    names = [name for name, _ in program.inputs]

    def input_fn(ctx):
        own = [batches[ctx.input_pipeline_id] for batches in steps]
        counts = np.array([len(batch.get(source.UNEVEN, ())) for batch in own])
        columns = [np.stack([_padded(batch, name) for batch in own]) for name in names]
        data = tf.data.Dataset.from_tensor_slices((counts, *columns))
        return data.map(given)

    def given(count, *batch):
        found = []
        for name, value in zip(names, batch, strict=True):
            if name == source.UNEVEN:
                found.append(value[:count])
            elif program.setting.feed == "unknown":
                shape = [None] * value.shape.rank
                found.append(tf.compat.v1.placeholder_with_default(value, shape))
            else:
                found.append(value)
        return tuple(found)

    return repl.make_input_iterator(
        input_fn, replicator.InputReplicationMode.PER_REPLICA
    )


def _padded(batch, name):
    """A value, with rows to cut off again where replicas have different numbers."""
    value = batch[name]
    if name != source.UNEVEN:
        return value
    return np.pad(value, (0, values.MAX_ROWS - len(value)))
