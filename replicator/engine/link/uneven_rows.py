"""Concatenation of the rows of all workers if their numbers of rows differ.

TensorFlow gathers tensors of equal shapes only. So workers exchange their numbers of
rows; each then pads its rows to the largest number, and every worker removes the
padding.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from replicator.core.devices import cpu_of
from replicator.engine.graph.emitter import Emitter
from replicator.errors import CollectiveTypeError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from replicator.engine.analysis.plan import Share
    from replicator.engine.graph.body import Ref, Tensor
    from replicator.engine.link.cross_worker import CrossWorker


class UnevenRows:
    """Joins the tensors of one call over workers; all have the same numbers of rows."""

    def __init__(self, workers: CrossWorker) -> None:
        """Prepares joining."""
        self._workers = workers
        self._emit = workers.emit
        self._counts: Ref | None = None

    def gather(
        self,
        name: str,
        ref: Tensor,
        dtype: tf.DType,
        shape: tf.TensorShape,
        num_replicas: int,
        device: str,
    ) -> Tensor:
        """Emits the concatenation of all workers' rows, by worker id."""
        if shape.rank is None:
            raise CollectiveTypeError(
                f"{dtype.name} rows of unknown rank cannot be sent between worker "
                "processes; give the values of tf.IndexedSlices a static rank"
            )
        rest = shape[1:]
        if shape[0] is not None:
            total = tf.TensorShape([shape[0] * num_replicas]).concatenate(rest)
            return self._workers.gather(name, ref, dtype, total, device)
        if self._counts is None:
            self._counts = self._gather_counts(name, ref, dtype, device)
        most = self._emit.add(
            f"{name}/most",
            "Max",
            [self._counts, self._emit.numbers(f"{name}/axis", [0], device)],
            device,
            "output:0",
            {"T": tf.int32, "Tidx": tf.int32, "keep_dims": True},
        )
        padded = self._pad(name, ref, dtype, most, len(rest), device)
        padded_shape = tf.TensorShape([None]).concatenate(rest)
        gathered = self._workers.gather(
            f"{name}/all", padded, dtype, padded_shape, device
        )
        return self._cut(name, gathered, dtype, most, len(rest), device)

    def _gather_counts(
        self, name: str, ref: Tensor, dtype: tf.DType, device: str
    ) -> Ref:
        count = self._first_dim(f"{name}/count", ref, dtype, device)
        counts = self._workers.gather(
            f"{name}/counts", count, tf.int32, tf.TensorShape([1]), device
        )
        assert not isinstance(counts, str)
        return counts

    def _first_dim(self, name: str, ref: Tensor, dtype: tf.DType, device: str) -> Ref:
        dims = self._emit.dims(f"{name}/dims", ref, dtype, device)
        zero = self._emit.numbers(f"{name}/zero", [0], device)
        one = self._emit.numbers(f"{name}/one", [1], device)
        return self._emit.slice(f"{name}/first", dims, zero, one, tf.int32, device)

    def _pad(
        self,
        name: str,
        ref: Tensor,
        dtype: tf.DType,
        most: Ref,
        num_other_dims: int,
        device: str,
    ) -> Ref:
        emit = self._emit
        own = self._first_dim(f"{name}/own", ref, dtype, device)
        missing = emit.add(
            f"{name}/missing", "Sub", [most, own], device, "z:0", {"T": tf.int32}
        )
        before = emit.numbers(f"{name}/before", [0], device)
        others = emit.numbers(f"{name}/others", [0] * 2 * num_other_dims, device)
        flat = emit.concat(
            f"{name}/flat_paddings", [before, missing, others], tf.int32, device
        )
        pairs = emit.numbers(f"{name}/pairs", [1 + num_other_dims, 2], device)
        paddings = emit.reshape(f"{name}/paddings", flat, pairs, tf.int32, device)
        attrs = {"T": dtype, "Tpaddings": tf.int32}
        return emit.add(
            f"{name}/padded", "Pad", [ref, paddings], device, "output:0", attrs
        )

    def _cut(
        self,
        name: str,
        gathered: Tensor,
        dtype: tf.DType,
        most: Ref,
        num_other_dims: int,
        device: str,
    ) -> Ref:
        emit = self._emit
        assert self._counts is not None
        assert not isinstance(gathered, str)
        zeros = emit.numbers(f"{name}/zeros", [0] * num_other_dims, device)
        whole = emit.numbers(f"{name}/whole", [-1] * num_other_dims, device)
        one = emit.numbers(f"{name}/one_worker", [1], device)
        parts = []
        for worker in range(self._workers.num_workers):
            at = f"{name}/of_{worker}"
            place = emit.const(f"{at}/place", np.array([worker], np.int32), device)
            first = emit.add(
                f"{at}/row", "Mul", [most, place], device, "z:0", {"T": tf.int32}
            )
            count = emit.slice(
                f"{at}/count", self._counts, place, one, tf.int32, device
            )
            begin = emit.concat(f"{at}/begin", [first, zeros], tf.int32, device)
            size = emit.concat(f"{at}/size", [count, whole], tf.int32, device)
            parts.append(emit.slice(f"{at}/rows", gathered, begin, size, dtype, device))
        return emit.concat(f"{name}/joined", parts, dtype, device)


