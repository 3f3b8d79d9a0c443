"""One step over a mesh of devices, laid out by the names of dimensions (``dtensor``).

TensorFlow's DTensor splits the operations of a traced step: the step is that of one
device and sees the whole batch. A mesh has axes, such as ``{"batch": 2, "model": 2}``.
Dimensions of variables have names, by rules on paths or by ``named``; a layout says
which axis splits dimensions of which name (Shazeer et al. 2018, "Mesh-TensorFlow",
section 3; rules on paths as in T5X and MaxText). Dimensions without a name, or whose
name has no axis, are whole on every device.
"""

from __future__ import annotations

import contextlib
import functools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from replicator._tf import compat as _tf_compat
from replicator._tf import mesh as _tf_mesh
from replicator.backends import base, programs
from replicator.backends.single import SingleProgram
from replicator.core import devices as devices_lib
from replicator.core.step import PerReplica, per_replica_nest, tensors_of
from replicator.core.validation import format_value, is_integer
from replicator.errors import DeviceError, LayoutError
from replicator.inputs.batches import as_value
from replicator.inputs.iterator import InputIterator
from replicator.optimizer import stages
from replicator.optimizer.wrapper import ReplicatedOptimizer
from replicator.variables.coherence import report_out_of_sync

if TYPE_CHECKING:
    import collections

    from replicator.optimizer.options import OptimizerOptions

dtensor = tf.experimental.dtensor

BATCH = "batch"
"""The axis of a mesh over which the examples of a batch are divided."""

Names = tuple[str | None, ...]


def check_mesh(mesh: Any) -> dict[str, int]:
    """Returns the axes of a mesh and their sizes, in their order."""
    prefix = (
        f"mesh={format_value(mesh)} must be a dictionary of axes and their sizes, such "
        "as {'batch': 2, 'model': 2}"
    )
    if not isinstance(mesh, dict) or not mesh:
        raise LayoutError(prefix)
    for axis, size in mesh.items():
        if not (isinstance(axis, str) and axis.isidentifier()):
            raise LayoutError(f"{prefix}; the axis {format_value(axis)} is not a name")
        if not is_integer(size, least=1):
            raise LayoutError(f"{prefix}; {axis!r} has the size {format_value(size)}")
    return dict(mesh)


def _check_names(names: Sequence[Any]) -> Names:
    for name in names:
        if not (name is None or (isinstance(name, str) and name.isidentifier())):
            raise LayoutError(
                f"{format_value(name)} is not the name of a dimension; use a word, or "
                "None for a dimension that is never split"
            )
    return tuple(names)


def _check_rank(names: Names, path: str, rank: int) -> None:
    if len(names) != rank:
        raise LayoutError(
            f"{path!r} has {rank} dimensions, but got {len(names)} names {names}; give "
            "one for each, or None for a dimension that is never split"
        )


def named(variable: Any, *names: str | None) -> Any:
    """Names the dimensions of a variable, for the backend ``dtensor``.

    Call it in ``repl.context()``, right after the variable was made and before the
    first step; its layout follows. Other backends split no dimensions, and ignore it.

    Args:
      variable: A ``tf.Variable`` or a Keras variable.
      *names: One for each dimension; None for one that is never split.

    Returns:
      The variable.

    Raises:
      LayoutError: Not as many names as dimensions, or a dimension that the axis of its
        name cannot split evenly.
      TypeError: Not a variable.
    """
    if not _tf_compat.is_variable(variable):
        raise TypeError(
            f"named() takes a variable, but got {format_value(variable)}; name the "
            "variables of a layer: named(layer.kernel, 'inputs', 'hidden')"
        )
    inner = _tf_compat.unwrap(variable)
    checked = _check_names(names)
    _check_rank(checked, variable.name, inner.shape.rank)
    if isinstance(inner, _tf_mesh.MeshVariable):
        inner.place(inner, checked)
    return variable


