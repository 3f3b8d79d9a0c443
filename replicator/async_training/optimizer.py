"""wrap_optimizer for parameter servers: every update is a commit.

Gradients are first averaged over the replicas in sync, as in all backends. The update
then runs on the servers: by TensorFlow's atomic kernels if there is one with the result
of the Keras update, otherwise by the Keras optimizer itself inside the locked section.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator._tf import compat as _tf_compat
from replicator.async_training import commit
from replicator.errors import DeviceError, OptimizerOptionError
from replicator.optimizer import fused, stages
from replicator.optimizer.wrapper import ReplicatedOptimizer

if TYPE_CHECKING:
    import contextlib
    from collections.abc import Iterable, Sequence

    from replicator.async_training.table import Placement
    from replicator.optimizer.fused import FusedUpdate
    from replicator.optimizer.options import OptimizerOptions


class ServerOptimizer(ReplicatedOptimizer):
    """A Keras optimizer whose updates are never lost.

    The average is over the replicas in sync, those of one worker; workers update one
    after the other, each from the values that it has read.
    """

    def __init__(
        self,
        optimizer: Any,
        *,
        options: OptimizerOptions,
        placement: Placement,
    ) -> None:
        self._placement = placement
        super().__init__(optimizer, options=options)

    def build(self, variables: Iterable[Any]) -> None:
        """Makes the optimizer's state, each slot on the server of its variable."""
        placement = self._placement

        def beside(variable: Any) -> contextlib.AbstractContextManager[Any] | None:
            is_there = variable.device in placement.devices
            return placement.on(variable.device) if is_there else None

        # A kernel needs both there.
        with placement.scope(), stages.placed(self.wrapped, beside):
            super().build(variables)

    def _find_fused(self, grads: list[Any], variables: list[Any]) -> FusedUpdate | None:
        # On one server Keras' own sparse update can run in the lock, and is the same
        # number as on one device; the kernel adds in another order.
        servers = {self._server_of(_tf_compat.unwrap(v)) for v in variables}
        return fused.find(self.wrapped, grads, variables, takes_sparse=len(servers) > 1)

    def _begin(self, variables: list[Any]) -> tuple[commit.CommitTrace, list[int]]:
        """Notes what commits will change; returns the server of each variable."""
        trace = commit.current()
        inner = [_tf_compat.unwrap(variable) for variable in variables]
        trace.shared += [*inner, *map(_tf_compat.unwrap, self.wrapped.variables)]
        return trace, [self._server_of(variable) for variable in inner]

    def _apply_fused(
        self,
        fused_update: FusedUpdate,
        grads: list[Any],
        variables: list[Any],
        num_summed: int,
    ) -> None:
        """Commits by kernels, on each server for the variables that it holds."""
        trace, servers = self._begin(variables)
        counters = self._counters(fused_update)
        trace.shared += counters.values()
        is_scheduled = _tf_compat.schedule_of(self.wrapped) is not None
        scalar_server = self._server_of_scalars()
        involved = sorted({*servers, *counters})
        # Before any commit, for which it would wait.
        rates = (
            []
            if is_scheduled or involved == [scalar_server]
            else [tf.convert_to_tensor(self.wrapped.learning_rate)]
        )
        for server in involved:
            mine = [i for i, other in enumerate(servers) if other == server]
            counter = counters.get(server)
            sent = [] if server == scalar_server else rates
            parts, rebuild = _flatten([grads[i] for i in mine])

            def update(
                arrived: list[tf.Tensor],
                mine: list[int] = mine,
                counter: Any = counter,
                num_sent: int = len(sent),
                rebuild: Any = rebuild,
            ) -> None:
                rate = arrived[0] if num_sent else None
                prepared = fused_update.prepare(num_summed, counter=counter, rate=rate)
                own = rebuild(arrived[num_sent:])
                fused_update.update(own, [variables[i] for i in mine], prepared)
                if counter is not None:
                    fused_update.count(counter)

            commit.commit(trace, server, [*sent, *parts], update)

    def _counters(self, fused_update: FusedUpdate) -> dict[int, Any]:
        """By server that counts updates, the variable in which it does.

        All that hold weights count where updates depend on it, each on its own.
        """
        counter = _tf_compat.unwrap(self.wrapped.iterations)
        counting = {self._server_of(counter)}
        if fused_update.uses_count:
            weights = _tf_compat.optimized_variables(self.wrapped) or ()
            counting |= set(map(self._server_of, map(_tf_compat.unwrap, weights)))
        placement = self._placement
        return {
            server: placement.counters.on(placement.devices[server], counter)
            for server in counting
        }

    def _apply_keras(self, averaged: list[Any], variables: list[Any]) -> None:
        """Commits by the Keras optimizer itself, on the one server that holds all."""
        trace, found = self._begin(variables)
        others = map(_tf_compat.unwrap, self.wrapped.variables)
        servers = {*found, *map(self._server_of, others)}
        if len(servers) > 1:
            raise OptimizerOptionError(
                f"{type(self.wrapped).__name__} in this configuration has no atomic "
                "update kernel, so its whole update must run on one parameter server, "
                f"but its variables are on {len(servers)}: use keras.optimizers.SGD "
                "(with or without momentum) or Adam without clipping, decay or "
                "averaging, or a cluster with one parameter server"
            )
        parts, rebuild = _flatten(averaged)
        commit.commit(
            trace,
            servers.pop(),
            parts,
            lambda arrived: self.wrapped.apply(rebuild(arrived), variables),
        )

    def _server_of_scalars(self) -> int | None:
        """The server that has all scalars of the optimizer, or None."""
        scalars = [
            _tf_compat.unwrap(variable)
            for variable in self.wrapped.variables
            if len(variable.shape) == 0  # a TensorShape of no dimensions is true
        ]
        servers = {self._server_of(variable) for variable in scalars}
        return servers.pop() if len(servers) == 1 else None

    def _server_of(self, variable: Any) -> int:
        server: int | None = self._placement.server_of(variable)
        if server is None:
            raise DeviceError(
                f"variable {variable.name!r} is on {variable.device!r}, which is not a "
                "parameter server; create models and optimizers inside `with "
                "repl.context():`"
            )
        return server


def _flatten(grads: Sequence[Any]) -> tuple[list[tf.Tensor], Any]:
    """Flattens gradients into dense tensors; returns them and the inverse."""
    parts: list[tf.Tensor] = []
    for grad in grads:
        is_sparse = isinstance(grad, tf.IndexedSlices)
        parts += [grad.values, grad.indices] if is_sparse else [grad]

    def rebuild(tensors: Sequence[tf.Tensor]) -> list[Any]:
        rest = iter(tensors)
        return [
            tf.IndexedSlices(next(rest), next(rest), _shape_of(grad))
            if isinstance(grad, tf.IndexedSlices)
            else next(rest)
            for grad in grads
        ]

    return parts, rebuild


def _shape_of(grad: tf.IndexedSlices) -> Any:
    """The dense shape, as a constant if it is known, which need not be sent."""
    static = None if grad.dense_shape is None else tf.get_static_value(grad.dense_shape)
    return None if static is None else tf.constant(static)
