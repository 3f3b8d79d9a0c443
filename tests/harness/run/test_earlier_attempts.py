"""Folders and processes of a trial: earlier attempts stay, the rest is removed."""

import errno
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from command_lines import smoke_sweep
from study_files import finished_in, observed_in

from harness import ExitCode, HarnessError, read_machine_state
from harness.client import scaling_client
from harness.run import trial_tree
from results import Allocator, Store, UnavailableRecordError

SWEEP = smoke_sweep(
    "--replicas=1 --mode=weak --repeats=2 --no-match --budget=none --study=s "
    "--order=interleaved --set=rounds=2 --backends=single,in_graph"
)


def interrupt(*_):
    os.kill(os.getpid(), signal.SIGINT)


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
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("harness.run.rounds.Repetition.start_side_by_side", interrupt)
        code, _, _ = harness(*SWEEP, overrides=overrides)
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


@pytest.fixture
def trial_dir(tmp_path):
    return tmp_path / "trials" / "a"


@pytest.mark.parametrize(
    ("name", "text", "is_measured"),
    [
        ("rank_0.jsonl", '{"kind": "phase", "phase": "launch", "ns": 1}\n', False),
        ("rank_0.jsonl", '{"kind": "step", "phase": "measure", "index": 0', True),
        ("rank_1.jsonl", '{"kind": "failure", "phase": "build"}\n', True),
        ("blocks.jsonl", "", True),
        ("status.json", "{}", True),
        ("env.json", "{}", False),
    ],
)
def test_what_observed_nothing_is_removed(trial_dir, name, text, is_measured):
    root = trial_dir.parents[1]
    (root / "earlier" / "b-1").mkdir(parents=True)  # of another trial
    for number in (1, 2):
        (trial_dir / "checkpoint").mkdir(parents=True)
        (trial_dir / name).write_text(text)
        trial_tree.clear_trials(trial_dir)

        assert not trial_dir.exists()
        kept = sorted((root / "earlier").glob("a-*"))
        assert [f"a-{k + 1}" for k in range(number)] * is_measured == [
            folder.name for folder in kept
        ]
        # Large; that of a failure, which is complete, stays.
        for folder in kept:
            assert (name == "status.json") == (folder / "checkpoint").exists()


@pytest.mark.parametrize("name", [".", "status.json"])
def test_one_failed_look_removes_and_mixes_nothing(name, trial_dir, monkeypatch):
    """A trial that is not seen would run among the files of the attempt before."""
    (trial_dir / "checkpoint").mkdir(parents=True)
    (trial_dir / "checkpoint" / "weights").write_bytes(b"1")
    (trial_dir / "status.json").write_text("{}")
    before = sorted(trial_dir.rglob("*"))

    def failing(real):
        def look(path, *args, **options):
            if os.fspath(path) == str(trial_dir / name):
                raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), path)
            return real(path, *args, **options)

        return look

    with monkeypatch.context() as patch:
        for call in ("stat", "lstat"):
            patch.setattr(os, call, failing(getattr(os, call)))
        with pytest.raises(UnavailableRecordError, match="Stale file handle"):
            trial_tree.clear_trials(trial_dir)
    assert before == sorted(trial_dir.rglob("*"))


def test_what_is_no_trial_makes_room_and_links_lead_to_what_is_not_ours(
    trial_dir, tmp_path
):
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "status.json").write_text("kept")
    trial_dir.parent.mkdir()
    trial_dir.symlink_to(tmp_path / "precious")
    trial_tree.clear_trials(trial_dir)
    assert not trial_dir.is_symlink()
    assert "kept" == (tmp_path / "precious" / "status.json").read_text()

    (trial_dir / "status.json" / "x").mkdir(parents=True)
    trial_tree.clear_trials(trial_dir)
    trial_dir.write_text("")
    trial_tree.clear_trials(trial_dir)
    assert not trial_dir.exists()
    assert (tmp_path / "earlier" / "a-1" / "status.json" / "x").is_dir()


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("link", r"cannot move '.*/a' .*: earlier is a symbolic link; move or"),
        ("refused", r"cannot move '.*' .*: Permission denied; move"),
    ],
)
def test_what_cannot_be_moved_or_removed_is_reported(
    trial_dir, tmp_path, monkeypatch, how, message
):
    trial_dir.mkdir(parents=True)
    if how == "link":
        (trial_dir / "status.json").write_text("{}")
        (tmp_path / "elsewhere").mkdir()
        (tmp_path / "earlier").symlink_to("elsewhere")
    else:

        def refuse(*_, **__):
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr("shutil.rmtree", refuse)
    with pytest.raises(HarnessError, match=message):
        trial_tree.clear_trials(trial_dir)

    assert trial_dir.is_dir()
    assert (how == "link") == (trial_dir / "status.json").exists()


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
    """Python looks in the current folder first."""
    for name in ("here", "planned"):
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / "probe.py").write_text(PROBE.format(name=name))
    (tmp_path / "here" / "trial").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    trial_dir = tmp_path / "here" / "trial"
    variables = {
        "PYTHONPATH": str(tmp_path / "planned"),
        scaling_client.TRIAL_VARIABLE: str(trial_dir),
        trial_tree.VARIABLE: str(trial_tree.folder_of(trial_dir)),
    }
    command = (sys.executable, "-m", "probe")
    tree = trial_tree.ProcessTree(Path("trial"), variables, command)
    trial_tree.run_tree(tree, timeout_sec=60)
    source, name = (trial_dir / "said").read_text().split()

    assert "planned" == source
    assert name.startswith(f"{trial_tree.folder_of(trial_dir)}/")
    assert [] == [*temporary.iterdir()]


def test_a_folder_for_temporary_files_is_private_and_made_anew(tmp_path):
    mine, other = (trial_tree.folder_of(tmp_path / name) for name in ("trial", "other"))
    trees = []
    for name in ("trial", "other"):
        (tmp_path / name).mkdir(exist_ok=True)
        marked = {scaling_client.TRIAL_VARIABLE: str(tmp_path / name)}
        trees.append(trial_tree.ProcessTree(tmp_path / name, marked, ("true",)))
        trees[-1].start()
        (trial_tree.folder_of(tmp_path / name) / "file").touch()
    assert 0o700 == mine.stat().st_mode & 0o777
    trial_tree.clear_trials(tmp_path / "trial")

    assert not mine.exists()
    assert (other / "file").exists()
    mine.touch()
    expected = r"cannot make .* for temporary files of a trial: File exists; remove it"
    with pytest.raises(HarnessError, match=expected) as caught:
        trees[0].start()
    assert f"'{mine}'" in str(caught.value)
    for tree in trees:
        tree.kill()


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


def printed(how, *, has_huge_pages=False):
    """Returns what the program prints, with the allocator that keeps what is freed."""
    plain = {k: v for k, v in os.environ.items() if not k.startswith("MALLOC_")}
    variables = trial_tree.allocator_variables(Allocator.KEEP, {})
    if not has_huge_pages:
        variables.pop("GLIBC_TUNABLES", None)
    done = subprocess.run(
        [sys.executable, "-c", GROWING, how],
        env={**plain, **variables},
        capture_output=True,
        text=True,
        check=True,
    )
    return [int(text) for text in done.stdout.split()]


@pytest.mark.processes
@needs_glibc
def test_a_heap_that_was_reserved_grows_without_faults():
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
