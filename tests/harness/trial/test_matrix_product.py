"""The matrix product of a trial tells how fast its GPUs are, and disturbs nothing."""

import json
import time

import pytest

from harness.client.scaling_client import RankFile
from harness.trial import matrix_product
from harness.trial.rank_file import rank_path, read_rank


@pytest.fixture
def writer(tmp_path):
    made = RankFile(rank_path(tmp_path, 0), time.monotonic_ns)
    yield made
    made.close()


def test_a_rate_is_recorded_for_each_device(writer, tmp_path):
    """Here on the CPU, twice; the random numbers of the trial stay as they were."""
    import tensorflow as tf

    tf.random.set_seed(7)
    expected = tf.random.uniform([3]).numpy().tolist()
    tf.random.set_seed(7)
    matrix_product.write_tflops(writer, ["CPU:0", "CPU:0"], size=64, duration_sec=0.01)
    writer.sync()

    assert expected == tf.random.uniform([3]).numpy().tolist()
    rates = read_rank(tmp_path, 0).gpu_tflops
    assert 2 == len(rates)
    assert all(0 < rate < 100 for rate in rates)


def test_a_device_without_memory_for_it_does_not_end_the_trial(
    writer, tmp_path, monkeypatch
):
    """The reason is recorded; there is no rate."""
    import tensorflow as tf

    def fail(*_):
        raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating\nmore")

    monkeypatch.setattr(matrix_product, "tflops", fail)
    matrix_product.write_tflops(writer, ["GPU:0"])
    writer.sync()
    (line,) = [
        fields
        for text in rank_path(tmp_path, 0).read_text().splitlines()
        if (fields := json.loads(text))["kind"] == "gpu_canary"
    ]

    assert {"kind": "gpu_canary", "tflops": [], "reason": "OOM when allocating"} == line
    assert [] == read_rank(tmp_path, 0).gpu_tflops


def test_a_process_without_gpus_records_nothing(writer, tmp_path):
    """Trials on CPUs, and processes that coordinate."""
    matrix_product.write_tflops(writer, [])
    writer.sync()

    assert "gpu_canary" not in rank_path(tmp_path, 0).read_text()
