"""The slow, obviously right way to run a step function on R replicas.

One Python process holds the values of all replicas in lists of R tensors and walks the
program statement by statement: eager, without graphs, without a thought of speed. A
collective is what its documentation says, on such a list: a sum is a sum of R tensors.
Control flow is Python's, once per replica. Nothing of the engine is used here.

**Gradients.** ``collectives/kinds.py`` defines the gradient of an all-sum as
the all-sum of the gradients. So what the tape of replica r gives for its target y_r and
its source x_r is the derivative of the *sum over replicas* of the targets:

    g_r = d(y_0 + ... + y_{R-1}) / d x_r

With the values of all replicas in one process that needs no rule of ours: an ordinary
``tf.GradientTape`` records the lists, and the derivative of the sum by each element of
the list of sources is g_0 ... g_{R-1}. The rules of the other collectives follow: a
gather is a stack, so its gradient is the own slice of the summed gradient; a broadcast
is a copy, so its gradient is the sum, delivered to the source; a minimum or maximum is
that of a stack, whose gradient TensorFlow shares equally among those that hold it; what
is sent from replica to replica is sent back. And
since the definition is about functions of all replicas' values, it nests: a tape
inside a tape gives the same at every order.

**Variables.** Every replica has a copy of every variable. Whether the copies may differ
is a property of the program (``variance.py``); what the user sees between steps follows
from it and from the variable's flags, as docs/replicator/training.md says. A tape
follows a variable from its first read on; of a read by the handle alone it is not told.
Control flow is one operation of a graph: a tape follows whatever any part of it reads.
"""

from __future__ import annotations

import functools

import numpy as np
import tensorflow as tf
from fuzzing import syntax
from fuzzing.operations import COLLECTIVES, reduce_all

_NUMPY_TYPES = {syntax.INT: tf.int32, syntax.BOOL: tf.bool, syntax.HALF: tf.float16}


