"""The measured peak is one that a program cannot beat, and that TensorFlow reaches."""

import time

import numpy as np
import pytest

from harness.trial import peak


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_peak_is_that_of_matrix_products(dtype):
    """Within an order of magnitude of NumPy's; the method says what was done."""
    found, method = peak.measure_peak(dtype, num_replicas=1)
    matrix = np.random.default_rng(1).normal(size=(512, 512)).astype("float32")
    seconds = []
    for _ in range(5):
        start = time.perf_counter()
        matrix @ matrix
        seconds.append(time.perf_counter() - start)

    # bfloat16 may be emulated.
    lowest = 0.1 if dtype == "float32" else 0.001
    assert lowest < found / (2 * 512**3 / min(seconds)) < 100
    assert method == (
        f"fastest of 3 runs of 512 x 512 matrix products in {dtype}, 1 at a time"
    )


def test_replicas_of_a_process_compute_at_the_same_time(monkeypatch):
    """Their rates add up; the fastest run counts."""
    rates = iter([1.0] * 3 + [2.0] * 3 + [5.0, 6.0, 7.0] + [3.0] * 3)
    monkeypatch.setattr(peak.matrix_product, "rate", lambda *_: next(rates))
    found, method = peak.measure_peak("float32", num_replicas=3)

    assert found == 18.0 * 2 * 512**3
    assert method.endswith("3 at a time")
