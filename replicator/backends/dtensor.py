"""One step over a mesh of devices, laid out by the names of dimensions (``dtensor``).

TensorFlow's DTensor splits the operations of a traced step: the step is that of one
device and sees the whole batch.
"""

from __future__ import annotations

import contextlib
import math
import re
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from replicator._tf import mesh as _tf_mesh
from replicator._tf.compat import reachable
from replicator._tf.mesh import MeshVariable
from replicator.backends import base, programs
from replicator.backends.dimensions import BATCH, LayoutRules, check_mesh
from replicator.backends.single import SingleReplicaContext
from replicator.core import context as context_lib
from replicator.core import devices as devices_lib
from replicator.core.context import StepGenerator
from replicator.core.step import PerReplica, check_outputs, per_replica_nest
from replicator.errors import DeviceError, LayoutError
from replicator.inputs import iterator
from replicator.inputs.batches import as_value
from replicator.inputs.iterator import InputIterator
from replicator.optimizer import stages
from replicator.optimizer.wrapper import ReplicatedOptimizer
from replicator.strategy import replica_context
from replicator.variables.coherence import report_out_of_sync

if TYPE_CHECKING:
    import collections
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from replicator.backends.programs import Call
    from replicator.inputs.context import InputFn, InputReplicationMode
    from replicator.optimizer.options import OptimizerOptions

dtensor = tf.experimental.dtensor

# How DTensor says it: with an operation in quotes, or behind the sentence.
_REFUSED = re.compile(r"error: .*?\btf\.(\w+)")


class MeshOptimizer(ReplicatedOptimizer):
    """A Keras optimizer whose state is laid out as its variables."""

    def __init__(
        self, optimizer: Any, options: OptimizerOptions, repl: DTensorReplicator
    ) -> None:
        self._repl = repl
        super().__init__(optimizer, options=options)

    def build(self, variables: Any) -> None:
        """Makes the state of variables, in their layouts."""
        following = stages.placed(self.wrapped, self._repl.laid_out_as)
        with tf.init_scope(), self._repl.context(), following:
            super().build(variables)

    def _update(self, grads: list[Any], variables: list[Any]) -> None:
        # Rows of an embedding: DTensor has no updates by rows.
        super()._update([tf.convert_to_tensor(grad) for grad in grads], variables)

    def _find_fused(self, grads: list[Any], variables: list[Any]) -> None:
        """None: fused kernels end the process on a mesh of two axes."""


