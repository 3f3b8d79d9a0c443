"""What a process of a trial is given: sources, temporary files, and its memory."""

import os
import platform
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from harness.errors import StudyError
from harness.launch import member
from harness.machine import allocation
from harness.machine.machine_state import read_huge_pages
from harness.run import trial_tree
from harness.trial import process_tree
from results.records.models import Allocator


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch):
    """Makes the folder of a trial, and returns one for temporary files."""
    (tmp_path / "tmp").mkdir()
    (tmp_path / "trial").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    return tmp_path / "tmp"


# Says which file it is and where its temporary file is, and cannot remove that.
PROBE = """
import os, pathlib, signal, sys, tempfile
_, name = tempfile.mkstemp()
pathlib.Path(sys.argv[-1], "said").write_text({name!r} + " " + name)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.processes
def test_a_process_has_the_planned_sources_and_a_folder_of_its_own(
    tmp_path, monkeypatch, temporary
):
    """Python looks in the current folder first; a gate would compare one tree with it.

    What the killed process left was in the folder of the trial, which is gone.
    """
    for name in ("here", "planned"):
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / "probe.py").write_text(PROBE.format(name=name))
    (tmp_path / "here" / "trial").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    trial_dir = tmp_path / "here" / "trial"
    variables = {
        "PYTHONPATH": str(tmp_path / "planned"),
        process_tree.MARKER: str(trial_dir),
        trial_tree.VARIABLE: str(trial_tree.folder_of(trial_dir)),
    }
    command = (sys.executable, "-m", "probe")
    tree = trial_tree.ProcessTree(Path("trial"), variables, command)
    trial_tree.run_tree(tree, timeout_sec=60)
    source, name = (trial_dir / "said").read_text().split()

    assert "planned" == source
    assert name.startswith(f"{trial_tree.folder_of(trial_dir)}/")
    assert [] == [*temporary.iterdir()]


def test_paths_of_the_environment_are_absolute(
    make_spec, tmp_path, monkeypatch, one_core
):
    """A trial has another current folder than the user who set them."""
    monkeypatch.chdir(tmp_path)
    place = allocation.place(
        one_core, num_replicas=1, cores_per_replica=1, device="cpu"
    )
    base = {"PYTHONPATH": "own:/lib", "TFDS_DATA_DIR": "data"}

    found = trial_tree.trial_variables(make_spec(), place, tmp_path, base=base)

    assert f"{tmp_path}/own" in found["PYTHONPATH"].split(":")
    assert str(tmp_path / "data") == found["TFDS_DATA_DIR"]


def test_a_folder_for_temporary_files_is_private_and_made_anew(tmp_path):
    """What a killed run left is removed by the next one; other trials keep theirs."""
    mine, other = (trial_tree.folder_of(tmp_path / name) for name in ("trial", "other"))
    trees = []
    for name in ("trial", "other"):
        (tmp_path / name).mkdir(exist_ok=True)
        marked = {process_tree.MARKER: str(tmp_path / name)}
        trees.append(trial_tree.ProcessTree(tmp_path / name, marked, ("true",)))
        trees[-1].start()
        (trial_tree.folder_of(tmp_path / name) / "file").touch()
    assert 0o700 == mine.stat().st_mode & 0o777
    trial_tree.clear_trials(tmp_path / "trial")

    assert not mine.exists()
    assert (other / "file").exists()
    mine.touch()
    expected = (
        rf"cannot make '{re.escape(str(mine))}' for temporary files of a trial: File"
        r" exists; remove it, or set TMPDIR to another folder"
    )
    with pytest.raises(StudyError, match=expected):
        trees[0].start()
    for tree in trees:
        tree.kill()


def test_members_of_one_host_have_a_folder_each(tmp_path, monkeypatch):
    """The harness removes it with its own; on another host, the member does."""
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    with member._temporary_folder("worker_1") as shared:
        assert tmp_path / "tmp" / "worker_1" == shared
    monkeypatch.setenv("TMPDIR", str(tmp_path / "not here"))
    with member._temporary_folder("worker_1") as elsewhere:
        assert elsewhere.is_dir()
        assert elsewhere.parent == tmp_path / "tmp"

    assert shared.is_dir()
    assert not elsewhere.exists()


# Two threads allocate, write and free buffers of several sizes, as steps do; prints
# the page faults of the rounds after the first two.
STEPS = """
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
NUM_PAGES_OF_STEPS = 5 * 2 * (607 << 18) // 4096
# A program of 200 MB needs another 40 MB later; prints the page faults that this takes,
# and how much of what it reserved it uses before and afterwards.
GROWING = """
import ctypes, resource, sys
from harness.trial import steps as heap
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.malloc.argtypes = [ctypes.c_size_t]
def use(size):
    ctypes.memset(libc.malloc(size), 1, size)
use(200 << 20)
made = heap.reserve(heap.FRACTION) if sys.argv[1] != "grown" else heap.Reservation()
unused = made.num_bytes - made.unused_bytes()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
use(40 << 20)
num_faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
print(num_faults, unused, made.num_bytes - made.unused_bytes())
"""
NUM_PAGES_OF_GROWTH = (40 << 20) // 4096
needs_glibc = pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="only glibc reads these variables"
)


def printed(allocator, program, *arguments, has_huge_pages=False):
    """Returns what a program prints under the variables of an allocator."""
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
    return [int(text) for text in done.stdout.split()]


@pytest.mark.processes
@needs_glibc
def test_buffers_that_are_freed_are_not_faulted_in_again():
    """All but a few of the pages; by its own rules glibc faults in most of them."""
    assert NUM_PAGES_OF_STEPS / 2 < printed(Allocator.DEFAULT, STEPS)[0]
    assert printed(Allocator.KEEP, STEPS)[0] < NUM_PAGES_OF_STEPS / 20


@pytest.mark.processes
@needs_glibc
def test_a_heap_that_was_reserved_grows_without_faults():
    """The pages of later growth are there before anything is timed.

    What the heap has not grown into is no memory of the program; where the kernel gives
    huge pages on request, a fault is for 2 MiB in place of 512.
    """
    num_faults, *_ = printed(Allocator.KEEP, GROWING, "grown")
    num_reserved, unused, used = printed(Allocator.KEEP, GROWING, "reserved")

    assert num_faults > NUM_PAGES_OF_GROWTH * 0.9
    assert num_reserved < NUM_PAGES_OF_GROWTH / 20
    assert pytest.approx(0, abs=1 << 20) == unused
    assert pytest.approx(40 << 20, abs=1 << 20) == used
    if read_huge_pages() == "madvise" and platform.libc_ver() >= ("glibc", "2.35"):
        with_huge, *_ = printed(Allocator.KEEP, GROWING, "grown", has_huge_pages=True)
        assert with_huge < num_faults / 4


def test_tunables_of_the_user_stay():
    base = {"GLIBC_TUNABLES": "glibc.cpu.x86_ibt=off"}
    found = trial_tree.allocator_variables(Allocator.KEEP, base)

    assert "glibc.cpu.x86_ibt=off:glibc.malloc.hugetlb=1" == found["GLIBC_TUNABLES"]
    assert {} == trial_tree.allocator_variables(Allocator.DEFAULT, base)
