"""Cross-worker transfers of tensors whose size is known only at run time.

TensorFlow fixes the shape of a collective instance at its first use and rejects all
others, and it may crash on a tensor without elements. So a tensor without a static
shape is sent as a vector whose length is a power of two, and each length is a separate
instance. At most twice as many bytes are sent, and a program has at most 32 instances
per transfer, however many sizes occur.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np
import tensorflow as tf

from replicator.placement.devices import cpu_of

if TYPE_CHECKING:
    from typing import TypeAlias

    from replicator.engine.graph.body import Ref
    from replicator.engine.graph.emitter import Emitter

    Tensor: TypeAlias = Ref | str

# 2^0 to 2^30, and nothing beyond: sizes are int32 here.
NUM_LENGTHS = 31


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Padded:
    """A tensor on its way."""

    value: Ref  # Its elements and padding, a vector.
    key_offset: Ref  # Which of the ``NUM_LENGTHS`` instances of the transfer takes it.
    num_elements: Ref  # How many elements it has, a vector of one number.


def pad(emit: Emitter, name: str, ref: Tensor, dtype: tf.DType, device: str) -> Padded:
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
