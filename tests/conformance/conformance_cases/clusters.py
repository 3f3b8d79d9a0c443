"""Runs the cases of a target in a cluster of processes, and joins what they saw.

One cluster runs all cases, one after the other. A case that leaves its processes
unable to continue together (they disagree about it, one was lost, one hung) ends that
cluster; the cases behind it run in a fresh one, so that each is judged by itself.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import case_cluster
from case_results import ResultFolder
from conformance_cases import in_cluster, runner

from replicator import catalog

if TYPE_CHECKING:
    from collections.abc import Sequence

    from case_results import CaseResult
    from conformance_cases.runner import Outcome
    from conformance_cases.targets import Target

FOLDER = Path(__file__).resolve().parents[1]
START_TIMEOUT_SEC = 120.0
TIMEOUT_PER_CASE_SEC = 20.0
# Fresh clusters cost seconds each: a target that needs more is broken as a whole.
MAX_CLUSTERS = 4


def program_members(target: Target) -> list[tuple[str, int]]:
    """Kind and index of the processes that run the user's program; others serve."""
    return {
        catalog.SERVED_WORKERS: [("worker", 0)],
        catalog.PARAMETER_SERVERS: [("chief", 0)],
    }.get(
        catalog.BACKENDS[target.backend].processes,
        [("worker", index) for index in range(target.num_workers)],
    )


def run(target: Target, case_names: Sequence[str], folder: Path) -> dict[str, Outcome]:
    results = ResultFolder(folder, len(program_members(target)))
    found: dict[str, Outcome] = {}
    left = list(case_names)
    why = ""
    for attempt in range(MAX_CLUSTERS):
        if not left:
            break
        log_dir = folder / f"logs_{attempt}"
        has_failed, text = _run_one(target, left, folder, log_dir)
        done = [name for name in left if results.has_all(name)]
        for name in done:
            found[name] = runner.join([_outcome(r) for r in results.read_all(name)])
        left = [name for name in left if name not in found]
        why = f"{done[-1]} ended the cluster before" if done else why
        if left and (has_failed or not done):
            name = left.pop(0)
            why = f"{name} ended the cluster before"
            found[name] = runner.Outcome(
                error_kinds=("ClusterEnded",),
                message=f"no result of {name} on every worker",
                trace=text,
            )
    for name in left:
        found[name] = runner.Outcome(
            error_kinds=("NotReached",),
            message=f"{name} was not reached in {MAX_CLUSTERS} clusters: {why}",
        )
    return found


def _outcome(result: CaseResult) -> Outcome:
    """What came of a case in one process, if it could be written."""
    if not result.error:
        return result.value
    return runner.Outcome(
        error_kinds=("Unwritten",), message=result.error, trace=result.trace
    )


def _run_one(
    target: Target, case_names: Sequence[str], folder: Path, log_dir: Path
) -> tuple[bool, str]:
    """Runs one cluster to its end: whether it failed, and the end of its outputs."""
    members = program_members(target)
    has_chief = ("chief", 0) in members
    with case_cluster.started(
        "conformance_cases.in_cluster",
        folder,
        path=FOLDER,
        cases=case_names,
        options={"target_name": target.name},
        runners=members,
        num_cpu_devices=target.num_devices_per_worker,
        case_timeout_sec=in_cluster.CASE_TIMEOUT_SEC,
        log_dir=log_dir,
        num_workers=target.num_workers,
        num_ps=int(has_chief),
        has_chief=has_chief,
    ) as running:
        has_failed = not running.ends_well(
            START_TIMEOUT_SEC + TIMEOUT_PER_CASE_SEC * len(case_names)
        )
        return has_failed, running.last_output()