class LayoutRules:
    """Layouts of variables over a mesh.

    Attributes:
      mesh: The mesh of devices.
      sizes: Its axes and their sizes.
      replicas: By device, in the order of the mesh, its place on the batch axis.
    """

    def __init__(
        self, sizes: dict[str, int], devices: Sequence[str], layout: Any, names: Any
    ) -> None:
        self.sizes = sizes
        self.mesh = dtensor.create_mesh(list(sizes.items()), devices=list(devices))
        places = dict(zip(sizes, np.indices([*sizes.values()]), strict=True))
        batch = places.get(BATCH, np.zeros(len(devices), int))
        self.replicas: list[int] = batch.ravel().tolist()
        if not isinstance(layout, dict):
            raise LayoutError(
                f"layout={format_value(layout)} must be a dictionary from names of "
                "dimensions to axes of the mesh, such as {'hidden': 'model'}"
            )
        _check_names(list(layout))
        for name, axis in layout.items():
            if not isinstance(axis, str) or axis not in sizes:
                raise LayoutError(
                    f"layout splits {name!r} over {format_value(axis)}, which is no "
                    f"axis of the mesh; use one of {', '.join(sizes)}"
                )
        self._axes = dict(layout)
        self._names = _check_rules(names)

    def names_of(self, path: str, rank: int) -> Names:
        """Names of the dimensions of a variable, by the first rule for its path."""
        for pattern, names in self._names:
            if pattern.search(path):
                _check_rank(names, path, rank)
                return names
        return (None,) * rank

    def layout(self, names: Names, path: str, shape: Sequence[int]) -> Any:
        """The layout of a variable whose dimensions have names."""
        axes = [None if name is None else self._axes.get(name) for name in names]
        taken = [axis for axis in axes if axis is not None]
        if len(set(taken)) < len(taken):
            raise LayoutError(
                f"{path!r} has the dimensions {names}, of which the layout splits two "
                f"over the axis {max(taken, key=taken.count)!r}; give one of them "
                "another name, or None"
            )
        for axis, name, size in zip(axes, names, shape, strict=True):
            if axis is not None and size % self.sizes[axis]:
                raise LayoutError(
                    f"{path!r} has {size} in its dimension {name!r}, which the "
                    f"{self.sizes[axis]} devices of the axis {axis!r} cannot divide; "
                    "choose a size that is a multiple, or give the dimension None"
                )
        return dtensor.Layout([axis or dtensor.UNSHARDED for axis in axes], self.mesh)

    def place(self, variable: _tf_mesh.MeshVariable, names: Names) -> None:
        """Gives a variable names, and the layout that follows from them."""
        layout = self.layout(names, variable.path, variable.shape)
        variable.dimensions = names
        if layout != variable.layout:
            variable.move(layout)


def _check_rules(names: Any) -> list[tuple[re.Pattern[str], Names]]:
    prefix = (
        "names must be a dictionary from regular expressions on paths of variables to "
        "names of their dimensions, such as {'expand/kernel': ('width', 'hidden')}"
    )
    if not isinstance(names, dict):
        raise LayoutError(f"{prefix}; got {format_value(names)}")
    compiled = []
    for pattern, of_path in names.items():
        if isinstance(of_path, str) or not isinstance(of_path, (tuple, list)):
            raise LayoutError(f"{prefix}; got {format_value(of_path)} for {pattern!r}")
        try:
            compiled.append((re.compile(pattern), _check_names(of_path)))
        except (TypeError, re.error) as error:
            raise LayoutError(
                f"{prefix}; {format_value(pattern)} is not one: {error}"
            ) from error
    return compiled


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


# How DTensor says it: with an operation in quotes, or behind the sentence.
_REFUSED = re.compile(r"error: .*?\btf\.(\w+)")


