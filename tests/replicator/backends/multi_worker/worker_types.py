"""Every type that crosses between workers, and what replicas contribute in it."""

import numpy as np
import tensorflow as tf

TYPES = (
    *("bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"),
    *("bfloat16", "float16", "float32", "float64", "complex64", "complex128"),
)


def of_type(name, replica_id):
    """What a replica contributes in a type."""
    values = (np.arange(6, dtype=np.uint64).reshape(2, 3) * (replica_id + 3)) % 7
    if name == "uint64":
        values += np.uint64(2**63)  # must not be taken for negative
    return tf.cast(values, tf.as_dtype(name))


def plain(value):
    """A tensor as lists of what JSON knows."""
    array = np.asarray(value)
    if array.dtype.kind in "biu":
        return array.tolist()
    return array.astype(complex).real.tolist()


def ops_of(dtype):
    """The reductions that a type knows."""
    if dtype == tf.bool:
        return ["min", "max"]
    return ["sum"] if dtype.is_complex else ["sum", "min", "max"]
