"""Draws blocks: control flow, work items, vectorized maps, derivatives."""

from __future__ import annotations

import dataclasses

from fuzzing import syntax
from fuzzing.choices import Choices
from fuzzing.collectives import COLLECTIVES
from fuzzing.operations import MAX_RANK, MAX_SIZE, size
from fuzzing.syntax import BOOL, FLOAT, INT, Block, Type

MAX_TAPES = 3  # inside one another: derivatives of third order
MAX_JACOBIAN = 36  # elements


class Blocks(Choices):
    def branch(self, scope):
        """A ``tf.cond`` of two blocks that end in values of one type."""
        predicate = self.pick(scope, lambda t: t == Type(BOOL))
        wanted = self.pick_float(scope)
        then = self.block(self._closed(scope), lambda t: t == wanted[1])
        orelse = self.block(self._closed(scope), lambda t: t == wanted[1])
        return syntax.Branch(
            result=self.define(scope, wanted[1]),
            predicate=predicate[0],
            then=then,
            orelse=orelse,
        )

    def loop(self, scope):
        """A ``tf.while_loop`` of a few rounds."""
        start = self.pick_float(scope)
        times = self.pick(scope, lambda t: t == Type(INT))
        inner = self._closed(scope)
        carried = self.define(inner, start[1])
        body = self.block(inner, lambda t: t == start[1])
        return syntax.Loop(
            result=self.define(scope, start[1]),
            start=start[0],
            times=times[0],
            carried=carried,
            body=body,
        )

    def call(self, scope):
        argument = self.pick_float(scope)
        inner = self._closed(scope)
        parameter = self.define(inner, argument[1])
        body = self.block(inner, lambda t: t.dtype == FLOAT)
        types = dict(inner.values)
        return syntax.Call(
            result=self.define(scope, types[body.result]),
            argument=argument[0],
            parameter=parameter,
            body=body,
        )

    def map(self, scope):
        """Work items dealt over replicas."""
        first = self.pick_float(scope)
        others = [
            self.pick(scope, lambda t: t == first[1]) for _ in range(self.number(0, 4))
        ]
        items = [name for name, _ in (first, *others)]
        inner = dataclasses.replace(self._closed(scope), may_write=False)
        parameter = self.define(inner, first[1])
        body = self.block(inner, lambda t: t.dtype == FLOAT)
        type_ = dict(inner.values)[body.result]
        op = self.choose(["sum", "mean", "min", "max", ""])
        return syntax.Map(
            results=tuple(
                self.define(scope, type_) for _ in range(1 if op else len(items))
            ),
            items=tuple(items),
            parameter=parameter,
            body=body,
            shape=type_.shape,
            op=op,
        )

    def _closed(self, scope):
        """The scope of a branch, loop or function: collectives cannot stand there."""
        return scope.inner(may_communicate=False)

    def vectorize(self, scope):
        """A vectorized map over rows, with collectives in it perhaps."""
        argument = self.pick(scope, lambda t: t.dtype == FLOAT and bool(t.shape))
        count, *shape = argument[1].shape
        inner = scope.inner(is_plain=True, may_write=False)
        parameter = self.define(inner, Type(FLOAT, tuple(shape)))

        def fits(type_):
            is_small = size(type_.shape) * count <= MAX_SIZE
            return type_.dtype == FLOAT and len(type_.shape) < MAX_RANK and is_small

        same = self.pick(scope, fits) if self.number(0, 2) else None
        first = self._joined_once(inner, parameter, same) if same else []
        body = self.block(inner, fits, least=0 if first else 1)
        statements, value = [*first, *body.statements], body.result
        type_ = dict(inner.values)[value]
        if first:
            both, template = [value, first[-1].results[0]], "{0} + tf.reduce_sum({1})"
            statements.append(self.operate(inner, template, both, type_))
            value = statements[-1].result
        body = Block(statements=tuple(statements), result=value)
        # A join of something sized is another one where no length is known.
        least = 1 + len(shape) if len(first) > 1 else 1
        result = Type(FLOAT, (count, *type_.shape))
        return syntax.Vectorize(
            result=self.define(scope, result),
            argument=argument[0],
            parameter=parameter,
            body=body,
            shape=result.shape,
            num_unknown=self.choose([0, *self.also("unknown", least, 1 + len(shape))]),
        )

    def _joined_once(self, inner, row, operand):
        """A join of what does not depend on the row, or at most on how large it is."""
        drawn = []
        if self.choose([False, *self.also("unknown", True)]):
            # Known in the step only where no length is: TensorFlow copies the join.
            template = "{0} * tf.cast(tf.size({1}), FLOAT)"
            drawn.append(self.operate(inner, template, [operand[0], row], operand[1]))
            operand = inner.values[-1]
        op = self.choose(["sum", "mean", "max"])
        return [*drawn, self.join(inner, "all_reduce", op, [operand])]

    def differentiate(self, scope):
        # Sources are watched by the tape: whether TensorFlow follows a value that no
        # tape watches (zeros, say) differs between graphs and eager execution.
        watched = self._watched(scope)
        inner = self._recorded(scope, watched)
        body = self.block(inner, lambda t: t.dtype == FLOAT, least=1)
        sources = [
            *watched,
            *(
                (v.name, v.type)
                for v in self.variables
                if v.trainable and v.type.dtype == FLOAT and self.number(0, 1)
            ),
        ]
        return syntax.Differentiate(
            results=tuple(self.define(scope, type_) for _, type_ in sources),
            body=body,
            watched=tuple(dict.fromkeys(name for name, _ in watched)),
            sources=tuple(name for name, _ in sources),
        )

    def _recorded(self, scope, watched):
        """The scope of what a tape records.

        Shares the list of values: what the tape's body defines is seen after it.
        """
        return dataclasses.replace(
            scope,
            num_tapes=scope.num_tapes + 1,
            watched=(*scope.watched, *watched),
            depth=scope.depth + 1,
        )

    def nested_tapes(self, scope):
        """Tapes inside one another whose targets do depend on their sources.

        A gradient penalty is of this form. Tapes that are drawn freely seldom are: most
        derivatives of second order are zero.
        """
        num_tapes = self.number(1, MAX_TAPES - scope.num_tapes)
        return self._nested_tapes(scope, self.pick_float(scope), num_tapes)

    def _nested_tapes(self, scope, source, num_tapes):
        inner = self._recorded(scope, [source])
        statements = []
        value = source
        if num_tapes > 1:
            statements.append(self._nested_tapes(inner, source, num_tapes - 1))
            value = (statements[-1].results[0], source[1])
        for _ in range(self.number(1, 2)):
            if inner.may_communicate and self.number(0, 2):
                value, drawn = self._joined(inner, value)
                statements.append(drawn)
            value, drawn = self._bent(inner, value)
            statements.append(drawn)
        body = Block(statements=tuple(statements), result=value[0])
        return syntax.Differentiate(
            results=(self.define(scope, source[1]),),
            body=body,
            watched=(source[0],),
            sources=(source[0],),
        )

    def _bent(self, scope, value):
        """A nonlinear operation of a value, with another one perhaps."""
        other = self.pick(scope, lambda t: t == value[1])
        template = self.choose(["tf.square({0})", "{0} * {1}", "tf.sin({0})"])
        statement = self.operate(scope, template, [value[0], other[0]], value[1])
        return (statement.result, value[1]), statement

    def _joined(self, scope, value):
        kind = self.choose(["all_reduce"] * 4 + list(COLLECTIVES)[1:])
        parameter = self.choose(COLLECTIVES[kind].parameters(self.num_replicas))
        if not self.can_join(kind, parameter)(value[1]):
            kind, parameter = "all_reduce", "sum"
        statement = self.join(scope, kind, parameter, [value])
        return scope.values[-1], statement

    def _watched(self, scope):
        """What a tape watches: often what the tapes around it watch, too."""
        found = [
            self.choose(scope.watched)
            if scope.watched and self.number(0, 2)
            else self.pick_float(scope)
            for _ in range(self.number(1, 2))
        ]
        return list(dict.fromkeys(found))

    def push(self, scope):
        """A forward accumulator over a few operations and collectives."""
        source = self.pick_float(scope)
        tangent = self.pick(scope, lambda t: t == source[1])
        inner = self._plain(scope)
        body = self.block(inner, lambda t: t.dtype == FLOAT, least=1)
        return syntax.Push(
            result=self.define(scope, dict(inner.values)[body.result]),
            source=source[0],
            tangent=tangent[0],
            body=body,
        )

    def jacobian(self, scope):
        source = self.pick_float(scope)
        limit = MAX_JACOBIAN // size(source[1].shape)
        inner = self._plain(scope)
        body = self.block(
            inner, lambda t: t.dtype == FLOAT and size(t.shape) <= limit, least=1
        )
        target = dict(inner.values)[body.result]
        return syntax.Jacobian(
            result=self.define(scope, Type(FLOAT, (*target.shape, *source[1].shape))),
            source=source[0],
            body=body,
        )

    def _plain(self, scope):
        """The scope of what is transformed as a whole."""
        return scope.inner(is_plain=True, may_write=False)