class MeshProgram(SingleProgram):
    """A step that was traced once, for the batch of all replicas.

    Attributes:
      collectives: How many nodes of each kind it has on all devices; None before it
        has run.
    """

    collectives: collections.Counter[str] | None = None

    def __init__(
        self,
        step_fn: Callable[..., Any],
        specs: Sequence[Any],
        variables: Sequence[_tf_mesh.MeshVariable],
    ) -> None:
        self._variables = variables
        with _tf_mesh.in_step():
            super().__init__(step_fn, specs)

    def run_once(self, batch: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Runs the step; returns its outputs."""
        if self.collectives is not None:
            return tensors_of(self._traced(*batch))
        # DTensor places collectives when a program first runs, or says why it cannot.
        try:
            with _tf_mesh.collectives_counted() as counted:
                outputs = tensors_of(self._traced(*batch))
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
            *_tf_compat.reachable(
                operations, lambda each: [tensor.op for tensor in each.inputs]
            )
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

    _no_prefetch_because = "which packs the batches of a step"

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
        self._variables: list[_tf_mesh.MeshVariable] = []
        self._reference: _tf_mesh.MeshVariable | None = None

    @contextlib.contextmanager
    def context(self) -> Iterator[DTensorReplicator]:
        """Splits variables that are made inside it over the mesh."""

        def create(next_creator: Callable[..., Any], **kwargs: Any) -> Any:
            del next_creator
            value = kwargs["initial_value"]
            value = value() if callable(value) else value
            value = tf.convert_to_tensor(value, kwargs.get("dtype"))
            path, reference = _tf_mesh.path_of(kwargs.get("name")), self._reference
            if reference is not None and reference.shape == value.shape:
                names = reference.dimensions
            else:
                names = self.rules.names_of(path, value.shape.rank)
            layout = self.rules.layout(names, path, value.shape)
            known = ("name", "dtype", "trainable", "aggregation", "synchronization")
            variable = _tf_mesh.MeshVariable(
                _tf_mesh.laid_out(value, layout),
                **{key: kwargs[key] for key in known if key in kwargs},
            )
            variable.path, variable.dimensions = path, names
            variable.place = self.rules.place
            self._variables.append(variable)
            return variable

        scope = tf.variable_creator_scope(create)
        with super().context(), _tf_mesh.paths_known(), scope:
            yield self

    @contextlib.contextmanager
    def laid_out_as(self, variable: Any) -> Iterator[None]:
        """Gives variables of the same shape that are made inside it the same names."""
        self._reference = variable
        try:
            yield
        finally:
            self._reference = None

    def _wrap_optimizer(self, optimizer: Any, options: OptimizerOptions) -> Any:
        options.refuse("dtensor", type(self).__name__)
        return MeshOptimizer(optimizer, options, self)

    def _make_input_iterator(self, asked: base.InputRequest) -> InputIterator:
        inputs = super()._make_input_iterator(asked)
        inputs.pads_last_step = False  # a mesh divides examples evenly
        return inputs

    def _run(self, call: programs.Call) -> Any:
        for _ in range(call.num_steps):
            batch = call.inputs
            if isinstance(batch, InputIterator):
                try:
                    batch = batch._get_next()  # noqa: SLF001 (``run`` counts them)
                except StopIteration:
                    message = "End of sequence"
                    raise tf.errors.OutOfRangeError(None, None, message) from None
            flat = [] if batch is None else tf.nest.flatten(batch)
            leaves = [self._packed(leaf) for leaf in flat]
            specs = [tf.TensorSpec(leaf.shape, leaf.dtype) for leaf in leaves]
            nest = [tf.nest.pack_sequence_as(batch, specs)] if specs else []
            build = functools.partial(MeshProgram, call.step_fn, nest, self._variables)
            program = self._programs.get(call, build, *specs)
            with dtensor.default_mesh(self.rules.mesh):
                outputs = program.run_once(leaves)
        parts = zip(*map(self._parts, outputs), strict=True)
        values = [value for replica in parts for value in replica]
        return per_replica_nest(program.structure, values, self.num_replicas)

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
        rank, mesh = first.shape.rank, self.rules.mesh
        if rank == 0 and self.num_replicas > 1:
            raise LayoutError(
                "a batch has a number per replica, which a step that sees the batch of "
                "all replicas cannot take; give it a dimension of examples"
            )
        layout = dtensor.Layout.replicated(mesh, rank)
        if rank and BATCH in self.rules.sizes:
            layout = dtensor.Layout.batch_sharded(mesh, BATCH, rank)
        return dtensor.pack([values[r] for r in self.rules.replicas], layout)

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
        parts = dtensor.unpack(output)
        first = map(self.rules.replicas.index, range(self.num_replicas))
        return [parts[device] for device in first]

    def _described(self, device_memory: int | None) -> list[str]:
        """The mesh, and how each variable is split over it."""
        del device_memory  # no variable has an owner
        axes = " x ".join(f"{axis} {size}" for axis, size in self.rules.sizes.items())
        lines = [f"mesh: {axes}, devices {', '.join(self.devices)}", "variables:"]
        for variable in self._variables:
            names = ", ".join(name or "-" for name in variable.dimensions)
            axes = ", ".join(variable.layout.sharding_specs)
            lines.append(
                f"  {variable.path} {tuple(variable.shape)} ({names}) split ({axes}): "
                f"{variable.num_bytes_each} bytes on each device"
            )
        return [*lines, f"  all: {self._num_bytes()} bytes on each device"]

    def _num_bytes(self) -> int:
        return sum(variable.num_bytes_each for variable in self._variables)

    def _collectives(self) -> list[tuple[str, dict[str, int]]]:
        """Each step, and how many collectives of each kind it has."""
        count = len(self.devices)  # each has a node of every collective
        return [
            (name, {k: n // count for k, n in sorted((made.collectives or {}).items())})
            for name, made in self._programs.items()
        ]

    def explain(self) -> str:
        """Counts the collectives of each step that has run."""
        lines = [f"dtensor, mesh {self.rules.sizes}: DTensor places the collectives"]
        for name, numbers in self._collectives():
            each = ", ".join(f"{number} {kind}" for kind, number in numbers.items())
            lines.append(f"  {name}: {each or 'none'}")
        return "\n".join(lines)

    def counts(self) -> dict[str, int]:
        """Collectives of a step, and the bytes of variables on all devices."""
        return {
            "collectives": sum(sum(kinds.values()) for _, kinds in self._collectives()),
            "variable_bytes": len(self.devices) * self._num_bytes(),
        }

    def _compare_copies(self) -> None:
        """Compares the parts that devices have alike."""
        differing = {}
        for variable in self._variables:
            places = map(tuple, variable.layout.offset_to_shard())
            first: dict[Any, np.ndarray] = {}
            parts = dtensor.unpack(variable.in_parts())
            for place, part in zip(places, parts, strict=True):
                value = part.numpy()
                if not np.array_equal(first.setdefault(place, value), value):
                    differing[variable.path] = True
        report_out_of_sync(list(differing))
