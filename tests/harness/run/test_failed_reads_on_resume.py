"""The n-th call that reads fails while an interrupted sweep goes on: nothing is lost.

One trial was killed between its digests and its status, so it is measured again, and in
a relay its generation. ``READ_FAULTS`` sets how many are drawn; ``make faults`` draws
400. Verbs that only read have ``tests/harness/hostile/test_failed_calls.py``.
"""

import os
import shutil

import drawn
import pytest
from ended import finished_in, observed_in
from failing_reads import ERRNOS, FailingReads
from loads import QUIET

from harness.cli import exit_codes, running
from harness.cli import main as cli
from harness.machine import disturbance
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
NUM_FAULTS = int(os.environ.get("READ_FAULTS", "4"))


@pytest.mark.usefixtures("forked_trials")
@pytest.mark.parametrize("order", ORDERS)
def test_a_failed_read_loses_nothing_of_what_was_measured(
    order, tmp_path, overrides, capsys, monkeypatch
):
    """One line that names the file, or the whole study; then the same command ends."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(running, "_conclude", lambda _store, *, is_json: None)
    monkeypatch.setattr(disturbance, "between", lambda *_: QUIET)
    root, interrupted = tmp_path / "runs" / "s", tmp_path / "interrupted"
    arguments = (*SWEEP, *ORDERS[order])
    faults = FailingReads(root)
    faults.install(monkeypatch)

    def run(place=-1):
        faults.place, faults.count, faults.failed = place, 0, ""
        code = cli.main(arguments, run_overrides=overrides)
        faults.place = -1
        return code, capsys.readouterr().err

    code, err = run()
    assert exit_codes.OK == code, err
    last = max(Store(root).read_plan().trials, key=lambda of: of.spec.repetition_index)
    (Store(root).trial_dir(last.trial_id) / "status.json").unlink()
    shutil.copytree(root, interrupted)
    assert exit_codes.OK == run()[0]
    num_calls = faults.count
    assert num_calls > 50, "it read nothing"
    chance = drawn.chance(f"reads of {order}")
    wrong = []
    for number in range(NUM_FAULTS // len(ORDERS)):
        shutil.rmtree(root)
        shutil.copytree(interrupted, root)
        before, observed = finished_in(root), observed_in(root)
        faults.number = ERRNOS[number % len(ERRNOS)]
        code, err = run(chance.randrange(num_calls))
        what, kept = faults.failed, observed_in(root)
        is_line = (err.splitlines() or [""])[-1].startswith("error: ")
        again, said = run()
        after = finished_in(root)
        statuses = [of.status and of.status.status.value for of in Store(root).trials()]
        problems = {
            "an end of another kind": code != exit_codes.OK
            and not (code == exit_codes.USAGE and is_line),
            "a failed read is taken for a failed write": "write the output" in err,
            "observations are gone": not observed <= kept & observed_in(root),
            "a finished trial changed": not before.items() <= after.items(),
            "the same command does not finish": again != exit_codes.OK,
            "a trial is missing": set(statuses) != {"ok"},
        }
        found = [text for text, is_wrong in problems.items() if is_wrong]
        if found:
            wrong.append((found, what, faults.number, code, err[-300:], said[-200:]))

    assert [] == wrong
