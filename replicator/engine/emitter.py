"""Emitter: nodes of a linked graph, single ones and those of TensorFlow functions.

They are ``NodeDef``s: Python objects for each node of each replica would take longer to
make than the rest of the link.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from replicator._tf import compat as _tf_compat
from replicator._tf import dispatch as _tf_dispatch
from replicator.collectives.kinds import Ops
from replicator.core.devices import cpu_of
from replicator.core.step import traced_once
from replicator.engine.body import Ref, Tensor, make_const, make_node

Shapes = Sequence[Sequence[int]]


PAIRWISE = {"min": "Minimum", "max": "Maximum"}
# What combines tensors. TensorFlow's CPU kernels support every type that a collective
# accepts. GPU kernels do not: types that are missing there are combined in host memory.
# Tensors of int32 are already in host memory, where their "GPU" kernels work.
_COMBINING = frozenset(
    {"AddN", "ConcatV2", "Mul", "Pack", "Split", "SplitV", "Unpack", "ZerosLike"}
).union(PAIRWISE.values())


@dataclasses.dataclass(eq=False, slots=True)
class Emitter:
    nodes: list[Any] = dataclasses.field(default_factory=list)

    def add(
        self,
        name: str,
        op: str,
        inputs: Sequence[Tensor],
        device: str,
        controls: Sequence[str] = (),
        **attrs: Any,
    ) -> Ref:
        """Any node, whose first output it returns, where it can run."""
        if "GPU" in device and op in _COMBINING:
            has_kernel = _tf_dispatch.has_kernel(op, "GPU", attrs["T"])
            device = device if has_kernel else cpu_of(device)
        self.nodes.append(make_node(name, op, inputs, device, attrs, controls))
        return Ref(node=name, port=f"{_tf_compat.op_def(op).output_arg[0].name}:0")

    def const(self, name: str, value: Any, device: str) -> Ref:
        self.nodes.append(make_const(name, value, device))
        return Ref(node=name, port="output:0")

    def inline(
        self,
        name: str,
        function: Callable[..., Any],
        inputs: Sequence[tuple[Tensor, tf.DType]],
        device: str,
        **options: Any,
    ) -> tuple[list[Ref], list[str]]:
        """The nodes of a function of tensors; its results, and its assertions."""
        # They are on a device, unless the function says where. A trace takes 63 ms.
        dtypes = tuple(dtype for _, dtype in inputs)
        traced = _traced(function, dtypes, tuple(options.items()))
        arguments = {
            argument.name: str(ref)
            for argument, (ref, _) in zip(
                traced.signature.input_arg, inputs, strict=True
            )
        }

        def moved(ref: str) -> str:
            is_control = ref.startswith("^")
            inner = f"^{name}/{ref[1:]}" if is_control else f"{name}/{ref}"
            return arguments.get(ref, inner)

        for node in traced.node_def:
            copy = _tf_compat.NodeDef()
            copy.CopyFrom(node)
            copy.name, copy.device = f"{name}/{node.name}", node.device or device
            copy.input[:] = map(moved, node.input)
            self.nodes.append(copy)
        returned = (traced.ret[output.name] for output in traced.signature.output_arg)
        parts = (moved(ref).partition(":") for ref in returned)
        refs = [Ref(node=node, port=port) for node, _, port in parts]
        return refs, [f"{name}/{node}" for node in traced.control_ret.values()]


@functools.cache
def _traced(
    function: Callable[..., Any],
    dtypes: tuple[tf.DType, ...],
    options: tuple[tuple[str, Any], ...],
) -> Any:
    def fragment(*values: tf.Tensor) -> Any:
        return function(*values, **dict(options))

    with tf.init_scope():
        specs = [tf.TensorSpec(None, dtype) for dtype in dtypes]
        return traced_once(fragment).get_concrete_function(*specs).function_def


@dataclasses.dataclass(eq=False)
class NodeOps(Ops):
    """The same as nodes of one type on one device, and what else a transfer needs."""

    _emit: Emitter
    _name: str
    _dtype: tf.DType
    _device: str
    _count: int = 0

    def stack(self, values: Sequence[Tensor]) -> Tensor:
        return self._add("Pack", values, N=len(values))

    def unstack(self, value: Tensor, count: int) -> list[Ref]:
        return _outputs(self._add("Unpack", [value], num=count), count)

    def concat(self, values: Sequence[Tensor]) -> Tensor:
        if len(values) == 1:
            return values[0]
        return self._add("ConcatV2", [*values, self._const(0)], N=len(values))

    def part(self, value: Tensor, index: int, count: int) -> Tensor:
        if count == 1:
            return value
        split = self._add("Split", [self._const(0), value], num_split=count)
        return _outputs(split, count)[index]

    def scale(self, value: Tensor, factor: float) -> Tensor:
        number = np.array(factor, self._dtype.as_numpy_dtype)
        return self._add("Mul", [value, self._const(number)])

    def zeros_like(self, value: Tensor) -> Tensor:
        return self._add("ZerosLike", [value])

    def reduce(self, op: str, values: Sequence[Tensor]) -> Tensor:
        if len(values) == 1:
            return values[0]
        if op not in PAIRWISE:
            return self._add("AddN", values, N=len(values))
        result = values[0]
        for other in values[1:]:
            result = self._add(PAIRWISE[op], [result, other])
        return result

    def cast(self, value: Tensor, source: tf.DType) -> Tensor:
        if source == self._dtype:
            return value
        types = {"SrcT": source, "DstT": self._dtype}
        return self._emit.add(self._new(), "Cast", [value], self._device, **types)

    def pack(self, values: Sequence[Tensor], shapes: Shapes) -> Tensor:
        """The elements of tensors of given shapes as one vector, to send together."""
        # Vectors are taken as they are: of ResNet-50, two in three gradients.
        flat = None
        parts: list[Tensor] = []
        for value, shape in zip(values, shapes, strict=True):
            if len(shape) != 1:
                flat = flat or self._const([-1])
                parts.append(self._add("Reshape", [value, flat]))
            else:
                parts.append(value)
        return self.concat(parts)

    def unpack(self, vector: Tensor, shapes: Shapes) -> list[Ref]:
        """The tensors of given shapes that ``pack`` made one vector of."""
        sizes = [int(np.prod(shape, dtype=np.int64)) for shape in shapes]
        inputs = [vector, self._const(sizes), self._const(0)]
        attrs = {"num_split": len(sizes), "Tlen": tf.int32}
        parts = _outputs(self._add("SplitV", inputs, **attrs), len(sizes))
        dims: dict[tuple[int, ...], Ref] = {}  # one node for equal shapes
        for index, shape in enumerate(map(tuple, shapes)):
            if len(shape) != 1:
                if shape not in dims:
                    dims[shape] = self._const(shape)
                parts[index] = self._add("Reshape", [parts[index], dims[shape]])
        return parts

    def _const(self, value: Any) -> Ref:
        is_number = isinstance(value, np.ndarray)
        array = value if is_number else np.array(value, np.int32)
        return self._emit.const(self._new(), array, self._device)

    def _add(self, op: str, inputs: Sequence[Tensor], **attrs: Any) -> Ref:
        attrs["T"] = self._dtype
        return self._emit.add(self._new(), op, inputs, self._device, **attrs)

    def _new(self) -> str:
        self._count += 1
        return f"{self._name}/{self._count}"


def _outputs(first: Ref, count: int) -> list[Ref]:
    port = first.port.removesuffix("0")
    return [Ref(node=first.node, port=f"{port}{index}") for index in range(count)]


# The functions that are inlined: where a transfer needs what the trace does not know,
# such as a shape. Most steps have none. Collective ops are not among them: these need
# an order, and keys.

# Says in the error of TensorFlow that it is about shapes; the rest is made from it.
SHAPES_DIFFER = "replicator: shapes differ between workers"

# TensorFlow fixes the shape of a collective instance at its first use and rejects all
# others, and it may crash on a tensor without elements. So a tensor without a static
# shape is sent as a vector whose length is a power of two, and each length is a
# separate instance. At most twice as many bytes are sent, and a program has at most 32
# instances per transfer, however many sizes occur.

# 2^0 to 2^30, and nothing beyond: sizes are int32 here.
NUM_LENGTHS = 31


def pad_any_size(value: tf.Tensor, *, cpu: str) -> list[tf.Tensor]:
    """The vector that is sent, and which of the ``NUM_LENGTHS`` instances takes it."""
    size = tf.size(value)
    with tf.device(cpu):
        lengths = tf.constant(2 ** np.arange(NUM_LENGTHS, dtype=np.int32))
        # The first length that is not shorter.
        key_offset = tf.reduce_sum(tf.cast(lengths < size, tf.int32), 0)
        paddings = tf.convert_to_tensor([[0, lengths[key_offset] - size]])
    return [tf.pad(tf.reshape(value, [-1]), paddings), key_offset]


def unpadded(joined: tf.Tensor, like: tf.Tensor, *, count: int) -> tf.Tensor:
    """What was padded on its way, of so many workers, joined by the first dimension."""
    dims = tf.shape(like)
    parts = tf.reshape(joined, [count, -1])[:, : tf.size(like)]
    return tf.reshape(parts, tf.concat([dims[:1] * count, dims[1:]], 0))


def in_order(parts: tf.Tensor, *, places: tuple[int, ...]) -> tf.Tensor:
    """Parts of workers, by the place of each."""
    pieces = tf.split(parts, len(places))
    return tf.concat([pieces[index] for index in places], 0)


def signed(value: tf.Tensor) -> tf.Tensor:
    """Numbers of int64 in the order of those of uint64: the highest bit is flipped."""
    return tf.bitwise.bitwise_xor(tf.bitcast(value, tf.int64), tf.int64.min)


def unsigned(value: tf.Tensor) -> tf.Tensor:
    return tf.bitcast(tf.bitwise.bitwise_xor(value, tf.int64.min), tf.uint64)


def num_rows(value: tf.Tensor) -> tf.Tensor:
    return tf.shape(value)[:1]


def pad_rows(value: tf.Tensor, counts: tf.Tensor, *, rank: int) -> tf.Tensor:
    """As many rows as the worker that has most of them."""
    missing = tf.reduce_max(counts, 0) - tf.shape(value)[0]
    return tf.pad(value, [[0, missing], *([[0, 0]] * (rank - 1))])


def cut_rows(padded: tf.Tensor, counts: tf.Tensor, *, num_workers: int) -> tf.Tensor:
    """The rows of all workers without padding, by worker."""
    most = tf.reduce_max(counts, 0)
    firsts = [worker * most for worker in range(num_workers)]
    ends = [first + counts[worker] for worker, first in enumerate(firsts)]
    parts = [padded[first:end] for first, end in zip(firsts, ends, strict=True)]
    return tf.concat(parts, 0)


def shape_row(value: tf.Tensor) -> tf.Tensor:
    """What workers compare, as a row: dimensions, and one number more."""
    # So that a scalar has something to compare as well.
    return tf.concat([tf.shape(value, tf.int64), [1]], 0)[tf.newaxis]


def check_rows(rows: tf.Tensor, own: tf.Tensor) -> list[tf.Tensor]:
    """Raises an error where the shapes of workers differ."""
    is_same = tf.reduce_all(tf.equal(rows, own), [0, 1])
    tf.raw_ops.Assert(condition=is_same, data=[SHAPES_DIFFER, rows], summarize=256)
    return []


def check_alike(*values: tf.Tensor, what: str, devices: tuple[str, ...]) -> tf.Tensor:
    """The first of the tensors of replicas, which must have one shape."""
    cpu = cpu_of(devices[0])
    texts = []
    for value, device in zip(values, devices, strict=True):
        with tf.device(device):
            dims = tf.shape(value)
        with tf.device(cpu):
            texts.append(tf.strings.format("{}", dims, summarize=-1))
    text = (
        f"replicator: {what} got tensors of different shapes on different replicas; "
        "pad them to one shape, or reduce them first; by replica"
    )
    with tf.device(cpu):
        shapes = tf.stack(texts)
        is_same = tf.reduce_all(tf.equal(shapes, texts[0]), 0)
        check = tf.raw_ops.Assert(condition=is_same, data=[text, shapes], summarize=256)
    with tf.control_dependencies([check]):
        return tf.identity(values[0])