class MeshProgram:
    """A step that was traced once, for the batch of all replicas.

    Attributes:
      structure: Of its outputs.
      collectives: How many nodes of each kind it has on all devices; None before it
        has run.
    """

    def __init__(
        self,
        traced: Any,
        structure: Any,
        generator: StepGenerator,
        variables: Sequence[MeshVariable],
    ) -> None:
        self._traced = traced
        self._variables = variables
        self._generator = generator  # a function does not keep its variables
        self.structure = structure
        self.collectives: collections.Counter[str] | None = None

    def run(self, batch: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Runs the step once; returns its outputs."""
        if self.collectives is not None:
            return list(self._traced(*batch))
        # DTensor places collectives when a program first runs, or says why it cannot.
        try:
            with _tf_mesh.collectives_counted() as counted:
                outputs = list(self._traced(*batch))
        except tf.errors.OpError as error:
            if refused := _REFUSED.search(error.message):
                raise self._explained(refused[1]) from error
            raise
        self.collectives = counted
        return outputs

    def _explained(self, kind: str) -> LayoutError:
        graph = self._traced.graph
        operations = [each for each in graph.get_operations() if each.type == kind]
        layers = {each.name.rpartition("/")[0] or "in no layer" for each in operations}
        reaching = {
            *reachable(operations, lambda each: [tensor.op for tensor in each.inputs])
        }
        inner = {id(outer): within.op for outer, within in graph.captures}
        split = [
            f"{each.path} ({', '.join(each.layout.sharding_specs)})"
            for each in self._variables
            if inner.get(id(each.handle)) in reaching and each.is_split
        ]
        return LayoutError(
            f"DTensor cannot split {kind} ({', '.join(sorted(layers)) or 'inside one'})"
            f"{', which gets ' if split else ''}{', '.join(split)}; "
            f"{'give these dimensions no axis, ' if split else ''}replace the layer, or"
            " use the in_graph backend"
        )


class DTensorReplicator(base.Replicator):
    """Splits the dimensions of one step over a mesh of devices (``dtensor``).

    Its replicas are the places of the mesh's axis ``batch``. The step sees the batch
    of all, so it is the step of one device without any change; ``summary()`` shows how
    variables are split, ``explain()`` counts collectives.

    Attributes:
      rules: The mesh, and the layouts of variables over it.
    """

    def __init__(
        self,
        *,
        mesh: Mapping[str, int] | None = None,
        layout: Mapping[str, str] | None = None,
        names: Mapping[str, Sequence[str | None]] | None = None,
        num_replicas: int | None = None,
        devices: Sequence[str] | None = None,
    ) -> None:
        """Makes the mesh.

        Args:
          mesh: Axes and their sizes, such as ``{"batch": 2, "model": 2}``; by default
            ``num_replicas`` on the axis ``batch``.
          layout: Which axis splits dimensions of a name, ``{"hidden": "model"}``.
          names: Names of the dimensions of variables, by regular expressions on their
            paths, ``{"expand/kernel": ("width", "hidden")}``; the first that is found
            in a path counts. See also ``replicator.named``.
          num_replicas: The size of the axis ``batch``.
          devices: One for each place of the mesh, the last axis first; by default GPUs
            if there are any, else virtual devices of the CPU.

        Raises:
          DeviceError: Too few devices, or ``num_replicas`` is not the size of the axis.
          LayoutError: ``mesh``, ``layout`` or ``names`` make no sense.
        """
        sizes = check_mesh({BATCH: num_replicas or 1} if mesh is None else mesh)
        self.num_replicas = sizes.get(BATCH, 1)
        if num_replicas not in (None, 1, self.num_replicas):
            raise DeviceError(
                f"num_replicas={num_replicas!r} does not match the mesh, whose axis "
                f"{BATCH!r} has {self.num_replicas}; give one of them"
            )
        reason = _tf_mesh.keep_order()
        if reason:
            raise LayoutError(f"updates would be lost, in silence: {reason}")
        count = math.prod(sizes.values())
        self.devices = devices_lib.resolve(count, devices, distinct=True)
        self.rules = LayoutRules(
            sizes,
            self.devices,
            {} if layout is None else layout,
            {} if names is None else names,
        )
        self._programs = programs.ProgramCache()
        self._variables: list[MeshVariable] = []
        self._reference: MeshVariable | None = None

    @contextlib.contextmanager
    def context(self) -> Iterator[DTensorReplicator]:
        """Splits variables that are made inside it over the mesh."""

        def creator(next_creator: Callable[..., Any], **kwargs: Any) -> Any:
            del next_creator
            variable = self._made(**kwargs)
            self._variables.append(variable)
            return variable

        with (
            super().context(),
            _tf_mesh.paths_known(),
            tf.variable_creator_scope(creator),
        ):
            yield self

    def _made(self, initial_value: Any, **kwargs: Any) -> MeshVariable:
        value = initial_value() if callable(initial_value) else initial_value
        value = tf.convert_to_tensor(value, kwargs.get("dtype"))
        path = _tf_mesh.path_of(kwargs.get("name"))
        reference = self._reference
        if reference is not None and reference.shape == value.shape:
            names = reference.dimensions
        else:
            names = self.rules.names_of(path, value.shape.rank)
        layout = self.rules.layout(names, path, value.shape)
        known = ("name", "dtype", "trainable", "aggregation", "synchronization")
        variable = MeshVariable(
            _tf_mesh.laid_out(value, layout),
            **{key: kwargs[key] for key in known if key in kwargs},
        )
        variable.path, variable.dimensions = path, names
        variable.place = self.rules.place
        return variable

    @contextlib.contextmanager
    def laid_out_as(self, variable: Any) -> Iterator[None]:
        """Gives variables of the same shape that are made inside it the same names."""
        self._reference = variable
        try:
            yield
        finally:
            self._reference = None

    def _wrap_optimizer(
        self, optimizer: Any, options: OptimizerOptions
    ) -> ReplicatedOptimizer:
        options.refuse("dtensor", type(self).__name__)
        return MeshOptimizer(optimizer, options, self)

    def _make_input_iterator(
        self, input_fn: InputFn, mode: InputReplicationMode, num_prefetched: int
    ) -> InputIterator:
        iterator.refuse(
            num_prefetched, type(self).__name__, "which packs the batches of a step"
        )
        inputs = super()._make_input_iterator(input_fn, mode, 0)
        inputs.pads_last_step = False  # a mesh divides examples evenly
        return inputs

    def _run(self, call: Call) -> Any:
        for _ in range(call.num_steps):
            batch = call.inputs
            if isinstance(batch, InputIterator):
                batch = _read(batch)
            outputs = self._step(call, batch)
        return outputs

    def _step(self, call: Call, batch: Any) -> Any:
        flat = [] if batch is None else tf.nest.flatten(batch)
        leaves = [self._packed(leaf) for leaf in flat]
        shapes = tuple((str(leaf.shape), leaf.dtype) for leaf in leaves)
        program = self._programs.get(
            call.step_fn,
            (call.signature, shapes),
            lambda: self._build(call.step_fn, batch, leaves),
        )
        with dtensor.default_mesh(self.rules.mesh):
            outputs = program.run(leaves)
        return self._per_replica(program.structure, outputs)

    def _packed(self, leaf: PerReplica[Any]) -> tf.Tensor:
        """The batch of all replicas, divided over the mesh."""
        values = [as_value(value) for value in leaf]
        if len({str(value.shape) for value in values}) > 1:
            shapes = ", ".join(str(value.shape) for value in values)
            raise LayoutError(
                f"the batches of replicas have the shapes {shapes}, but a mesh divides "
                "a batch evenly; end the dataset with batch(size, drop_remainder=True)"
            )
        first = values[0]
        if not isinstance(first, tf.Tensor):
            raise LayoutError(
                f"a batch has a {type(first).__name__!r}, but a mesh divides tensors "
                "only; convert it, for example by its to_tensor()"
            )
        if first.shape.rank == 0 and self.num_replicas > 1:
            raise LayoutError(
                "a batch has a number per replica, which a step that sees the batch of "
                "all replicas cannot take; give it a dimension of examples"
            )
        count = self.rules.num_devices()
        parts = [values[self.rules.replica_of(device)] for device in range(count)]
        return dtensor.pack(parts, self.rules.batch_layout(first.shape.rank))

    def _build(
        self, step_fn: Callable[..., Any], batch: Any, leaves: Sequence[tf.Tensor]
    ) -> MeshProgram:
        structure: list[Any] = []

        def step(*flat: tf.Tensor) -> list[tf.Tensor]:
            args = () if batch is None else (tf.nest.pack_sequence_as(batch, flat),)
            with (
                context_lib.enter(SingleReplicaContext()),
                replica_context.entered(),
                _tf_mesh.in_step(),
            ):
                outputs = check_outputs(step_fn(*args), step_fn)
            structure[:] = [
                tf.nest.map_structure(lambda x: None if x is None else 0, outputs)
            ]
            return [x for x in tf.nest.flatten(outputs) if x is not None]

        specs = [tf.TensorSpec(leaf.shape, leaf.dtype) for leaf in leaves]
        generator = StepGenerator()
        with generator.installed():
            traced = context_lib.in_first_trace(
                lambda: tf.function(step).get_concrete_function(*specs)
            )
        return MeshProgram(traced, structure[0], generator, self._variables)

    def _per_replica(self, structure: Any, outputs: Sequence[tf.Tensor]) -> Any:
        by_output = [self._parts(output) for output in outputs]
        flat = [parts[r] for r in range(self.num_replicas) for parts in by_output]
        return per_replica_nest(structure, flat, self.num_replicas)

    def _parts(self, output: tf.Tensor) -> list[tf.Tensor]:
        """What each replica has of an output: its examples, or the whole."""
        if not dtensor.is_dtensor(output):
            return [output] * self.num_replicas
        split = list(dtensor.fetch_layout(output).sharding_specs)
        kept = [
            axis if axis == BATCH and index == 0 else dtensor.UNSHARDED
            for index, axis in enumerate(split)
        ]
        if kept != split:
            output = _tf_mesh.laid_out(output, dtensor.Layout(kept, self.rules.mesh))
        parts: dict[int, tf.Tensor] = {}
        for device, part in enumerate(dtensor.unpack(output)):
            parts.setdefault(self.rules.replica_of(device), part)
        return [parts[replica] for replica in range(self.num_replicas)]

    def summary(self, device_memory: int | None = None) -> str:
        """Describes the mesh, and how each variable is split over it."""
        axes = " x ".join(f"{axis} {size}" for axis, size in self.rules.sizes.items())
        lines = [super().summary(device_memory).partition("\nvariables")[0]]
        lines += [f"mesh: {axes}, devices {', '.join(self.devices)}", "variables:"]
        total = 0
        for variable in self._variables:
            names = ", ".join(name or "-" for name in variable.dimensions)
            axes = ", ".join(variable.layout.sharding_specs)
            total += variable.num_bytes_each
            lines.append(
                f"  {variable.path} {tuple(variable.shape)} ({names}) split ({axes}): "
                f"{variable.num_bytes_each} bytes on each device"
            )
        return "\n".join([*lines, f"  all: {total} bytes on each device"])

    def _collectives(self) -> Iterator[tuple[str, dict[str, int]]]:
        """Each step, and how many collectives of each kind it has."""
        count = self.rules.num_devices()  # each has a node of every collective
        for name, program in self._programs.items():
            counts = program.collectives or {}
            yield name, {kind: n // count for kind, n in sorted(counts.items())}

    def explain(self) -> str:
        """Counts the collectives of each step that has run."""
        lines = [f"dtensor, mesh {self.rules.sizes}: DTensor places the collectives"]
        for name, numbers in self._collectives():
            each = ", ".join(f"{number} {kind}" for kind, number in numbers.items())
            lines.append(f"  {name}: {each or 'none'}")
        return "\n".join(lines)

    def counts(self) -> dict[str, int]:
        """Collectives of a step, and the bytes of variables on all devices."""
        bytes_each = sum(variable.num_bytes_each for variable in self._variables)
        return {
            "collectives": sum(
                sum(by_kind.values()) for _, by_kind in self._collectives()
            ),
            "variable_bytes": self.rules.num_devices() * bytes_each,
        }

    def assert_in_sync(self) -> None:
        """Compares the parts that devices have alike; see ``Replicator``."""
        differing = []
        for variable in self._variables:
            places = variable.layout.offset_to_shard()
            first: dict[Any, np.ndarray] = {}
            for index, part in zip(
                map(tuple, places), dtensor.unpack(variable.in_parts()), strict=True
            ):
                value = part.numpy()
                if not np.array_equal(first.setdefault(index, value), value):
                    differing.append(variable.path)
        report_out_of_sync(list(dict.fromkeys(differing)))


def _read(inputs: InputIterator) -> Any:
    """The batches of a step; ``run`` counts them."""
    try:
        return inputs._get_next()  # noqa: SLF001
    except StopIteration:
        raise tf.errors.OutOfRangeError(None, None, "End of sequence") from None
