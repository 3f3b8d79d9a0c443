"""Types of computation: 16 bits in layers, TF32 in float32 ones.

TF32 keeps 10 bits of mantissa in float32 products and convolutions on GPUs. It is on in
TensorFlow by default. Workloads set it explicitly, so that a record says which one it
is, whatever a program before them has set.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import keras
import tensorflow as tf

if TYPE_CHECKING:
    from collections.abc import Iterator

    import replicator


@contextlib.contextmanager
def dtype_policy(policy: str) -> Iterator[None]:
    """Creates layers in a block with a dtype policy, then restores the previous one."""
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(policy)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


def set_tf32(repl: replicator.Replicator, *, is_on: bool) -> None:
    """Sets whether this process uses TF32."""
    is_served = repl.num_programs < repl.num_workers
    # Those of all workers, once they are connected; CPUs have no TF32.
    if not is_on and is_served and tf.config.list_logical_devices("GPU"):
        raise ValueError(
            f"option tf32=False does not reach the GPUs of {type(repl).__name__}, "
            "whose workers only serve TensorFlow: leave it True, or use a backend such "
            "as multi_worker"
        )
    tf.config.experimental.enable_tensor_float_32_execution(is_on)