class Lockstep:
    """R replicas of a program, in lock step.

    An environment has a list of R values for each name.
    """

    def __init__(self, program, initial, dtype):
        self._program = program
        self._dtype = dtype
        self._num_replicas = program.setting.num_replicas
        # What replica 0 has held of each variable since it was last emptied.
        self.history = {v.name: [] for v in program.variables}
        self._declared = {v.name: v for v in program.variables}
        self.variables = {
            name: [
                tf.Variable(value, trainable=self._declared[name].trainable)
                for value in self._initial(name, initial[name])
            ]
            for name in self._declared
        }

    def step(self, batches):
        environment = {
            name: [self._tensor(type_, batch[name]) for batch in batches]
            for name, type_ in self._program.inputs
        }
        self.run(self._program.statements, environment, range(self._num_replicas))
        outputs = [environment[name] for name in self._program.outputs]
        return [[o[r].numpy() for o in outputs] for r in range(self._num_replicas)]

    def assign(self, name, value):
        """Assigns a variable from outside: every copy starts from the value."""
        values = self._initial(name, value)
        for copy, fresh in zip(self.variables[name], values, strict=True):
            copy.assign(fresh)

    def copies(self, name):
        return [copy.numpy() for copy in self.variables[name]]

    def note(self, name):
        """Adds what a variable reads as on replica 0 to its history."""
        # By the handle: no tape is to hear of it.
        value = _read_by_handle(self.variables[name][0])
        self.history[name].append(value.numpy())

    def outside(self, name):
        """What the user's variable reads as between steps."""
        variable, copies = self._declared[name], self.copies(name)
        if variable.aggregation == "SUM" and variable.type.dtype != syntax.BOOL:
            return sum(copies)
        is_mean = variable.aggregation == "NONE" and copies[0].dtype.kind == "f"
        if not is_mean:
            return copies[0]
        wide = sum(np.asarray(copy, np.float64) for copy in copies) / len(copies)
        return wide.astype(copies[0].dtype)

    def _initial(self, name, value):
        """Copies of a value; of a variable that reads as a sum, shares of it."""
        variable = self._declared[name]
        tensor = self._tensor(variable.type, value)
        copies = [tensor] * self._num_replicas
        if variable.aggregation == "SUM" and variable.type.dtype != syntax.BOOL:
            share = tensor // self._num_replicas
            rest = tensor - share * (self._num_replicas - 1)
            copies = [rest] + [share] * (self._num_replicas - 1)
        return copies

    def _tensor(self, type_, value):
        return tf.constant(value, _NUMPY_TYPES.get(type_.dtype, self._dtype))

    def run(self, statements, environment, replicas):
        """Runs statements on some replicas; on all of them outside of branches."""
        for statement in statements:
            self._run_one(statement, environment, replicas)

    def _run_one(self, statement, environment, replicas):
        handlers = {
            syntax.Compute: self._compute,
            syntax.ReplicaId: self._replica_id,
            syntax.Read: self._read,
            syntax.Write: self._write,
            syntax.Communicate: self._communicate,
            syntax.Map: self._map,
            syntax.Fail: self._fail,
            syntax.Uneven: self._uneven,
            syntax.Differentiate: self._differentiate,
            syntax.Push: self._push,
            syntax.Jacobian: self._jacobian,
            syntax.Vectorize: self._vectorize,
        }
        handler = handlers.get(type(statement), self._control_flow)
        handler(statement, environment, replicas)

    def _compute(self, statement, environment, replicas):
        function = _compiled(statement.template, len(statement.arguments))
        arguments = [environment[name] for name in statement.arguments]
        environment[statement.result] = self.on(
            replicas, lambda r: function(self._dtype, *(a[r] for a in arguments))
        )

    def _replica_id(self, statement, environment, replicas):
        environment[statement.result] = self.on(replicas, tf.constant)

    def _read(self, statement, environment, replicas):
        variables = self.variables[statement.variable]
        environment[statement.result] = self.on(
            replicas,
            lambda r: (
                _read_by_handle(variables[r])
                if statement.is_raw
                else variables[r].read_value()
            ),
        )

    def _write(self, statement, environment, replicas):
        for r in replicas:
            variable = self.variables[statement.variable][r]
            write = getattr(variable, statement.method)
            write(
                environment[statement.argument][r],
                read_value=statement.form == "method",
            )
            if r == 0:
                self.note(statement.variable)

    def _fail(self, statement, environment, replicas):
        """Goes on: what a step does before it fails is a part of what it does."""
        argument = environment[statement.argument]
        environment[statement.result] = self.on(
            replicas, lambda r: tf.identity(argument[r])
        )

    def _uneven(self, statement, environment, replicas):
        """Joins of different lengths are refused, so what they give is not asked."""
        rows = environment["u"]
        count, form = self._num_replicas, statement.form
        totals = [tf.reduce_sum(value) for value in rows]
        is_same = len({value.shape[0] for value in rows}) == 1
        if form == "examples":
            total = sum(value.shape[0] for value in rows)
            totals = [value * count / max(total, 1) for value in totals]
        elif form == "gather":
            totals = [sum(totals)] * count
        elif form != "own":
            totals = (
                [tf.reduce_sum(reduce_all(form, rows))] * count if is_same else totals
            )
        environment[statement.result] = self.on(
            replicas, lambda r: tf.identity(totals[r])
        )

    def _control_flow(self, statement, environment, replicas):
        environment[statement.result] = self.on(
            replicas, lambda r: self._alone(statement, environment, r)
        )

    def on(self, replicas, function):
        """One value per replica; those that do not take part have none."""
        return [
            function(r) if r in replicas else None for r in range(self._num_replicas)
        ]

    def _alone(self, statement, environment, replica):
        """The result of control flow, which each replica goes through by itself."""
        for name in syntax.followed(statement):
            self.variables[name][replica].read_value()
        match statement:
            case syntax.Branch(predicate=predicate, then=then, orelse=orelse):
                block = then if bool(environment[predicate][replica]) else orelse
                return self._block(block, environment, replica)
            case syntax.Call(argument=argument, parameter=parameter, body=body):
                # A value of its own, too: not the one that the function closes over.
                values = [None] * self._num_replicas
                values[replica] = tf.identity(environment[argument][replica])
                return self._block(body, environment, replica, {parameter: values})
            case syntax.Loop(times=times, carried=carried, body=body):
                values = [None] * self._num_replicas
                values[replica] = tf.identity(environment[statement.start][replica])
                for _ in range(int(environment[times][replica]) % 3):
                    values[replica] = self._block(
                        body, environment, replica, {carried: list(values)}
                    )
                return values[replica]
        raise TypeError(f"no meaning of {type(statement).__name__}")

    def _block(self, block, environment, replica, bound=None):
        inner = {**environment, **(bound or {})}
        self.run(block.statements, inner, [replica])
        # A value of its own, as the result of a graph's branch or loop is one: a tape
        # tells it from the value that the block ended in.
        return tf.identity(inner[block.result][replica])

    def _communicate(self, statement, environment, _):
        meaning = COLLECTIVES[statement.kind].meaning
        for name, argument in zip(statement.results, statement.arguments, strict=True):
            environment[name] = meaning(environment[argument], statement.parameter)

    def _map(self, statement, environment, _):
        """Item i belongs to replica i % R, with all that the work reads there."""
        count = self._num_replicas
        done = [
            self._block(
                statement.body,
                environment,
                index % count,
                {statement.parameter: environment[item]},
            )
            for index, item in enumerate(statement.items)
        ]
        if not statement.op:
            for name, value in zip(statement.results, done, strict=True):
                environment[name] = [tf.identity(value) for _ in range(count)]
            return
        # Minima that tie share their gradient equally among replicas, not among items.
        own = [done[r::count] for r in range(count) if done[r::count]]
        reduced = reduce_all(
            "sum" if statement.op == "mean" else statement.op,
            [
                reduce_all("sum" if statement.op == "mean" else statement.op, values)
                for values in own
            ],
        )
        if statement.op == "mean":
            reduced /= tf.cast(len(done), reduced.dtype)
        environment[statement.results[0]] = [tf.identity(reduced) for _ in range(count)]

    def _differentiate(self, statement, environment, replicas):
        with tf.GradientTape() as tape:
            for name in statement.watched:
                tape.watch([environment[name][r] for r in replicas])
            self.run(statement.body.statements, environment, replicas)
        flat = [
            (self.variables.get(name) or environment[name])[r]
            for name in statement.sources
            for r in replicas
        ]
        targets = [environment[statement.body.result][r] for r in replicas]
        found = iter(tape.gradient(targets, flat, unconnected_gradients="zero"))
        for name in statement.results:
            environment[name] = self.on(
                replicas, lambda _: tf.convert_to_tensor(next(found))
            )

    def _push(self, statement, environment, replicas):
        """The change of every target when all replicas' sources change at once."""
        primals = [environment[statement.source][r] for r in replicas]
        tangents = [environment[statement.tangent][r] for r in replicas]
        inner = dict(environment)
        with tf.autodiff.ForwardAccumulator(primals, tangents) as accumulator:
            self.run(statement.body.statements, inner, replicas)
        targets = inner[statement.body.result]
        environment[statement.result] = self.on(
            replicas,
            lambda r: accumulator.jvp(
                targets[r], unconnected_gradients=tf.UnconnectedGradients.ZERO
            ),
        )

    def _jacobian(self, statement, environment, replicas):
        """Element by element, the gradient of its sum over replicas."""
        sources = [environment[statement.source][r] for r in replicas]
        inner = dict(environment)
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(sources)
            self.run(statement.body.statements, inner, replicas)
            targets = [inner[statement.body.result][r] for r in replicas]
            elements = [tf.unstack(tf.reshape(target, [-1])) for target in targets]
        rows = [
            tape.gradient(list(element), sources, unconnected_gradients="zero")
            for element in zip(*elements, strict=True)
        ]
        shape = [*targets[0].shape, *sources[0].shape]
        found = [
            tf.reshape(tf.stack(column), shape) for column in zip(*rows, strict=True)
        ]
        environment[statement.result] = self.on(
            replicas, lambda r: found[list(replicas).index(r)]
        )

    def _vectorize(self, statement, environment, replicas):
        """Row by row; collectives join the rows of one place."""
        values = environment[statement.argument]
        rows = []
        for place in range(values[replicas[0]].shape[0]):
            inner = dict(environment)
            inner[statement.parameter] = self.on(
                replicas, lambda r, p=place: values[r][p]
            )
            self.run(statement.body.statements, inner, replicas)
            rows.append(inner[statement.body.result])
        environment[statement.result] = self.on(
            replicas, lambda r: tf.stack([row[r] for row in rows])
        )


