"""One replica on one device: the implementation in which collectives are identities."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from replicator._tf.dispatch import Dispatch
from replicator.backends import base, programs
from replicator.collectives.kinds import TENSORS, CollectiveKind
from replicator.core import context
from replicator.core import devices as devices_lib
from replicator.core import step as step_lib
from replicator.errors import DeviceError
from replicator.inputs.iterator import all_read, next_batches
from replicator.strategy import replica_context
from replicator.variables.kinds import check_foreign, foreign_explained


class SingleReplicaContext(context.ReplicaContext):
    """The context of a single replica: every collective is the identity."""

    num_replicas = 1
    num_replicas_in_sync = 1

    def __init__(self, places: Sequence[str | None]) -> None:
        self.places = places
        self.num_logical_devices = len(places)

    @property
    def replica_id(self) -> tf.Tensor:
        return tf.constant(0, tf.int32)

    def communicate(
        self,
        kind: CollectiveKind,
        tensors: Sequence[tf.Tensor],
        needed_if: tf.Tensor | None = None,
    ) -> list[tf.Tensor]:
        del needed_if
        return [kind.local_result(TENSORS, tensor, 0, 1) for tensor in tensors]


class SingleProgram:
    """A step function that is traced once, for any number of steps per dispatch."""

    def __init__(
        self,
        step_fn: Callable[..., Any],
        specs: Sequence[Any],
        places: Sequence[str | None] = (None,),
    ) -> None:
        def step(*batch: Any) -> Any:
            with (
                context.enter(SingleReplicaContext(places)),
                tf.device(places[0]),
                replica_context.entered(),
            ):
                return step_lib.check_outputs(step_fn(*batch), step_fn)

        self._generator = context.StepGenerator()  # its variables, which are not kept
        with foreign_explained(), self._generator.installed():
            self._traced = context.in_first_trace(
                lambda: tf.function(step).get_concrete_function(*specs)
            )
        for variable in self._traced.variables:
            check_foreign(variable)
        self.structure = step_lib.outline(self._traced.structured_outputs)
        self._programs: dict[int, Dispatch] = {}

    def run(self, source: Any, num_steps: int) -> Any:
        """Runs a number of steps on a source; returns a nest of ``PerReplica``."""
        if num_steps not in self._programs:
            self._programs[num_steps] = self._make_program(num_steps)
        flat = self._programs[num_steps](source)
        return step_lib.per_replica_nest(self.structure, flat, 1)

    def emit(self, batches: Sequence[Any]) -> list[list[Any]]:
        """Emits a step that returns a list of tensors in the current graph."""
        leaves = tf.nest.flatten(batches, expand_composites=True)
        return [step_lib.tensors_of(self._traced(*leaves))]

    def is_stale(self) -> bool:
        return False  # variables have one kind

    def _make_program(self, num_steps: int) -> Dispatch:
        specs = [tf.TensorSpec(t.shape, t.dtype) for t in self._traced.outputs]

        def program(source: Any) -> list[tf.Tensor]:
            def one_step(_: tf.Tensor) -> list[tf.Tensor]:
                batch = [] if source is None else next_batches(source, 1)
                with tf.control_dependencies([all_read(batch)]):
                    return self.emit(batch)[0]

            return step_lib.repeat(one_step, num_steps, specs)

        return Dispatch(program)


class SingleDeviceReplicator(base.ProgramReplicator):
    """Runs the step on one device; the baseline for all comparisons.

    With ``logical_devices_per_replica`` it is the baseline of model parallelism: one
    replica over several devices.

    Attributes:
      device: Where ops without a device of their own run.
    """

    def __init__(
        self,
        *,
        num_replicas: int = 1,
        devices: Sequence[str] | None = None,
        logical_devices_per_replica: int = 1,
    ) -> None:
        count = self.logical_devices_per_replica = logical_devices_per_replica
        if num_replicas != 1 or (
            devices is not None and count == 1 and len(devices) != 1
        ):
            raise DeviceError(
                f"SingleDeviceReplicator has one replica on one device, but got "
                f"num_replicas={num_replicas!r}, devices={devices!r}; use "
                "InGraphReplicator for several replicas"
            )
        self.num_replicas = 1
        self._places = (None,)
        if devices or count != 1:
            self._places = devices_lib.resolve_logical(1, count, devices)[0]
        self.device = self._places[0]
        self._programs = programs.ProgramCache()

    def build_step(self, step_fn: Callable[..., Any], specs: Sequence[Any]) -> Any:
        return SingleProgram(step_fn, specs, self._places)

    def _dispatch(
        self, program: SingleProgram, call: programs.Call, source: Any
    ) -> Any:
        return program.run(source, call.num_steps)

    def _input_devices(self) -> Sequence[str]:
        return [self.device] if self.device else super()._input_devices()

    def explain(self) -> str:
        """States that nothing is communicated."""
        return "1 replica: every collective is the identity; nothing is communicated"
