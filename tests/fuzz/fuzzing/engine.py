"""A program as the Python that a reader can paste, and its run by the library."""

from __future__ import annotations

import functools
import textwrap
from unittest import mock

import numpy as np
import tensorflow as tf
from fuzzing import lockstep, syntax
from fuzzing.syntax import DifferenceError, Seen

import replicator
from replicator.core import devices


def render(program):
    """The step function as Python; variables and the run as comments."""
    setting = program.setting
    head = [f"# {setting}", *(f"# {variable}" for variable in program.variables)]
    return "\n".join([*head, _function(program, "step")])


def make_step(program, variables):
    """Compiles the step function, over variables that it closes over.

    As a partial: a replicator counts functions whose code is equal, which is that of
    what stands around all of them.
    """
    name = "step"
    namespace = {
        "tf": tf,
        "replicator": replicator,
        "FLOAT": tf.float32,
        **variables,
    }
    exec(compile(_function(program, name), "<program>", "exec"), namespace)
    return functools.partial(tf.autograph.experimental.do_not_convert(namespace[name]))


def _function(program, name):
    names = "".join(f"{name}, " for name, _ in program.inputs)
    unpack = [f"{names}= batch"] if names else []
    body = [
        *unpack,
        *(line for s in program.statements for line in _lines(s)),
        f"return ({''.join(f'{name}, ' for name in program.outputs)})",
    ]
    return "\n".join([f"def {name}({'batch' if names else ''}):", *_indent(body)])


def _indent(lines):
    return [textwrap.indent(line, "    ") for line in lines]


def _define(name, parameters, block, result):
    body = [line for s in block.statements for line in _lines(s)]
    return [f"def {name}({parameters}):", *_indent([*body, f"return {result}"])]


def _listed(names):
    return f"[{', '.join(names)}]"


def _lines(statement):  # noqa: PLR0911 - a line for each kind of statement
    match statement:
        case syntax.Compute(result=result, template=template, arguments=arguments):
            return [f"{result} = {template.format(*arguments)}"]
        case syntax.ReplicaId(result=result):
            return [f"{result} = replicator.get_replica_context().replica_id"]
        case syntax.Communicate():
            return [_collective(statement)]
        case syntax.Read(result=result, variable=variable, is_raw=False):
            return [f"{result} = {variable}.read_value()"]
        case syntax.Read(result=result, variable=variable):
            call = f"resource={variable}.handle, dtype={variable}.dtype"
            return [f"{result} = tf.raw_ops.ReadVariableOp({call})"]
        case syntax.Write():
            return [_write(statement)]
        case syntax.Differentiate():
            return _tape(statement)
        case _:
            return _with_functions(statement)


_RAW = {
    "assign": "AssignVariableOp",
    "assign_add": "AssignAddVariableOp",
    "assign_sub": "AssignSubVariableOp",
}


_UNEVEN = {
    "own": "tf.reduce_sum(u)",
    "examples": "replicator.mean_over_examples(u)",
    "gather": "tf.reduce_sum(replicator.all_gather(u))",
}
_JOIN = "tf.reduce_sum(replicator.all_reduce(u, {op!r}))"


def _write(statement):
    variable, argument = statement.variable, statement.argument
    if statement.form == "raw":
        call = f"resource={variable}.handle, value={argument}"
        return f"tf.raw_ops.{_RAW[statement.method]}({call})"
    more = ", read_value=False" if statement.form == "unread" else ""
    return f"{variable}.{statement.method}({argument}{more})"


def _fail(statement):
    result, fails = statement.result, syntax.FAILS
    lines = []
    if statement.is_late:
        lines = [
            f"late_{result}, = tf.while_loop(",
            "    lambda i: i < 2000, lambda i: (i + 1,), (tf.constant(0),)",
            ")",
        ]
        fails = f"tf.logical_and({fails}, late_{result} > 0)"
    return [
        *lines,
        f"check_{result} = tf.debugging.Assert(",
        f"    tf.logical_not({fails}), [{syntax.FAILURE!r}]",
        ")",
        f"with tf.control_dependencies([check_{result}]):",
        f"    {result} = tf.identity({statement.argument})",
    ]


def _collective(statement):
    operands = _listed(statement.arguments)
    more = "" if statement.parameter is None else f", {statement.parameter!r}"
    call = f"{statement.kind}({operands}{more})"
    return f"{_listed(statement.results)} = replicator.{call}"


def _tape(statement):
    tape = f"tape_{statement.results[0]}"
    watch = [f"{tape}.watch({_listed(statement.watched)})"] if statement.watched else []
    body = [line for s in statement.body.statements for line in _lines(s)]
    call = (
        f"{tape}.gradient({statement.body.result}, {_listed(statement.sources)}, "
        'unconnected_gradients="zero")'
    )
    return [
        f"with tf.GradientTape() as {tape}:",
        *_indent([*watch, *body] or ["pass"]),
        f"{_listed(statement.results)} = [tf.convert_to_tensor(g) for g in {call}]",
    ]


def _followed(statement):
    result, source = statement.result, statement.source
    body = [line for s in statement.body.statements for line in _lines(s)]
    target = statement.body.result
    if isinstance(statement, syntax.Push):
        return [
            f"follow_{result} = tf.autodiff.ForwardAccumulator(",
            f"    {source}, {statement.tangent}",
            ")",
            f"with follow_{result}:",
            *_indent(body or ["pass"]),
            f"{result} = follow_{result}.jvp(",
            f"    {target}, unconnected_gradients=tf.UnconnectedGradients.ZERO",
            ")",
        ]
    return [
        f"with tf.GradientTape() as tape_{result}:",
        *_indent([f"tape_{result}.watch({source})", *body]),
        f"{result} = tape_{result}.jacobian(",
        f'    {target}, {source}, unconnected_gradients="zero"',
        ")",
    ]


