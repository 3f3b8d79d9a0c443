"""What a process of a trial is given: sources, temporary files, and its memory."""

import functools
import os
import platform
import re
import subprocess
import sys
import tempfile

import pytest

from harness.errors import StudyError
from harness.launch import member
from harness.machine.machine_state import read_huge_pages
from harness.run import trial_tree
from harness.trial import process_tree
from results.records.models import Allocator

PROBE = "import pathlib, sys\npathlib.Path(sys.argv[-1], 'said').write_text({name!r})\n"


@pytest.mark.processes
def test_the_current_folder_does_not_replace_the_sources(tmp_path, monkeypatch):
    """Python looks there first; a gate would have compared a tree with itself."""
    for name in ("here", "planned"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "probe.py").write_text(PROBE.format(name=name))
    (tmp_path / "here" / "trial").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    trial_dir = tmp_path / "here" / "trial"
    variables = {
        "PYTHONPATH": str(tmp_path / "planned"),
        process_tree.MARKER: str(trial_dir),
    }

    tree = trial_tree.ProcessTree(
        trial_dir.relative_to(tmp_path / "here"),
        variables,
        (sys.executable, "-m", "probe"),
    )
    ended = trial_tree.run_tree(tree, timeout_sec=60)

    assert 0 == ended.exit_code
    assert "planned" == (trial_dir / "said").read_text()


@pytest.mark.processes
def test_paths_of_the_environment_are_absolute(
    make_spec, tmp_path, monkeypatch, one_core
):
    """A trial has another current folder than the user who set them."""
    from harness.placement import allocation

    monkeypatch.chdir(tmp_path)
    place = allocation.place(
        one_core, num_replicas=1, cores_per_replica=1, device="cpu"
    )
    base = {"PYTHONPATH": "own:/lib", "TFDS_DATA_DIR": "data"}

    found = trial_tree.trial_variables(make_spec(), place, tmp_path, base=base)

    assert f"{tmp_path}/own" in found["PYTHONPATH"].split(":")
    assert str(tmp_path / "data") == found["TFDS_DATA_DIR"]


# Says where its temporary file is, and cannot remove it.
KILLED = """
import os, pathlib, signal, sys, tempfile
_, name = tempfile.mkstemp()
pathlib.Path(sys.argv[-1], "name").write_text(name)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(autouse=True)
def _temporary(tmp_path, monkeypatch):
    (tmp_path / "tmp").mkdir()
    (tmp_path / "trial").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))


@pytest.mark.processes
def test_what_a_killed_process_left_is_removed(tmp_path):
    """The file was in the folder of the trial, which is gone."""
    trial_dir = tmp_path / "trial"
    variables = {
        process_tree.MARKER: str(trial_dir),
        trial_tree.VARIABLE: str(trial_tree.folder_of(trial_dir)),
    }
    tree = trial_tree.ProcessTree(trial_dir, variables, (sys.executable, "-c", KILLED))
    trial_tree.run_tree(tree, timeout_sec=30.0)

    name = (trial_dir / "name").read_text()
    assert name.startswith(f"{trial_tree.folder_of(trial_dir)}/")
    assert [] == [*(tmp_path / "tmp").iterdir()]


def test_the_next_run_removes_what_a_killed_run_left(tmp_path):
    """Which had no time for it; other trials keep theirs."""
    for name in ("trial", "other"):
        trial_tree.make_scratch(tmp_path / name)
        (trial_tree.folder_of(tmp_path / name) / "file").touch()
    trial_tree.clear_trials(tmp_path / "trial")

    assert not trial_tree.folder_of(tmp_path / "trial").exists()
    assert (trial_tree.folder_of(tmp_path / "other") / "file").exists()


def test_only_this_user_can_read_it(tmp_path):
    """Temporary files may hold what others must not see."""
    trial_tree.make_scratch(tmp_path / "trial")

    assert 0o700 == trial_tree.folder_of(tmp_path / "trial").stat().st_mode & 0o777


def test_what_is_in_the_way_is_named(tmp_path):
    folder = trial_tree.folder_of(tmp_path / "trial")
    folder.touch()

    expected = (
        rf"cannot make '{re.escape(str(folder))}' for temporary files of a trial: File"
        r" exists; remove it, or set TMPDIR to another folder"
    )
    with pytest.raises(StudyError, match=expected):
        trial_tree.make_scratch(tmp_path / "trial")


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
from harness.trial import steps as heap
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
