"""Clusters that run cases: what one case does to its cluster harms no other."""

import textwrap

import pytest
from case_results import CaseResult
from conformance_cases import clusters, runner
from conformance_cases.targets import TARGETS

from replicator import errors

TARGET = TARGETS["multi_worker-2"]

# Leaves what the case names; the name of a case says what else happens.
MEMBER = """
import json, os, shutil, sys, time
from pathlib import Path

plan = json.loads(sys.argv[1])
folder, cases = plan["folder"], plan["cases"]
worker = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
for case in cases:
    if case.startswith("die") and worker == 1:
        sys.exit("worker 1 dies")
    if case.startswith("die"):
        time.sleep(600)
    part = Path(folder, f"{case}.{worker}.part")
    shutil.copy(Path(folder, "bad" if case.startswith("bad") else "fine"), part)
    part.rename(part.with_suffix(".json"))
    while not Path(folder, f"{case}.{1 - worker}.json").exists():
        time.sleep(0.01)
    if case.startswith("part"):
        break
"""


@pytest.fixture
def run(tmp_path):
    """Runs cases in clusters of processes without TensorFlow."""
    program = tmp_path / "member.py"
    program.write_text(textwrap.dedent(MEMBER))
    fine = CaseResult(value=runner.Outcome(value="fine"))
    (tmp_path / "fine").write_text(fine.to_json(), encoding="utf-8")
    bad = CaseResult(error="TypeError: cannot pickle it", trace="where it came from")
    (tmp_path / "bad").write_text(bad.to_json(), encoding="utf-8")
    return lambda *names: clusters.run(TARGET, names, tmp_path, program)


@pytest.mark.processes
def test_a_process_that_dies_fails_its_case_only(run):
    """Another waits for it without end; the cases behind run in a fresh cluster."""
    found = run("first", "die", "behind")

    assert {"first", "die", "behind"} == set(found)
    assert "fine" == found["first"].value == found["behind"].value
    assert ("ClusterEnded",) == found["die"].error_kinds
    assert "no result of die on every worker" in found["die"].message
    assert "worker 1 dies" in found["die"].trace


@pytest.mark.processes
def test_processes_that_part_keep_the_result_and_start_again(run):
    """The case itself is judged by what it gave."""
    found = run("part", "behind")

    assert ["fine", "fine"] == [found[name].value for name in ("part", "behind")]


@pytest.mark.processes
def test_an_outcome_that_cannot_be_written_fails_its_case(run):
    """With the reason, and not the cases behind it."""
    found = run("bad", "behind")

    assert ("Unwritten",) == found["bad"].error_kinds
    assert "TypeError: cannot pickle it" == found["bad"].message
    assert "fine" == found["behind"].value


@pytest.mark.processes
def test_what_is_not_reached_is_reported(run):
    """After a number of clusters the rest fails, with the reason."""
    names = [f"part {index}" for index in range(clusters.MAX_CLUSTERS)]

    found = run(*names, "behind")

    assert all(found[name].value == "fine" for name in names)
    assert ("NotReached",) == found["behind"].error_kinds
    assert f"not reached in 4 clusters: {names[-1]} ended" in found["behind"].message


class _Job:
    """What workers meet in."""

    def __init__(self, error=None):
        self.num_meetings = 0
        self._error = error

    def gather_bytes(self, payload):
        self.num_meetings += 1
        if self._error is not None:
            raise self._error
        return [payload] * 2


FINE, WRONG = runner.Outcome(), runner.Outcome(error_kinds=("ValueError",))
LOST = runner.Outcome(error_kinds=("WorkerLostError", "ClusterError"))


@pytest.mark.parametrize(
    ("outcomes", "error", "expected"),
    [
        ([FINE, FINE], None, (True, 0)),
        ([WRONG, WRONG], None, (True, 1)),
        ([WRONG, WRONG], errors.WorkerLostError("gone"), (False, 1)),
        ([WRONG, FINE], None, (False, 0)),
        ([LOST, LOST], None, (False, 0)),
    ],
)
def test_processes_continue_together_or_not_at_all(outcomes, error, expected):
    """After an error that all of them raise, they try to meet."""
    job = _Job(error)

    assert expected == (runner.can_continue(outcomes, job), job.num_meetings)