def _vectorized(statement):
    result, argument, body = statement.result, statement.argument, statement.body
    lines = []
    if statement.num_unknown:
        lines = [f"hidden_{result} = {argument}"]
        argument = f"hidden_{result}"
    for axis in range(statement.num_unknown):
        mask = f"tf.fill(tf.shape({argument})[{axis} : {axis + 1}], True)"
        lines.append(f"{argument} = tf.boolean_mask({argument}, {mask}, axis={axis})")
    # TensorFlow returns the argument itself where rows come back unchanged, and a tape
    # could not tell the two.
    return [
        *lines,
        *_define(f"row_{result}", statement.parameter, body, body.result),
        f"{result} = tf.ensure_shape(",
        f"    tf.identity(tf.vectorized_map(row_{result}, {argument})),",
        f"    {list(statement.shape)},",
        ")",
    ]


def _with_functions(statement):  # noqa: PLR0911 - a line for each kind of statement
    match statement:
        case syntax.Branch(result=result, predicate=predicate):
            then, orelse = statement.then, statement.orelse
            return [
                *_define(f"then_{result}", "", then, then.result),
                *_define(f"else_{result}", "", orelse, orelse.result),
                f"{result} = tf.cond({predicate}, then_{result}, else_{result})",
            ]
        case syntax.Loop(result=result, start=start, times=times, carried=carried):
            body = statement.body
            return [
                *_define(
                    f"body_{result}",
                    f"round_, {carried}",
                    body,
                    f"round_ + 1, tf.ensure_shape({body.result}, {carried}.shape)",
                ),
                f"_, {result} = tf.while_loop(",
                f"    lambda round_, _: round_ < {times} % 3,",
                f"    body_{result},",
                f"    (tf.constant(0), {start}),",
                ")",
            ]
        case syntax.Push() | syntax.Jacobian():
            return _followed(statement)
        case syntax.Vectorize():
            return _vectorized(statement)
        case syntax.Fail():
            return _fail(statement)
        case syntax.Uneven(result=result, form=form):
            return [f"{result} = {_UNEVEN.get(form, _JOIN).format(op=form)}"]
        case syntax.Call(result=result, argument=argument, parameter=parameter):
            body = statement.body
            # Beside a result that may be alike on all replicas is one that is not.
            both = f"({body.result}, {parameter})"
            return [
                "@tf.function(autograph=False)",
                *_define(f"inner_{result}", parameter, body, both),
                f"{result}, _ = inner_{result}({argument})",
            ]
        case syntax.Map(results=results, items=items, parameter=parameter):
            work = f"work_{results[0]}"
            call = (
                f"{results[0]} = replicator.map_reduce({work}, {_listed(items)}, "
                f"{statement.op!r})"
                if statement.op
                else f"{_listed(results)} = "
                f"replicator.map_gather({_listed(items)}, {work})"
            )
            body = statement.body
            # A gather needs to know the shape, which inputs may not tell.
            result = f"tf.ensure_shape({body.result}, {list(statement.shape)})"
            return [*_define(work, parameter, body, result), call]
    raise TypeError(f"no Python for {type(statement).__name__}")


def run(program, repl=None):
    setting = program.setting
    repl = repl or make_replicator(setting.placement, setting.num_replicas)
    with repl.context():
        variables = {v.name: make_variable(v) for v in program.variables}
    step = make_step(program, variables)
    seen = Seen()
    written = set()
    calls = syntax.schedule(program)
    done = _feed(repl, step, program, calls)
    for call in calls:
        for write in setting.outside:
            if write.step == call.steps[0] and write not in written:
                written.add(write)
                _write_outside(program, variables[write.variable], write)
        if call.fails is not None:
            _expect_failure(done)
            seen.failed.update({n: v.numpy() for n, v in variables.items()})
            repl.assert_in_sync()
            for variable in program.variables:
                if variable.name in lockstep.may_differ(program):
                    value = syntax.recovered_value(program, variable, seen.failed)
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


def _expect_failure(done):
    call = next(done)
    try:
        call()
    except tf.errors.InvalidArgumentError as error:
        if syntax.FAILURE not in str(error):
            raise
        return
    raise DifferenceError("a step in which a replica fails raised nothing")


def _write_outside(program, variable, write):
    value = syntax.outside_value(program, write, variable.numpy())
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
        syntax.initial_value(variable),
        trainable=variable.trainable,
        name=variable.name,
        synchronization=tf.VariableSynchronization[variable.synchronization],
        aggregation=tf.VariableAggregation[variable.aggregation],
    )


def _feed(repl, step, program, calls):
    names = [name for name, _ in program.inputs]
    feeds = [syntax.batches_of(program, call) for call in calls]
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
        counts = np.array([len(batch.get(syntax.UNEVEN, ())) for batch in own])
        columns = [np.stack([_padded(batch, name) for batch in own]) for name in names]
        data = tf.data.Dataset.from_tensor_slices((counts, *columns))
        return data.map(given)

    def given(count, *batch):
        found = []
        for name, value in zip(names, batch, strict=True):
            if name == syntax.UNEVEN:
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
    if name != syntax.UNEVEN:
        return value
    return np.pad(value, (0, syntax.MAX_ROWS - len(value)))
