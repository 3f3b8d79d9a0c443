"""Draws derivatives: tapes, nested tapes, forward mode, Jacobians."""

from __future__ import annotations

import dataclasses

from fuzzing import syntax
from fuzzing.choices import Choices
from fuzzing.collectives import COLLECTIVES
from fuzzing.operations import size
from fuzzing.syntax import FLOAT, Block, Type

MAX_TAPES = 3  # inside one another: derivatives of third order
MAX_JACOBIAN = 36  # elements


class Tapes(Choices):
    def differentiate(self, scope):
        # Sources are watched by the tape: whether TensorFlow follows a value that no
        # tape watches (zeros, say) differs between graphs and eager execution.
        watched = self._watched(scope)
        inner = self._recorded(scope, watched)
        body = self.block(inner, lambda t: t.dtype == FLOAT, least=1)
        if body is None:
            return None
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
        source = self.pick(scope, lambda t: t.dtype == FLOAT)
        num_tapes = self.number(1, MAX_TAPES - scope.num_tapes)
        return source and self._nested_tapes(scope, source, num_tapes)

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
        other = self.pick(scope, lambda t: t == value[1]) or value
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
            else self.pick(scope, lambda t: t.dtype == FLOAT)
            for _ in range(self.number(1, 2))
        ]
        return list(dict.fromkeys(value for value in found if value is not None))

    def push(self, scope):
        """A forward accumulator over a few operations and collectives."""
        source = self.pick(scope, lambda t: t.dtype == FLOAT)
        tangent = source and self.pick(scope, lambda t: t == source[1])
        if source is None or tangent is None:
            return None
        inner = self._plain(scope)
        body = self.block(inner, lambda t: t.dtype == FLOAT, least=1)
        assert body, "the source is in the scope"
        return syntax.Push(
            result=self.define(scope, dict(inner.values)[body.result]),
            source=source[0],
            tangent=tangent[0],
            body=body,
        )

    def jacobian(self, scope):
        source = self.pick(scope, lambda t: t.dtype == FLOAT)
        if source is None:
            return None
        limit = MAX_JACOBIAN // size(source[1].shape)
        inner = self._plain(scope)
        body = self.block(
            inner, lambda t: t.dtype == FLOAT and size(t.shape) <= limit, least=1
        )
        if body is None:
            return None
        target = dict(inner.values)[body.result]
        return syntax.Jacobian(
            result=self.define(scope, Type(FLOAT, (*target.shape, *source[1].shape))),
            source=source[0],
            body=body,
        )

    def _plain(self, scope):
        """The scope of what is transformed as a whole."""
        return scope.inner(is_plain=True, may_write=False)
