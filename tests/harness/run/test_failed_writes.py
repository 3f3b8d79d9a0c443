"""The n-th call that writes to a study fails: the same figures, or one line and a code.

For sweeps in sequence and in a relay, each kind of call and each errno. Nothing that
was finished is lost or measured again, no half file is left, and the same command
finishes the study. ``WRITE_FAULTS`` sets how many are drawn; ``make faults`` draws
1,000.
"""

import errno
import os
import shutil

import drawn
import pytest
from ended import finished_in, observed_in
from failing_writes import FailingWrites

from harness.cli import exit_codes, running
from harness.cli import main as cli
from harness.command import first_losses
from harness.launch.gang_plan import GangPlan
from harness.machine.disturbance import Disturbance
from harness.run import turn_file
from results.errors import WriteStoreError
from results.records.models import TrialStatus
from results.store.atomic import TEMPORARY_PREFIX
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
ERRNOS = (errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EROFS)
NUM_FAULTS = int(os.environ.get("WRITE_FAULTS", "6"))


@pytest.fixture
def faults(tmp_path, monkeypatch):
    """Returns what lets calls fail that write to the study."""
    found = FailingWrites(tmp_path / "runs")
    found.install(monkeypatch)
    return found


@pytest.mark.parametrize("order", ORDERS)
def test_a_failed_write_loses_nothing(
    order, tmp_path, faults, overrides, forked_trials, capsys, monkeypatch
):
    """One line with what failed, or all figures; then the same command finishes."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(running, "_conclude", lambda _store, *, is_json: None)
    root = tmp_path / "runs" / "s"
    arguments = (*SWEEP, *ORDERS[order])

    def run(place=-1):
        faults.place, faults.count, faults.failed = place, 0, ""
        code = cli.main(arguments, run_overrides=overrides)
        faults.place = -1
        return code, capsys.readouterr().err

    assert exit_codes.OK == run()[0]
    num_calls, num_trials = faults.count, len(Store(root).read_plan().trials)
    assert num_calls > 20, "it wrote nothing"
    random_places = drawn.chance(f"writes {order}")
    wrong = []
    for number in range(NUM_FAULTS // len(ORDERS)):
        shutil.rmtree(root, ignore_errors=True)
        faults.number = ERRNOS[number % len(ERRNOS)]
        before = {}
        observed = set()
        is_lost, ends = False, []
        for _ in range(1 + number % 2):  # a second one hits what the first has left
            code, err = run(random_places.randrange(num_calls))
            ends.append((faults.failed, code, err))
            after = finished_in(root)
            is_lost |= not observed <= observed_in(root)
            is_lost |= not before.items() <= after.items()
            before, observed = after, observed_in(root)
        again, said = run()
        after = finished_in(root)
        statuses = [of.status and of.status.status for of in Store(root).trials()]
        problems = {
            "an end of another kind": not all(is_said(*end[1:]) for end in ends),
            "the same command does not finish": again != exit_codes.OK,
            "a trial is missing": statuses != [TrialStatus.OK] * num_trials,
            "a finished trial changed": not before.items() <= after.items(),
            "observations are gone": is_lost or not observed <= observed_in(root),
            "half a file is left": any(root.rglob(f"{TEMPORARY_PREFIX}*")),
        }
        found = [text for text, is_wrong in problems.items() if is_wrong]
        if found:
            wrong.append((found, ends, said[-300:]))

    assert [] == wrong


def is_said(code, err):
    """Whether a sweep ended well, or with a line that says why it did not."""
    is_line = (err.splitlines() or [""])[-1].startswith("error: ")
    is_end = code == exit_codes.OK or (code == exit_codes.USAGE and is_line)
    # What failed is a file of the study, and no standard output.
    return is_end and "Traceback" not in err and "write the output" not in err


def test_what_a_killed_writer_left_is_removed(
    tmp_path, harness, overrides, forked_trials
):
    """Also within folders of trials, as soon as the study is locked."""
    arguments = (*SWEEP, *ORDERS["sequential"])
    assert exit_codes.OK == harness(*arguments, overrides=overrides)[0]
    root = tmp_path / "runs" / "s"
    folders = [root, next((root / "trials").iterdir())]
    for folder in folders:
        (folder / f"{TEMPORARY_PREFIX}x-env.json").write_text("{")
    before = finished_in(root)

    assert exit_codes.OK == harness(*arguments, overrides=overrides)[0]
    assert [] == list(root.rglob(f"{TEMPORARY_PREFIX}*"))
    assert before == finished_in(root)


def _write_losses(trial_dir, spec):
    first_losses.write(trial_dir, spec, [1.0, 2.0], "in_graph x1", "float32")


def _write_gang(trial_dir, _spec):
    plan = GangPlan(
        members=(("worker", 0),),
        cpusets=((0,),),
        num_ranks=1,
        members_per_host=1,
        variables={},
    )
    plan.write(trial_dir)


@pytest.mark.parametrize("write", [_write_losses, _write_gang])
def test_what_a_trial_is_told_names_its_file_where_it_cannot_be_written(
    write, tmp_path, make_spec, monkeypatch
):
    """The error of a write has no path, and would be taken for one of stdout."""
    faults = FailingWrites(tmp_path, number=errno.ENOSPC)
    faults.install(monkeypatch)
    write(tmp_path, make_spec())
    num_calls = faults.count
    assert num_calls > 2
    for place in range(num_calls):
        faults.place, faults.count = place, 0
        with pytest.raises(OSError, match="No space left") as found:
            write(tmp_path, make_spec())
        assert str(tmp_path) in str(found.value.filename)


def test_a_turn_that_cannot_be_written_names_its_file(tmp_path):
    (tmp_path / turn_file.TURNS_NAME).symlink_to("/dev/full")
    load = Disturbance(
        foreign_cpu_fraction=0.0,
        stolen_cpu_fraction=0.0,
        num_throttled=0,
        foreign_resolution=0.0,
        stolen_resolution=0.0,
        run_delay_sec=0.0,
        throttled_sec=0.0,
    )

    with pytest.raises(
        WriteStoreError, match=r"cannot write '.*/turns.jsonl': No space left .*; free"
    ):
        turn_file.append(tmp_path, 0, 0, load)
