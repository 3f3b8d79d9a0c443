"""Types that TensorFlow's collective ops reduce on GPUs."""

from __future__ import annotations

import tensorflow as tf

# By NCCL: the ops accept bfloat16 too, and then fail (the list is a constant in the
# library). int32 of GPUs is in host memory.
NCCL_DTYPES = frozenset({tf.float16, tf.float32, tf.float64, tf.int64})
# By their ring.
RING_DTYPES = NCCL_DTYPES | {tf.bfloat16}
