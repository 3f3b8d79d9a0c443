"""Memory that a trial frees stays its own, where the allocator is to keep it."""

import functools
import os
import platform
import subprocess
import sys

import pytest

from harness.machine.machine_state import read_huge_pages
from harness.run import trial_tree
from results.records.models import Allocator

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


# A program of 200 MB needs another 40 MB later; prints the page faults that this takes.
GROWING = """
import ctypes, resource, sys
from harness.trial import heap
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.malloc.argtypes = [ctypes.c_size_t]
def use(size):
    ctypes.memset(libc.malloc(size), 1, size)
use(200 << 20)
made = heap.reserve(heap.FRACTION) if sys.argv[1] != "grown" else heap.Reservation()
if sys.argv[1] == "unused": print(made.num_bytes - made.unused_bytes())
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
use(40 << 20)
if sys.argv[1] == "used": print(made.num_bytes - made.unused_bytes())
if sys.argv[1] in ("grown", "reserved"):
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
needs_glibc = pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="only glibc reads these variables"
)


def printed(allocator, program=PROGRAM, *arguments, has_huge_pages=False):
    """Returns what a program prints under the variables of an allocator.

    Without huge pages page faults count the pages of 4 KiB that were not there.
    """
    plain = {k: v for k, v in os.environ.items() if not k.startswith("MALLOC_")}
    variables = trial_tree.allocator_variables(allocator, {})
    if not has_huge_pages:
        variables.pop("GLIBC_TUNABLES", None)
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env={**plain, **variables},
        capture_output=True,
        text=True,
        check=True,
    )
    return int(done.stdout)


@pytest.mark.processes
@needs_glibc
def test_buffers_that_are_freed_are_not_faulted_in_again():
    """All but a few of the pages; by its own rules glibc faults in most of them."""
    num_pages = 5 * 2 * (607 << 18) // 4096

    assert num_pages / 2 < printed(Allocator.DEFAULT)
    assert printed(Allocator.KEEP) < num_pages / 20


@pytest.mark.processes
@needs_glibc
def test_a_heap_that_was_reserved_grows_without_faults():
    """The pages of later growth are there before anything is timed."""
    num_pages = (40 << 20) // 4096

    assert num_pages * 0.9 < printed(Allocator.KEEP, GROWING, "grown")
    assert printed(Allocator.KEEP, GROWING, "reserved") < num_pages / 20


@pytest.mark.processes
@needs_glibc
@pytest.mark.parametrize(("moment", "used"), [("unused", 0), ("used", 40 << 20)])
def test_what_the_heap_has_not_grown_into_is_no_memory_of_the_program(moment, used):
    """It is known at the end of the window, and the peak is without it."""
    assert pytest.approx(used, abs=1 << 20) == printed(Allocator.KEEP, GROWING, moment)


@pytest.mark.processes
@pytest.mark.skipif(
    read_huge_pages() != "madvise" or platform.libc_ver() < ("glibc", "2.35"),
    reason="the kernel or glibc does not give huge pages on request",
)
def test_the_heap_has_huge_pages():
    """A fault for 2 MiB in place of 512."""
    grown = functools.partial(printed, Allocator.KEEP, GROWING, "grown")

    assert grown(has_huge_pages=True) < grown(has_huge_pages=False) / 4


def test_tunables_of_the_user_stay():
    """Glibc reads all of them from one variable."""
    base = {"GLIBC_TUNABLES": "glibc.cpu.x86_ibt=off"}
    found = trial_tree.allocator_variables(Allocator.KEEP, base)

    assert "glibc.cpu.x86_ibt=off:glibc.malloc.hugetlb=1" == found["GLIBC_TUNABLES"]
    assert {} == trial_tree.allocator_variables(Allocator.DEFAULT, base)
