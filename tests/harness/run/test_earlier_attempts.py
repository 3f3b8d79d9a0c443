"""Folders and processes of a trial: earlier attempts stay, the rest is removed."""

import errno
import itertools
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from command_lines import overridden, smoke_sweep
from fake_machine import SAYS_VARIABLES, variables_of
from study_files import finished_in, observed_in

from harness import ExitCode, read_machine_state
from results import Store

SWEEP = smoke_sweep(
    "--replicas=1 --mode=weak --repeats=2 --no-match --budget=none --study=s "
    "--order=interleaved --set=rounds=2 --backends=single,in_graph"
)


INTERRUPTS = ("sh", "-c", 'kill -INT "$PPID"; sleep 60')


@pytest.mark.processes
def test_a_repetition_that_is_measured_again_is_kept_until_it_is_complete(
    tmp_path, harness, overrides, forked_trials
):
    root = tmp_path / "runs" / "s"
    assert ExitCode.OK == harness(*SWEEP, overrides=overrides)[0]
    planned = Store(root).read_plan().trials
    again = [of.trial_id for of in planned if of.spec.repetition_index == 1]
    # A kill between the two records of the second repetition.
    (root / "trials" / again[0] / "status.json").unlink()
    observed, first = observed_in(root), finished_in(root)
    interrupting = overrides | {"worker_command": INTERRUPTS}
    code, _, _ = harness(*SWEEP, overrides=interrupting)
    assert ExitCode.INTERRUPTED == code
    assert observed <= observed_in(root)
    code, out, _ = harness("verify", "s")
    assert ExitCode.SOME_TRIALS_FAILED == code
    assert f"trials/{again[1]} was to be measured again, and is not yet" in out
    assert "differs" not in out
    code, _, err = harness(*SWEEP, overrides=overrides)
    assert ExitCode.OK == code, err

    assert observed <= observed_in(root)
    assert first.items() <= finished_in(root).items()
    assert {f"{name}-1" for name in again} == {
        path.name for path in (root / "earlier").iterdir()
    }
    assert ExitCode.OK == harness("verify", "s")[0]
    said = "  3 earlier attempts at trials that were measured again: "
    assert said in harness("status", "s")[1]
    assert 3 == json.loads(harness("status", "s", "--json")[1])["num_earlier_attempts"]


ALONE = smoke_sweep(
    "--replicas=1 --mode=weak --no-match --budget=none --study=s --order=sequential "
    "--backends=in_graph --repeats=2"
)


@pytest.fixture
def root(tmp_path):
    return tmp_path / "runs" / "s"


@pytest.fixture
def attempt(harness, overrides, root):
    """Returns a function that runs all trials, which fail; it returns their folders.

    ``then`` is called once, when the first one is about to start.
    """

    def run(*options, then=lambda: None, command=("false",), code=None):
        calls = itertools.count()

        def canary(_core):
            if next(calls) == 0:
                then()
            return 0.2

        changes = {"worker_command": command, "canary": canary}
        words = overridden((*ALONE, "--retry=failed"), *options)
        expected = ExitCode.NOTHING_MEASURED if code is None else code
        found, _, err = harness(*words, overrides=overrides | changes)
        assert expected == found, err
        planned = Store(root).read_plan().trials
        return err if code else [root / "trials" / of.trial_id for of in planned]

    return run


def leave(folder, *names, **texts):
    """Leaves of an attempt only its spec, these files, and others."""
    for path in folder.iterdir():
        if path.name not in ("spec.json", *names):
            path.unlink()
    for name, text in texts.items():
        (folder / f"{name}.jsonl").write_text(text)


def test_what_observed_nothing_is_removed(attempt, root):
    step = '{"kind": "step", "phase": "measure", "index": 0'
    launch = '{"kind": "phase", "phase": "launch", "ns": 1}\n'
    attempts = (
        ((), {"rank_0": launch}, False),
        ((), {"rank_0": step}, True),
        ((), {"rank_1": '{"kind": "failure", "phase": "build"}\n'}, True),
        ((), {"blocks": ""}, True),
        (("status.json",), {}, True),
        (("env.json",), {}, False),
    )
    folders = attempt(f"--repeats={len(attempts)}")
    (root / "earlier" / "b-1").mkdir(parents=True)  # of another trial
    for number in (1, 2):
        for folder, (names, texts, _) in zip(folders, attempts, strict=True):
            leave(folder, *names, **texts)
            (folder / "checkpoint").mkdir()
        attempt(f"--repeats={len(attempts)}")

        for folder, (names, _, is_measured) in zip(folders, attempts, strict=True):
            assert not (folder / "checkpoint").exists()
            kept = sorted((root / "earlier").glob(f"{folder.name}-*"))
            assert [f"{folder.name}-{k + 1}" for k in range(number)] * is_measured == [
                each.name for each in kept
            ]
            # Large; that of a failure, which is complete, stays.
            for each in kept:
                assert ("status.json" in names) == (each / "checkpoint").exists()


@pytest.mark.parametrize("name", [".", "status.json"])
def test_one_failed_look_removes_and_mixes_nothing(name, attempt):
    """A trial that is not seen would run among the files of the attempt before."""
    _, second = attempt()
    (second / "checkpoint").mkdir()
    (second / "checkpoint" / "weights").write_bytes(b"1")
    before = sorted(second.rglob("*"))

    def failing(real):
        def look(path, *args, **options):
            if not isinstance(path, int) and Path(path).absolute() == second / name:
                raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), path)
            return real(path, *args, **options)

        return look

    with pytest.MonkeyPatch.context() as patch:

        def fail():
            for call in ("stat", "lstat"):
                patch.setattr(os, call, failing(getattr(os, call)))

        assert "Stale file handle" in attempt(then=fail, code=ExitCode.USAGE)
    assert before == sorted(second.rglob("*"))


