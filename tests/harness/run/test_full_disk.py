"""A disk that is full, or read-only: one line that says so, and nothing is lost.

The disk is real, a file system in memory of 1 MB; mounting one needs root.
"""

import collections
import os
import re
import shutil
import subprocess

import pytest
from command_words import overridden
from ended import ended_ids

from harness.cli import exit_codes
from results.records.models import TrialStatus
from results.store.study_store import Store

pytestmark = pytest.mark.processes

SMALL_KIB, LARGE_KIB = 1024, 65536


def mount(folder, *options):
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", ",".join(options), "none", str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stderr


@pytest.fixture
def disk(tmp_path):
    if os.geteuid() != 0:
        pytest.skip("mounting a small disk needs root")
    folder = tmp_path / "disk"
    folder.mkdir()
    error = mount(folder, f"size={SMALL_KIB}k")
    if error:
        pytest.skip(f"no file system can be mounted here: {error.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(folder, free_kib):
    """Leaves so much space, and returns the file that takes the rest."""
    filler = folder / "filler"
    usage = os.statvfs(folder)
    size = usage.f_bavail * usage.f_frsize - free_kib * 1024
    filler.write_bytes(bytes(size))
    return filler


@pytest.fixture
def sweep(disk, harness, small, overrides, monkeypatch):
    monkeypatch.setenv("FAKE_COUNT_FILE", str(disk.parent / "count"))
    args = ("sweep", *small, f"--runs-dir={disk / 'runs'}", "--study=s")
    args = overridden(args, "--repeats=1")
    return lambda *more: harness(*overridden(args, *more), overrides=overrides)


# At the plan, within the trials, within the matching.
@pytest.mark.parametrize(
    ("free_kib", "options"),
    [
        (0, ("--no-match",)),
        (60, ("--no-match",)),
        pytest.param(60, (), marks=pytest.mark.full),
    ],
)
def test_a_full_disk_is_one_line_and_loses_no_trial(disk, free_kib, options, sweep):
    """With space again, the same command continues, and repeats nothing.

    The full run fills it at two more moments.
    """
    check_full(disk, free_kib, lambda *more: sweep(*options, *more))


@pytest.mark.full
@pytest.mark.usefixtures("with_pages")
def test_a_disk_that_is_full_at_the_report_loses_no_trial(disk, sweep):
    """The last moment of a sweep, which only the full run has."""
    check_full(disk, 400, lambda *more: sweep("--repeats=2", *more), num_trials=8)


def check_full(disk, free_kib, sweep, num_trials=4):
    """Fills the disk, sweeps, makes room, and sweeps again."""
    root = disk / "runs" / "s"
    filler = fill(disk, free_kib)
    code, _, err = sweep()
    finished = ended_ids(Store(root)) if (root / "plan.json").exists() else set()
    # A trial whose own process had no space has failed.
    failed = {
        trial.trial_id
        for trial in (Store(root).trials() if finished else ())
        if trial.status and trial.status.status is not TrialStatus.OK
    }
    filler.unlink()
    mount(disk, "remount", f"size={LARGE_KIB}k")
    again, _, err_again = sweep("--retry=failed")
    started = collections.Counter((disk.parent / "count").read_text().split())

    assert exit_codes.USAGE == code, err
    assert re.search(r"^error: cannot .*No space left on device", err, re.MULTILINE)
    assert "Traceback" not in err
    assert exit_codes.OK == again, err_again
    assert num_trials == len(ended_ids(Store(root)))
    assert all(1 == started[trial_id] for trial_id in finished - failed)


def test_a_study_that_cannot_be_written_can_be_read(
    disk, harness, template, overrides, tmp_path
):
    """Its tables and its page; what would write into it is refused in one line."""
    mount(disk, "remount", f"size={LARGE_KIB}k")
    runs = f"--runs-dir={disk / 'runs'}"
    shutil.copytree(template / "runs", disk / "runs")
    mount(disk, "remount", "ro")
    status, _, _ = harness("status", "s", runs)
    verified, _, _ = harness("verify", "s", runs)
    page, _, _ = harness("report", "s", runs, "-o", str(tmp_path / "page.html"))
    code, out, err = harness("sweep", "--study", "s", runs, overrides=overrides)

    assert [exit_codes.OK] * 3 == [status, verified, page]
    assert (exit_codes.USAGE, "") == (code, out)
    assert re.fullmatch(r"error: cannot .*: Read-only file system; .*\n", err)
