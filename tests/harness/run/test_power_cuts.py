"""The power is cut while a study is written, on a real ext4: nothing finished is lost.

At a random call that writes, of sweeps in sequence and in a relay. What a trial is
listed with is on the disk then; the same command finishes the study, which verifies.
``POWER_CUTS`` sets how many; ``make faults`` cuts a hundred times.
"""

import os

import drawn
import ext4_disk
import pytest
from ended import finished_in, observed_in
from failing_writes import FailingWrites
from loads import QUIET

from harness.cli import exit_codes, running
from harness.cli import main as cli
from harness.machine import disturbance
from results.store import heartbeat, manifest
from results.store.study_store import Store

pytestmark = pytest.mark.processes

SWEEP = (
    "sweep", "--workload=resnet50", "--preset=smoke", "--replicas=1", "--mode=weak",
    "--repeats=2", "--no-match", "--budget=none", "--study=s",
)  # fmt: skip
ORDERS = {
    "sequential": ("--order=sequential", "--backends=in_graph"),
    "relay": ("--order=relay", "--rounds=2", "--backends=single,in_graph"),
}
# As users have it; and where only what is synced is safe: names may come before data.
MOUNTS = ("defaults", "data=writeback,noauto_da_alloc,nodelalloc", "noauto_da_alloc")
NUM_CUTS = int(os.environ.get("POWER_CUTS", "2"))


@pytest.fixture(scope="module")
def disk(tmp_path_factory):
    if os.geteuid() != 0:
        pytest.skip("mounting a disk needs root")
    try:
        with ext4_disk.mounted(tmp_path_factory.mktemp("power")) as made:
            yield made
    except OSError as error:
        pytest.skip(f"no ext4 can be made and mounted here: {error}")


def evidence_of(root, ids):
    """The digests of what figures are made of, by the id of a trial."""
    store = Store(root)
    return {name: manifest.evidence_in(store.trial_dir(name)) for name in ids}


def found_after_a_cut(root, kept, observed, sweep, run):
    """What is wrong with the study that is on the disk, and when it is continued."""
    problems = []
    if kept != evidence_of(root, kept):
        problems.append(f"finished trials changed: {sorted(kept)}")
    code, said = run(*sweep)
    if code != exit_codes.OK:
        problems.append(f"the same command: {code} {said}")
    if kept != evidence_of(root, kept):
        problems.append("finished trials were measured again")
    if not observed <= observed_in(root):
        problems.append("what ended before the cut is gone")
    for verb in (("status",), ("report", "--format=text"), ("verify",)):
        code, said = run(*verb, str(root))
        if code != exit_codes.OK:
            problems.append(f"{verb[0]}: {code} {said}")
    return problems


@pytest.mark.parametrize("order", ORDERS)
def test_a_cut_of_the_power_damages_no_finished_trial(
    order, disk, tmp_path, overrides, forked_trials, capsys, monkeypatch
):
    """Also as another kernel sees it, which the same machine has after a cut."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(running, "_conclude", lambda _store, *, is_json: None)
    monkeypatch.setattr(disturbance, "between", lambda *_: QUIET)
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
        code = cli.main(words, run_overrides=overrides)
        said = capsys.readouterr()
        return code, (said.out + said.err)[-500:]

    disk.insert(MOUNTS[0])
    assert exit_codes.OK == run(*sweep)[0]
    num_calls, num_trials = writes.count, len(Store(root).read_plan().trials)
    chance = drawn.chance(f"power {order}")
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
        is_said = code in {exit_codes.OK, exit_codes.USAGE}
        problems = [] if is_said else [f"at the cut: {code} {said}"]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(heartbeat, "kernel_id", lambda: "after the cut")
            patch.setattr(heartbeat, "DEAD_SEC", 0.0)
            problems += found_after_a_cut(root, kept, ended, sweep, run)
        num_kept += len(kept)
        if problems:
            wrong.append((where, options, problems))

    assert [] == wrong
    assert num_kept > 0, "no cut came after a finished trial"
    assert num_trials > 1