def test_what_is_no_trial_makes_room_and_links_lead_to_what_is_not_ours(
    attempt, tmp_path
):
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "status.json").write_text("kept")
    _, *others = attempt("--repeats=4")

    def replace():
        for folder in others:
            shutil.rmtree(folder)
        others[0].symlink_to(tmp_path / "precious")
        others[1].write_text("")
        (others[2] / "status.json" / "x").mkdir(parents=True)

    # What cannot be listed is not moved, but said.
    err = attempt("--repeats=4", then=replace, code=ExitCode.USAGE)
    assert f"{others[2].name}': it is not a regular file; remove it" in err
    assert (others[2] / "status.json" / "x").is_dir()
    assert all((folder / "status.json").is_file() for folder in others[:2])
    assert not others[0].is_symlink()
    assert "kept" == (tmp_path / "precious" / "status.json").read_text()


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("link", r"cannot move '.*/{}' .*: earlier is a symbolic link; move or"),
        ("refused", r"cannot move '.*/{}' .*: Permission denied; move"),
    ],
)
def test_what_cannot_be_moved_or_removed_is_reported(attempt, root, how, message):
    _, second = attempt()
    rmtree = shutil.rmtree

    def refuse(path, *args, **options):
        if Path(path).absolute() == second:
            raise PermissionError(13, "Permission denied")
        rmtree(path, *args, **options)

    with pytest.MonkeyPatch.context() as patch:

        def prevent():
            if how == "link":
                (root / "earlier").rename(root / "elsewhere")
                (root / "earlier").symlink_to("elsewhere")
            else:
                leave(second, "env.json")
                patch.setattr(shutil, "rmtree", refuse)

        err = attempt(then=prevent, code=ExitCode.USAGE)
    assert re.search(message.format(second.name), err)
    assert second.is_dir()
    assert (how == "link") == (second / "status.json").exists()


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch):
    """Makes a folder for temporary files, and returns it."""
    (tmp_path / "tmp").mkdir()
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
    attempt, tmp_path, monkeypatch, temporary
):
    """Python looks in the current folder first."""
    for name in (".", "planned"):
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / "probe.py").write_text(PROBE.format(name=name))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "planned"))
    first, _ = attempt(command=(sys.executable, "-m", "probe"))
    source, name = (first / "said").read_text().split()

    assert "planned" == source
    assert temporary == Path(name).parents[1]
    assert [] == [*temporary.iterdir()]


SAYS_FOLDER = (
    "sh",
    "-c",
    'stat -c "%a %n" "$TMPDIR" > "$0/said"; ls "$TMPDIR" >> $0/said',
)


def test_a_folder_for_temporary_files_is_private_and_made_anew(attempt):
    def said(folders):
        return [(folder / "said").read_text().split() for folder in folders]

    (mode, mine), (_, other) = said(attempt(command=SAYS_FOLDER))

    def leave_files():
        for name in (mine, other):
            Path(name).mkdir()
            Path(name, "file").touch()

    assert "700" == mode
    assert mine != other
    # That of another trial stays until it starts.
    assert [["700", mine], ["700", other]] == said(
        attempt(then=leave_files, command=SAYS_FOLDER)
    )
    err = attempt(then=Path(mine).touch, code=ExitCode.USAGE)
    expected = (
        f"cannot make '{mine}' for temporary files of a trial: File exists; remov"
    )
    assert expected in err


# A program of 200 MB needs another 40 MB later; prints the page faults that this takes,
# and how much of what it reserved it uses before and afterwards.
GROWING = """
import ctypes, resource, sys
from harness.trial import measure as heap
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


@pytest.fixture
def printed(attempt, tmp_path, monkeypatch):
    """Returns what says what it prints, with the allocator that keeps what is freed."""
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    folder, _ = attempt("--set=allocator=keep", command=SAYS_VARIABLES)
    found = variables_of(tmp_path, folder.name)

    def run(how, *, has_huge_pages=False):
        variables = dict(found)
        if not has_huge_pages:
            del variables["GLIBC_TUNABLES"]
        done = subprocess.run(
            [sys.executable, "-c", GROWING, how],
            env=variables,
            capture_output=True,
            text=True,
            check=True,
        )
        return [int(text) for text in done.stdout.split()]

    return run


@pytest.mark.processes
@needs_glibc
def test_a_heap_that_was_reserved_grows_without_faults(printed):
    """What the heap has not grown into is no memory of the program."""
    num_faults, *_ = printed("grown")
    num_reserved, unused, used = printed("reserved")

    assert num_faults > NUM_PAGES_OF_GROWTH * 0.9
    assert num_reserved < NUM_PAGES_OF_GROWTH / 20
    assert pytest.approx(0, abs=1 << 20) == unused
    assert pytest.approx(40 << 20, abs=1 << 20) == used
    huge_pages = read_machine_state(()).transparent_huge_pages
    if huge_pages == "madvise" and platform.libc_ver() >= ("glibc", "2.35"):
        with_huge, *_ = printed("grown", has_huge_pages=True)
        assert with_huge < num_faults / 4