# TensorFlow fixes the shape of a collective instance at its first use and rejects all
# others, and it may crash on a tensor without elements. So a tensor without a static
# shape is sent as a vector whose length is a power of two, and each length is a
# separate instance. At most twice as many bytes are sent, and a program has at most 32
# instances per transfer, however many sizes occur.

# 2^0 to 2^30, and nothing beyond: sizes are int32 here.
NUM_LENGTHS = 31


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Padded:
    """A tensor on its way."""

    value: Ref  # Its elements and padding, a vector.
    key_offset: Ref  # Which of the ``NUM_LENGTHS`` instances of the transfer takes it.
    num_elements: Ref  # How many elements it has, a vector of one number.


def pad_any_size(
    emit: Emitter, name: str, ref: Tensor, dtype: tf.DType, device: str
) -> Padded:
    """Emits the vector that is sent for a tensor of any size."""
    cpu = cpu_of(device)
    num_elements = emit.num_elements(name, ref, dtype, device)
    lengths = emit.const(
        f"{name}/lengths", 2 ** np.arange(NUM_LENGTHS, dtype=np.int32), cpu
    )
    is_shorter = emit.add(
        f"{name}/is_shorter", "Less", [lengths, num_elements], cpu, "z:0",
        {"T": tf.int32},
    )  # fmt: skip
    as_number = emit.cast(f"{name}/as_number", is_shorter, tf.bool, tf.int32, cpu)
    axis = emit.numbers(f"{name}/all_lengths", [0], cpu)
    # The first length that is not shorter.
    key_offset = emit.add(
        f"{name}/key_offset",
        "Sum",
        [as_number, axis],
        cpu,
        "output:0",
        {"T": tf.int32, "Tidx": tf.int32, "keep_dims": False},
    )
    one = emit.numbers(f"{name}/one_length", [1], cpu)
    place = emit.reshape(f"{name}/place", key_offset, one, tf.int32, cpu)
    length = emit.slice(f"{name}/padded_to", lengths, place, one, tf.int32, cpu)
    missing = emit.add(
        f"{name}/missing", "Sub", [length, num_elements], cpu, "z:0", {"T": tf.int32}
    )
    zero = emit.numbers(f"{name}/nothing", [0], cpu)
    pair = emit.concat(f"{name}/pair", [zero, missing], tf.int32, cpu)
    matrix = emit.numbers(f"{name}/matrix", [1, 2], cpu)
    paddings = emit.reshape(f"{name}/paddings", pair, matrix, tf.int32, cpu)
    everything = emit.numbers(f"{name}/flat", [-1], device)
    vector = emit.reshape(f"{name}/vector", ref, everything, dtype, device)
    value = emit.add(
        f"{name}/padded",
        "Pad",
        [vector, paddings],
        device,
        "output:0",
        {"T": dtype, "Tpaddings": tf.int32},
    )
    return Padded(value=value, key_offset=key_offset, num_elements=num_elements)


def send_share(
    shares: Sequence[Share],
    name: str,
    workers: CrossWorker,
    sent: Mapping[tuple[str, str], Ref],
    device: str,
) -> tuple[dict[tuple[str, str], Ref], list[Any]]:
    """Emits the transfer of one bucket, from its source to all other programs."""
    emit = Emitter()
    dtype = shares[0].dtype
    keys = [(share.node, share.handle) for share in shares]
    shapes = [share.shape.as_list() for share in shares]
    packed = None
    if keys[0] in sent:
        values = [sent[k] for k in keys]
        packed = emit.pack(f"{name}/packed", values, shapes, dtype, device)
    size = sum(int(share.shape.num_elements()) for share in shares)
    received = workers.move(
        name, packed, dtype, tf.TensorShape([size]), shares[0].source, device
    )
    parts = emit.unpack(f"{name}/unpacked", received, shapes, dtype, device)
    return dict(zip(keys, parts, strict=True)), emit.nodes