def _read_by_handle(variable):
    """Has a gradient only where a tape follows the variable for another reason."""
    handle, dtype = variable.handle, variable.dtype
    return tf.identity(tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype))


@functools.cache
def _compiled(template, count):
    names = [f"x{index}" for index in range(count)]
    return eval(
        f"lambda {', '.join(['FLOAT', *names])}: {template.format(*names)}", {"tf": tf}
    )


def may_differ(program):
    """Names of variables whose copies may come to differ, or are declared to."""
    local = {v.name for v in program.variables if v.synchronization == "ON_READ"}
    while True:
        found = _Pass(local)
        found.varying |= {name for name, _ in program.inputs}
        found.run(program.statements, outer=False)
        if found.local == local:
            return local
        local = found.local


class _Pass:
    """One walk: finds values that vary, and variables that they reach."""

    def __init__(self, local):
        self.local = set(local)
        self.varying = set()

    def run(self, statements, *, outer):
        """Walks statements; ``outer``: whether the control flow around them varies."""
        for statement in statements:
            if isinstance(statement, syntax.Differentiate):
                self._differentiate(statement, outer=outer)
                continue
            varies = outer or self._varies(statement)
            # A call is one operation of the graph: what goes into it varies as a whole.
            for block in syntax.blocks(statement):
                if varies:
                    self._bind(statement)
                self.run(block.statements, outer=varies)
            if varies:
                self.local |= syntax.written(statement)
            # What replicas joined is the same on all of them, or never is.
            if isinstance(statement, syntax.Communicate):
                varies = not COLLECTIVES[statement.kind].is_same
            if varies and not isinstance(statement, syntax.Map):
                self.varying |= set(syntax.results(statement))

    def _varies(self, statement):
        asks_who = any(
            isinstance(part, syntax.ReplicaId) for part in syntax.inside(statement)
        )
        reads = syntax.read(statement) & self.local
        return bool(asks_who or reads or syntax.used(statement) & self.varying)

    def _bind(self, statement):
        if isinstance(statement, syntax.Loop):
            self.varying.add(statement.carried)
        elif isinstance(statement, (syntax.Call, syntax.Map, syntax.Vectorize)):
            self.varying.add(statement.parameter)

    def _differentiate(self, statement, *, outer):
        varies = outer or self._varies(statement)
        self.run(statement.body.statements, outer=outer)
        # Its body may define more that varies, even from a replica id.
        if varies or self._varies(statement):
            self.varying |= set(statement.results)
