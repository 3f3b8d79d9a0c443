"""Memory that a trial frees stays its own, where the allocator is to keep it."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

from harness.run import launch
from results.records import Allocator

# Two threads allocate, write and free buffers of several sizes, as steps do; prints
# the page faults of the rounds after the first two.
PROGRAM = """
import ctypes, resource, threading
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.malloc.argtypes = [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
libc.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
SIZES = [n << 18 for n in (2, 9, 36, 80, 200, 280)]
def step():
    buffers = [libc.malloc(size) for size in SIZES]
    for buffer, size in zip(buffers, SIZES):
        libc.memset(buffer, 1, size)
    for buffer in buffers:
        libc.free(buffer)
def run(count):
    for _ in range(count):
        threads = [threading.Thread(target=step) for _ in range(2)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
run(2)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
run(5)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def num_faults(allocator: Allocator) -> int:
    """Returns the page faults under the variables of an allocator."""
    plain = {k: v for k, v in os.environ.items() if not k.startswith("MALLOC_")}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**plain, **launch._ALLOCATOR_VARIABLES[allocator]},
        capture_output=True,
        text=True,
        check=True,
    )
    return int(done.stdout)


@pytest.mark.processes
@pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="only glibc reads these variables"
)
def test_buffers_that_are_freed_are_not_faulted_in_again() -> None:
    """All but a few of the pages; by its own rules glibc faults in most of them."""
    num_pages = 5 * 2 * (607 << 18) // 4096

    assert num_pages / 2 < num_faults(Allocator.DEFAULT)
    assert num_faults(Allocator.KEEP) < num_pages / 20
