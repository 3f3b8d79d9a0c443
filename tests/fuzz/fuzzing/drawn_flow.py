"""Draws blocks: branches, loops, nested functions, work items, vectorized maps."""

from __future__ import annotations

import dataclasses

from fuzzing import syntax
from fuzzing.choices import Choices
from fuzzing.operations import MAX_RANK, MAX_SIZE, size
from fuzzing.syntax import BOOL, FLOAT, INT, Block, Type


class Flow(Choices):
    def branch(self, scope):
        """A ``tf.cond`` of two blocks that end in values of one type."""
        predicate = self.pick(scope, lambda t: t == Type(BOOL))
        wanted = self.pick(scope, lambda t: t.dtype == FLOAT)
        if predicate is None or wanted is None:
            return None
        then = self.block(self._closed(scope), lambda t: t == wanted[1])
        orelse = self.block(self._closed(scope), lambda t: t == wanted[1])
        assert then, "the wanted type is in the scope"
        assert orelse, "the wanted type is in the scope"
        return syntax.Branch(
            result=self.define(scope, wanted[1]),
            predicate=predicate[0],
            then=then,
            orelse=orelse,
        )

    def loop(self, scope):
        """A ``tf.while_loop`` of a few rounds."""
        start = self.pick(scope, lambda t: t.dtype == FLOAT)
        times = self.pick(scope, lambda t: t == Type(INT))
        if start is None or times is None:
            return None
        inner = self._closed(scope)
        carried = self.define(inner, start[1])
        body = self.block(inner, lambda t: t == start[1])
        assert body, "the carried value is in the scope"
        return syntax.Loop(
            result=self.define(scope, start[1]),
            start=start[0],
            times=times[0],
            carried=carried,
            body=body,
        )

    def call(self, scope):
        argument = self.pick(scope, lambda t: t.dtype == FLOAT)
        if argument is None:
            return None
        inner = self._closed(scope)
        parameter = self.define(inner, argument[1])
        body = self.block(inner, lambda t: t.dtype == FLOAT)
        assert body, "the parameter is in the scope"
        types = dict(inner.values)
        return syntax.Call(
            result=self.define(scope, types[body.result]),
            argument=argument[0],
            parameter=parameter,
            body=body,
        )

    def map(self, scope):
        """Work items dealt over replicas."""
        first = self.pick(scope, lambda t: t.dtype == FLOAT)
        if first is None:
            return None
        items = [first[0]]
        for _ in range(self.number(0, 4)):
            item = self.pick(scope, lambda t: t == first[1])
            assert item, "the first is in the scope"
            items.append(item[0])
        inner = dataclasses.replace(self._closed(scope), may_write=False)
        parameter = self.define(inner, first[1])
        body = self.block(inner, lambda t: t.dtype == FLOAT)
        assert body, "the parameter is in the scope"
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
        if argument is None:
            return None
        count, *shape = argument[1].shape
        inner = scope.inner(is_plain=True, may_write=False)
        parameter = self.define(inner, Type(FLOAT, tuple(shape)))

        def fits(type_):
            is_small = size(type_.shape) * count <= MAX_SIZE
            return type_.dtype == FLOAT and len(type_.shape) < MAX_RANK and is_small

        same = self.pick(scope, fits) if self.number(0, 2) else None
        first = self._joined_once(inner, parameter, same) if same else []
        body = self.block(inner, fits, least=0 if first else 1)
        assert body, "the parameter is in the scope"
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
