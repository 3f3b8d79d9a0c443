"""Which devices have a kernel for an op and a type.

TensorFlow's CPU kernels support every type that a collective accepts. GPU kernels do
not: types that are missing there are combined in host memory. The tables are those of
TensorFlow 2.21 (a test compares them with its registry). Tensors of int32 are already
in host memory, where their "GPU" kernels work.
"""

from __future__ import annotations

import tensorflow as tf

from replicator.placement import devices as device_lib

_FLOATS = frozenset(
    {tf.bfloat16, tf.float16, tf.float32, tf.float64, tf.complex64, tf.complex128}
)
_REALS = frozenset({tf.bfloat16, tf.float16, tf.float32, tf.float64})
_INTEGERS = frozenset(
    {tf.int8, tf.int16, tf.int32, tf.int64, tf.uint8, tf.uint16, tf.uint32, tf.uint64}
)
GPU_DTYPES: dict[str, frozenset[tf.DType]] = {
    "AddN": _FLOATS | {tf.int32, tf.int64, tf.uint32},
    "Pack": _FLOATS | {tf.bool, tf.int16, tf.int32, tf.int64, tf.uint32, tf.uint64},
    "Minimum": _REALS | _INTEGERS,
    "Maximum": _REALS | _INTEGERS,
    "ConcatV2": _FLOATS | _INTEGERS | {tf.bool},
    "Split": _FLOATS,
    "SplitV": _FLOATS | {tf.int32},
    "Unpack": _FLOATS | {tf.bool, tf.int32, tf.int64, tf.uint8},
    "ZerosLike": _FLOATS | _INTEGERS | {tf.bool},
    "Mul": _FLOATS | _INTEGERS,
}


def supported_device(op: str, dtype: tf.DType | None, device: str) -> str:
    """The device on which an op that is placed on ``device`` can run."""
    allowed = GPU_DTYPES.get(op)
    if "GPU" not in device or allowed is None or dtype in allowed:
        return device
    return device_lib.cpu_of(device)
