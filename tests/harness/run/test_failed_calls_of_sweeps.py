"""A call of a sweep fails, the disk is full, or the power is cut: nothing is lost.

``READ_FAULTS``, ``WRITE_FAULTS`` and ``POWER_CUTS`` set how many are drawn; ``make
faults`` draws hundreds. Subcommands that only read have
``tests/harness/hostile/test_failed_calls.py``.
"""

import collections
import errno
import os
import re
import shutil
import subprocess

import covering
import damaging
import pytest
from command_lines import overridden, smoke_sweep
from damaging import ERRNOS, FailingReads, FailingWrites
from study_files import ended_ids, finished_in, observed_in

import reports
from harness import ExitCode, main
from results import Store, TrialStatus

pytestmark = pytest.mark.processes

SWEEP = smoke_sweep(
    "--replicas=1 --mode=weak --repeats=2 --no-match --budget=none --study=s"
)
ORDERS = {
    "sequential": ("--order=sequential", "--backends=in_graph"),
    "relay": ("--order=interleaved", "--set=rounds=2", "--backends=single,in_graph"),
}
NUM_READS = int(os.environ.get("READ_FAULTS", "4"))
NUM_WRITES = int(os.environ.get("WRITE_FAULTS", "6"))
WRITE_ERRNOS = (errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EROFS)


