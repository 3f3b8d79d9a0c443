"""What a trial reads of its machine: peak memory, peak rate, a matrix product, NCCL."""

import json
import subprocess
import time

import numpy as np
import pytest

from harness.client.scaling_client import (
    RESET_METHOD,
    SAMPLED_METHOD,
    RankFile,
    ResidentMemory,
)
from harness.trial import steps
from harness.trial.rank_file import rank_path, read_rank


def fake_proc(tmp_path, peak_kib, size_kib):
    (tmp_path / "status").write_text(
        f"Name:\tx\nVmHWM:\t{peak_kib} kB\nVmRSS:\t{size_kib} kB\n"
    )
    return tmp_path


@pytest.mark.parametrize(
    ("before", "sizes", "method"),
    [
        # After the reset, the mark is the kernel's.
        (100, [(300, 200)], RESET_METHOD),
        # Without one, a mark from before the window would be a wrong number.
        (900, [(900, 300), (900, 200)], SAMPLED_METHOD),
    ],
)
def test_peak_memory_is_of_the_window(tmp_path, before, sizes, method):
    probe = ResidentMemory(fake_proc(tmp_path, before, 100))
    probe.start()
    for size in sizes:
        fake_proc(tmp_path, *size)
        probe.sample()

    assert method == probe.method
    assert 300 * 1024 == probe.peak_bytes()
    assert "5" == (tmp_path / "clear_refs").read_text()


def test_the_real_peak_is_seen_and_forgotten():
    """On this kernel: a large array before the window does not count."""
    probe = ResidentMemory()
    before = bytearray(200 * 2**20)
    before[::4096] = b"x" * len(before[::4096])
    del before
    probe.start()
    base = probe.peak_bytes()
    inside = bytearray(64 * 2**20)
    inside[::4096] = b"x" * len(inside[::4096])
    probe.sample()

    assert 40 * 2**20 < probe.peak_bytes() - base < 120 * 2**20


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_peak_is_that_of_matrix_products(dtype):
    """Within an order of magnitude of NumPy's; the method says what was done."""
    found, method = steps.measure_peak(dtype, num_replicas=1)
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
    rates = iter([1.0] * 3 + [2.0] * 3 + [5.0, 6.0, 7.0] + [3.0] * 3)
    monkeypatch.setattr(steps, "matrix_product_rate", lambda *_: next(rates))
    found, method = steps.measure_peak("float32", num_replicas=3)

    assert found == 18.0 * 2 * 512**3
    assert method.endswith("3 at a time")


@pytest.fixture
def write_tflops(tmp_path):
    def run(*arguments, **sizes):
        rank_path(tmp_path, 0).unlink(missing_ok=True)
        writer = RankFile(rank_path(tmp_path, 0), time.monotonic_ns)
        steps.write_tflops(writer, *arguments, **sizes)
        writer.close()
        lines = map(json.loads, rank_path(tmp_path, 0).read_text().splitlines())
        return [line for line in lines if line["kind"] == "gpu_canary"]

    return run


def test_a_rate_is_recorded_for_each_device(write_tflops):
    """Here on the CPU, twice; the random numbers of the trial stay as they were."""
    import tensorflow as tf

    tf.random.set_seed(7)
    expected = tf.random.uniform([3]).numpy().tolist()
    tf.random.set_seed(7)
    (line,) = write_tflops(["CPU:0", "CPU:0"], size=64, duration_sec=0.01)

    assert expected == tf.random.uniform([3]).numpy().tolist()
    assert 2 == len(line["tflops"])
    assert all(0 < rate < 100 for rate in line["tflops"])
    # Trials on CPUs, and processes that coordinate.
    assert [] == write_tflops([])


def test_a_device_without_memory_for_it_does_not_end_the_trial(
    write_tflops, tmp_path, monkeypatch
):
    import tensorflow as tf

    def fail(*_):
        raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating\nmore")

    monkeypatch.setattr(steps, "tflops", fail)

    assert [
        {"kind": "gpu_canary", "tflops": [], "reason": "OOM when allocating"}
    ] == write_tflops(["GPU:0"])
    assert [] == read_rank(tmp_path, 0).last("gpu_canary")["tflops"]


@pytest.mark.parametrize(
    ("code", "text"), [(22501, "2.25.1"), (22100, "2.21.0"), (2804, "2.8.4")]
)
def test_the_version_of_nccl_that_was_loaded_is_read(tmp_path, code, text):
    """By asking the library itself; the digits of its code have changed with 2.9."""
    source, library = tmp_path / "nccl.c", tmp_path / "libnccl.so.2"
    source.write_text(f"int ncclGetVersion(int* v) {{ *v = {code}; return 0; }}\n")
    made = subprocess.run(
        ["cc", "-shared", "-fPIC", "-o", str(library), str(source)], check=False
    )
    if made.returncode:
        pytest.skip("this machine has no C compiler")
    maps = tmp_path / "maps"
    maps.write_text(
        "7f00-7f01 r-xp 00000000 08:01 12  /usr/lib/libc.so.6\n"
        f"7f02-7f03 r-xp 00000000 08:01 13                 {library}\n"
    )

    assert text == steps.loaded_version(maps)


@pytest.mark.parametrize("line", ["", "7f00-7f01 r-xp 0 08:01 1  /gone/libnccl.so.2\n"])
def test_without_a_library_nothing_is_known(tmp_path, line):
    """Also of one that cannot be opened again, and where nothing can be read."""
    maps = tmp_path / "maps"
    assert steps.loaded_version(maps) is None
    maps.write_text(line)
    assert steps.loaded_version(maps) is None
