"""A matrix product whose rate tells how fast a GPU is now, with TensorFlow.

GPUs of one model that are healthy and cool have nearly the same rate; one that is hot,
capped or broken has not. ``doctor`` times it on all GPUs of a machine, and each trial
on its own, before its window. The device can also be a CPU, for tests.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from harness.client.scaling_client import RankFile

CHAIN = 20
"""Products that are queued before the device is waited for."""
TRIAL_SIZE = 4096
"""Rows of a matrix in a trial: a few of them, in bfloat16, fit beside any program."""
TRIAL_SEC = 0.1
"""Time for each GPU of a trial, after as much to raise its clock."""


def make_kernel(device: str, size: int, dtype: str = "") -> Callable[[], None]:
    """Returns a function that multiplies matrices on a device and waits for it."""
    import tensorflow as tf

    with tf.device(device):
        # Of this scale a product of many stays near 1, and no value overflows.
        matrix = tf.random.stateless_uniform([size, size], [1, 2]) * (2.0 / size)
        dtype = dtype or ("bfloat16" if "GPU" in device else "float32")
        matrix = tf.cast(matrix, dtype)

    def multiply() -> None:
        with tf.device(device):
            product: Any = matrix
            for _ in range(CHAIN):
                product = tf.matmul(product, matrix)
            # Reading one value waits for all of them.
            tf.reduce_sum(tf.cast(product, tf.float32)).numpy()

    return multiply


def rate(multiply: Callable[[], None], duration_sec: float) -> float:
    """Returns products per second over at least ``duration_sec``."""
    num_products = 0
    start = now = time.perf_counter()
    while now - start < duration_sec:
        multiply()
        num_products += CHAIN
        now = time.perf_counter()
    return num_products / (now - start)


def tflops(device: str, size: int, duration_sec: float) -> float:
    """Returns the rate on a device in TFLOP/s, in its clock under load."""
    multiply = make_kernel(device, size)
    rate(multiply, duration_sec)
    return rate(multiply, duration_sec) * 2 * size**3 / 1e12


def write_tflops(
    writer: RankFile,
    devices: Sequence[str],
    *,
    size: int = TRIAL_SIZE,
    duration_sec: float = TRIAL_SEC,
) -> None:
    """Times the product on the GPUs of a trial, one after the other, and records it.

    A trial whose program leaves no memory for it continues: the reason is recorded in
    place of the rates.
    """
    if not devices:
        return
    import tensorflow as tf

    try:
        rates = [tflops(device, size, duration_sec) for device in devices]
    except (tf.errors.OpError, RuntimeError, ValueError) as error:
        from harness.trial.rank_file import one_line

        writer.write("gpu_canary", tflops=[], reason=one_line(str(error)))
    else:
        writer.write("gpu_canary", tflops=rates, reason="")