@pytest.fixture
def quiet(tmp_path, monkeypatch):
    """Goes to a folder in which sweeps write no page."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(reports, "print_summary", lambda *_: None)
    return tmp_path / "runs" / "s"


@pytest.mark.usefixtures("forked_trials")
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("kind", ["reads", "writes"])
def test_a_failed_call_loses_nothing_of_what_was_measured(
    kind, order, quiet, tmp_path, overrides, capsys, monkeypatch
):
    """One line that names the file, or the whole study; then the same command ends.

    A failed read hits a study that was interrupted, a failed write a new one; a second
    failed write hits what the first one has left.
    """
    root, start = quiet, tmp_path / "start"
    arguments = (*SWEEP, *ORDERS[order])
    is_read = kind == "reads"
    faults = FailingReads(root) if is_read else FailingWrites(tmp_path / "runs")
    faults.install(monkeypatch)

    def run(place=-1):
        faults.place, faults.count, faults.failed = place, 0, ""
        code = main(arguments, run_overrides=overrides)
        faults.place = -1
        return code, capsys.readouterr().err

    code, err = run()
    assert ExitCode.OK == code, err
    if is_read:
        trials = Store(root).read_plan().trials
        last = max(trials, key=lambda of: of.spec.repetition_index)
        (Store(root).trial_dir(last.trial_id) / "status.json").unlink()
        shutil.copytree(root, start)
        assert ExitCode.OK == run()[0]
    num_calls, num_trials = faults.count, len(Store(root).read_plan().trials)
    assert num_calls > (50 if is_read else 20), "it read or wrote nothing"
    chance = covering.chance(f"{kind} {order}")
    errnos = ERRNOS if is_read else WRITE_ERRNOS
    wrong = []
    for number in range((NUM_READS if is_read else NUM_WRITES) // len(ORDERS)):
        shutil.rmtree(root, ignore_errors=True)
        if is_read:
            shutil.copytree(start, root)
        faults.number = errnos[number % len(errnos)]
        before, observed = finished_in(root), observed_in(root)
        is_lost, is_changed, ends = False, False, []
        for _ in range(1 if is_read else 1 + number % 2):
            code, err = run(chance.randrange(num_calls))
            ends.append((faults.failed, code, err))
            is_lost |= not observed <= observed_in(root)
            is_changed |= not before.items() <= finished_in(root).items()
            before, observed = finished_in(root), observed_in(root)
        again, said = run()
        statuses = [of.status and of.status.status for of in Store(root).trials()]
        problems = {
            "an end of another kind": not all(is_said(*end[1:]) for end in ends),
            "the same command does not finish": again != ExitCode.OK,
            "a trial is missing": statuses != [TrialStatus.OK] * num_trials,
            "a finished trial changed": is_changed
            or not before.items() <= finished_in(root).items(),
            "observations are gone": is_lost or not observed <= observed_in(root),
            "half a file is left": any(root.rglob(".tmp-*")),
        }
        found = [text for text, is_wrong in problems.items() if is_wrong]
        if found:
            wrong.append((found, faults.number, ends, said[-300:]))

    assert [] == wrong


def is_said(code, err):
    is_line = (err.splitlines() or [""])[-1].startswith("error: ")
    is_end = code == ExitCode.OK or (code == ExitCode.USAGE and is_line)
    # What failed is a file of the study, and no standard output.
    return is_end and "Traceback" not in err and "write the output" not in err


def test_what_a_killed_writer_left_is_removed(
    tmp_path, harness, overrides, forked_trials
):
    arguments = (*SWEEP, *ORDERS["sequential"])
    assert ExitCode.OK == harness(*arguments, overrides=overrides)[0]
    root = tmp_path / "runs" / "s"
    folders = [root, next((root / "trials").iterdir())]
    for folder in folders:
        (folder / ".tmp-x-env.json").write_text("{")
    before = finished_in(root)

    assert ExitCode.OK == harness(*arguments, overrides=overrides)[0]
    assert [] == list(root.rglob(".tmp-*"))
    assert before == finished_in(root)


# As users have it; and where only what is synced is safe: names may come before data.
MOUNTS = ("defaults", "data=writeback,noauto_da_alloc,nodelalloc", "noauto_da_alloc")
NUM_CUTS = int(os.environ.get("POWER_CUTS", "2"))


@pytest.fixture(scope="module")
def disk(tmp_path_factory):
    if os.geteuid() != 0:
        pytest.skip("mounting a disk needs root")
    try:
        with damaging.mounted(tmp_path_factory.mktemp("power")) as made:
            yield made
    except OSError as error:
        pytest.skip(f"no ext4 can be made and mounted here: {error}")


EVIDENCE = re.compile(
    r"(?:spec|env|result|status)\.json|(?:rank_\d+|blocks)\.jsonl|samples_\d+\.png"
)


def evidence_of(root, ids):
    store = Store(root)
    return {
        name: {
            path.name: path.read_bytes()
            for path in store.trial_dir(name).iterdir()
            if EVIDENCE.fullmatch(path.name)
        }
        for name in ids
    }


def found_after_a_cut(root, kept, observed, sweep, run):
    """What is wrong with the study that is on the disk, and when it is continued."""
    problems = []
    if kept != evidence_of(root, kept):
        problems.append(f"finished trials changed: {sorted(kept)}")
    code, said = run(*sweep)
    if code != ExitCode.OK:
        problems.append(f"the same command: {code} {said}")
    if kept != evidence_of(root, kept):
        problems.append("finished trials were measured again")
    if not observed <= observed_in(root):
        problems.append("what ended before the cut is gone")
    for subcommand in (("status",), ("report", "--format=text"), ("verify",)):
        code, said = run(*subcommand, str(root))
        if code != ExitCode.OK:
            problems.append(f"{subcommand[0]}: {code} {said}")
    return problems


@pytest.mark.parametrize("order", ORDERS)
def test_a_cut_of_the_power_damages_no_finished_trial(
    order, disk, quiet, overrides, forked_trials, capsys, monkeypatch
):
    runs = disk.folder / "runs"
    root = runs / "s"
    sweep = (*SWEEP, *ORDERS[order], f"--runs-dir={runs}")
    writes = FailingWrites(runs)
    writes.install(monkeypatch, is_synced=True)
    before = {}
    observed = set()
    write_status = Store.write_status

    def written(store, *what):
        write_status(store, *what)
        # From now on, and not while the name of a status may still be unsynced.
        before.update(evidence_of(root, finished_in(root)))
        observed.update(observed_in(store.trial_dir(what[0])))

    monkeypatch.setattr(Store, "write_status", written)

    def run(*words):
        code = main(words, run_overrides=overrides)
        said = capsys.readouterr()
        return code, (said.out + said.err)[-500:]

    disk.insert(MOUNTS[0])
    assert ExitCode.OK == run(*sweep)[0]
    num_calls, num_trials = writes.count, len(Store(root).read_plan().trials)
    chance = covering.chance(f"power {order}")
    wrong, num_kept = [], 0
    for number in range(NUM_CUTS // len(ORDERS)):
        options = MOUNTS[number % len(MOUNTS)]
        disk.insert(options)
        before.clear()
        observed.clear()
        writes.before, writes.count = disk.cut, 0
        # Every other cut comes late, when there are trials that are finished.
        writes.place = chance.randrange(
            num_calls * (1 - number % 2) * 2 // 3, num_calls
        )
        code, said = run(*sweep)
        where, writes.place = (writes.place, writes.failed), -1
        disk.restore(options)
        kept, ended = dict(before), set(observed)
        # Ok where only the locks were left to remove.
        is_said = code in {ExitCode.OK, ExitCode.USAGE}
        problems = [] if is_said else [f"at the cut: {code} {said}"]
        for left in root.glob(".lock-heartbeat*"):
            os.utime(left, (1.0, 1.0))
        with damaging.elsewhere("after the cut"):
            problems += found_after_a_cut(root, kept, ended, sweep, run)
        num_kept += len(kept)
        if problems:
            wrong.append((where, options, problems))

    assert [] == wrong
    assert num_kept > 0, "no cut came after a finished trial"
    assert num_trials > 1


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
def small_disk(tmp_path):
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
    filler = folder / "filler"
    usage = os.statvfs(folder)
    size = usage.f_bavail * usage.f_frsize - free_kib * 1024
    filler.write_bytes(bytes(size))
    return filler


@pytest.fixture
def sweep(small_disk, harness, small, overrides, monkeypatch):
    monkeypatch.setenv("FAKE_COUNT_FILE", str(small_disk.parent / "count"))
    args = ("sweep", *small, f"--runs-dir={small_disk / 'runs'}", "--study=s")
    args = overridden(args, "--repeats=1")
    return lambda *more: harness(*overridden(args, *more), overrides=overrides)


@pytest.mark.parametrize("free_kib", [0, 60])  # at the plan, and within the trials
def test_a_full_disk_is_one_line_and_loses_no_trial(small_disk, sweep, free_kib):
    root = small_disk / "runs" / "s"
    filler = fill(small_disk, free_kib)
    code, _, err = sweep("--no-match")
    finished = ended_ids(Store(root)) if (root / "plan.json").exists() else set()
    # A trial whose own process had no space has failed.
    failed = {
        trial.trial_id
        for trial in (Store(root).trials() if finished else ())
        if trial.status and trial.status.status is not TrialStatus.OK
    }
    filler.unlink()
    mount(small_disk, "remount", f"size={LARGE_KIB}k")
    again, _, err_again = sweep("--no-match", "--retry=failed")
    started = collections.Counter((small_disk.parent / "count").read_text().split())

    assert ExitCode.USAGE == code, err
    assert re.search(r"^error: cannot .*No space left on device", err, re.MULTILINE)
    assert "Traceback" not in err
    assert ExitCode.OK == again, err_again
    assert 4 == len(ended_ids(Store(root)))
    assert all(1 == started[trial_id] for trial_id in finished - failed)


def test_a_study_that_cannot_be_written_can_be_read(
    small_disk, harness, template, overrides, tmp_path, show_page
):
    show_page("a page\n")
    mount(small_disk, "remount", f"size={LARGE_KIB}k")
    runs = f"--runs-dir={small_disk / 'runs'}"
    shutil.copytree(template / "runs", small_disk / "runs")
    mount(small_disk, "remount", "ro")
    status, _, _ = harness("status", "s", runs)
    verified, _, _ = harness("verify", "s", runs)
    page, _, _ = harness("report", "s", runs, "-o", str(tmp_path / "page.html"))
    code, out, err = harness("sweep", "--study", "s", runs, overrides=overrides)

    assert [ExitCode.OK] * 3 == [status, verified, page]
    assert (ExitCode.USAGE, "") == (code, out)
    assert re.fullmatch(r"error: cannot .*: Read-only file system; .*\n", err)
