"""Private interfaces of DTensor and Keras: variables that are split over a mesh."""

from __future__ import annotations

import collections
import contextlib
import math
import os
import re
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf
from keras.src import backend
from tensorflow.dtensor.python import api, numpy_util
from tensorflow.experimental import dtensor
from tensorflow.python.eager import context as eager_context
from tensorflow.python.eager import record
from tensorflow.python.ops import resource_variable_ops

from replicator._tf.compat import altered, replaced

# Its collectives are of local groups of devices, which CPUs of one process reduce by
# TensorFlow's own ring: their nodes are in the graphs that each device executes.
_COLLECTIVE = re.compile("Collective(AllToAll|Gather|Reduce|ReduceScatter)V[23]")


class _Thread(threading.local):
    path = ""  # Of the variable of Keras that is made.
    is_in_step = False


_THREAD = _Thread()


def paths_known() -> contextlib.AbstractContextManager[None]:
    """Lets ``path_of`` know what Keras makes, also where it makes variables late."""

    def noting(initialize: Any, variable: Any, value: Any) -> None:
        with altered(_THREAD, path=variable.path):
            initialize(variable, value)

    return replaced(backend.Variable, "_initialize", noting, in_all_graphs=True)


def path_of(name: str | None) -> str:
    """The path of the variable that is made now; its name outside of Keras."""
    return _THREAD.path or name or "Variable"


def whole(value: Any) -> np.ndarray:
    """A value as one array, whatever the layout of its parts."""
    if not dtensor.is_dtensor(value):
        return np.asarray(value)
    return numpy_util.to_numpy(value)


def laid_out(value: Any, layout: Any) -> Any:
    """A value of one device, or of the mesh, in a layout; not in graphs."""
    # By parts, since DTensor runs its own ``Relayout`` from a cache whose keys lack the
    # layout: the second layout of a shape gets the parts of the first (test_dtensor).
    array = whole(value)
    sizes = [n // layout.num_shards(axis) for axis, n in enumerate(array.shape)]
    parts = []
    for coordinates in layout.offset_to_shard():
        cut = [
            slice(i * n, (i + 1) * n) for i, n in zip(coordinates, sizes, strict=True)
        ]
        with tf.device("CPU:0"):  # not of a variable that is assigned
            parts.append(tf.constant(array[tuple(cut)], value.dtype))
    return dtensor.pack(parts, layout)


def in_step() -> contextlib.AbstractContextManager[None]:
    """Has variables be read in parts, as operations of a mesh take them."""
    return altered(_THREAD, is_in_step=True)


class MeshVariable(dtensor.DVariable):
    """A variable in parts; outside of steps, it is read and assigned as a whole."""

    path = ""  # Its name, with the names of the layers that it is in.
    dimensions: tuple[str | None, ...] = ()  # Names of its dimensions.
    layout: Any  # Which part each device of the mesh has.
    # Gives it other names, and the layout that follows.
    place: Callable[[MeshVariable, tuple[str | None, ...]], None]

    @property
    def num_bytes_each(self) -> int:
        shape = self.layout.local_shape_from_global_shape(self.shape)
        return math.prod(shape) * int(self.dtype.size)

    @property
    def is_split(self) -> bool:
        return not self.layout.is_fully_replicated()

    def in_parts(self) -> tf.Tensor:
        """Its value, of which each device has a part; not in graphs."""
        return super()._read_variable_op()

    def _read_variable_op(self, no_copy: bool = False) -> tf.Tensor:
        if _THREAD.is_in_step:
            return super()._read_variable_op(no_copy)
        if tf.executing_eagerly():
            with tf.device("CPU:0"):
                value = tf.constant(self.numpy(), self.dtype)
        else:  # a function reads it whenever it is called
            value = tf.compat.v1.get_default_graph().capture_call_time_value(
                self._read_variable_op,
                tf.TensorSpec(self.shape, self.dtype),
                key=self._unique_id,
            )
        resource_variable_ops.variable_accessed(self)  # tapes differentiate it
        record.record_operation(
            "ReadVariableOp", [value], [self.handle], lambda gradient: [gradient]
        )
        return value

    def read_value(self) -> tf.Tensor:
        return super().read_value() if _THREAD.is_in_step else self.value()

    def sparse_read(self, indices: Any, name: str | None = None) -> tf.Tensor:
        if _THREAD.is_in_step:
            return super().sparse_read(indices, name)
        with tf.device("CPU:0"):  # not of the variable
            return tf.gather(self.value(), indices, name=name)

    def gather_nd(self, indices: Any, name: str | None = None) -> tf.Tensor:
        if _THREAD.is_in_step:
            return super().gather_nd(indices, name)
        with tf.device("CPU:0"):
            return tf.gather_nd(self.value(), indices, name=name)

    def numpy(self) -> np.ndarray:
        return whole(self.in_parts())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        del copy  # it is always new
        return self.numpy().astype(dtype, copy=False)

    def _laid_out(self, value: Any) -> Any:
        if not tf.executing_eagerly():
            return value
        if not dtensor.is_dtensor(value):
            value = tf.convert_to_tensor(value, self.dtype)
        return laid_out(value, self.layout)

    def assign(self, value: Any, *args: Any, **kwargs: Any) -> Any:
        return super().assign(self._laid_out(value), *args, **kwargs)

    def assign_add(self, delta: Any, *args: Any, **kwargs: Any) -> Any:
        return super().assign_add(self._laid_out(delta), *args, **kwargs)

    def assign_sub(self, delta: Any, *args: Any, **kwargs: Any) -> Any:
        return super().assign_sub(self._laid_out(delta), *args, **kwargs)

    def move(self, layout: Any) -> None:
        """Stores the value in another layout: whoever has the variable sees it."""
        moved = dtensor.DVariable(laid_out(self.in_parts(), layout))
        self._handle, self.layout = moved._handle, layout  # noqa: SLF001


# Joins the all-reduces of a program, and moves operations that assign variables past
# others that read them: momentum and Adam lose updates, without an error, on any mesh
# (test_dtensor). DTensor reads it when it starts.
_JOINING = "DTENSOR_ENABLE_COMBINE_ALL_REDUCES_OPTIMIZATION"


def keep_order() -> str:
    """Has updates of variables stay in their order; returns why it cannot, or ""."""
    if os.environ.get(_JOINING) == "0":
        return ""
    if _JOINING in os.environ:
        return f"{_JOINING} is {os.environ[_JOINING]!r}; set it to 0, or unset it"
    if api._dtensor_singleton is not None:  # noqa: SLF001
        return f"DTensor was started before; set {_JOINING}=0 before the program starts"
    os.environ[_JOINING] = "0"
    return ""


@contextlib.contextmanager
def collectives_counted() -> Iterator[collections.Counter[str]]:
    """Counts the collectives of what one device of a mesh executes inside it."""
    context = eager_context.context()
    counted: collections.Counter[str] = collections.Counter()
    context.enable_graph_collection()
    try:
        yield counted
        metadata = context.export_run_metadata()
    finally:
        context.disable_graph_collection()
    for graphs in metadata.function_graphs:
        for graph in graphs.partition_graphs:
            counted.update(n.op for n in graph.node if _COLLECTIVE.fullmatch(n.op))
