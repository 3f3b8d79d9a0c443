"""Determinism: the same bits from the same seed in every run."""

from __future__ import annotations

import keras
import tensorflow as tf

from replicator._tf import compat as _tf_compat
from replicator.validation.arguments import is_integer, shown

_LIMIT = 1 << 32


def set_determinism(seed: int | None) -> None:
    """Makes training bitwise reproducible, in this process and in new ones.

    Call it first, before models, datasets and replicators are created, on every worker
    with the same seed. It seeds Python, NumPy, TensorFlow and Keras, and makes
    TensorFlow choose deterministic kernels (``enable_op_determinism``). They can be
    slower, and an op without a deterministic kernel raises an error. ``tf.data`` then
    keeps the order of elements and runs maps with random ops one element at a time.
    Replicas still draw different streams: each folds its id into the seed.

    The same bits need the same backend, devices, versions, and numbers of replicas and
    threads; a different number of replicas sums in a different order.

    Args:
      seed: An integer in [0, 2**32); None switches deterministic kernels off again and
        leaves the seeds.

    Raises:
      ValueError: Not such an integer.
    """
    if seed is None:
        _tf_compat.disable_op_determinism()
        return
    if not is_integer(seed, least=0) or seed >= _LIMIT:
        raise ValueError(
            f"seed {shown(seed)} must be an integer from 0 to {_LIMIT - 1}, or None to "
            "switch deterministic kernels off"
        )
    keras.utils.set_random_seed(seed)
    tf.config.experimental.enable_op_determinism()
