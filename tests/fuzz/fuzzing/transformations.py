"""Derivatives and vectorized maps of the values of all replicas at once."""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING

import tensorflow as tf

from fuzzing import syntax

if TYPE_CHECKING:
    Values = list[tf.Tensor]  # one per replica
    Environment = dict[str, Values]


class Transformations(abc.ABC):
    """What needs all replicas in one recording; see ``lockstep``."""

    variables: dict[str, list[tf.Variable]]  # The copies of each variable, by name.

    @abc.abstractmethod
    def run(self, statements, environment, replicas):
        """Runs statements on some replicas; on all of them outside of branches."""

    @abc.abstractmethod
    def on(self, replicas, function):
        """One value per replica; those that do not take part have none."""

    def transformations(self):
        return {
            syntax.Differentiate: self._differentiate,
            syntax.Push: self._push,
            syntax.Jacobian: self._jacobian,
            syntax.Vectorize: self._vectorize,
        }

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
