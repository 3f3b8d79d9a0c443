"""Runs the cases of a target in a cluster of processes, and joins what they saw.

One cluster runs all cases, one after the other. It ends with the first that fails,
after which its processes may disagree; those behind it say which one that was.
"""

from __future__ import annotations

import functools
from pathlib import Path

import case_cluster
from conformance_cases import (  # noqa: F401 - imported for their cases
    cases,
    collectives,
    inputs,
    misuse,
    state,
    training,
)
from conformance_cases.targets import TARGETS

from replicator import catalog
from replicator.core import devices

FOLDER = Path(__file__).resolve().parents[1]
START_TIMEOUT_SEC = 120.0
TIMEOUT_PER_CASE_SEC = 20.0
CASE_TIMEOUT_SEC = 90.0


def program_members(target):
    """Kind and index of the processes that run the user's program; others serve."""
    return {
        catalog.SERVED_WORKERS: [("worker", 0)],
        catalog.PARAMETER_SERVERS: [("chief", 0)],
    }.get(
        catalog.BACKENDS[target.backend].processes,
        [("worker", index) for index in range(target.num_workers)],
    )


def run(target, case_names, folder):
    members = program_members(target)
    has_chief = ("chief", 0) in members
    with case_cluster.started(
        "conformance_cases.clusters",
        folder,
        path=FOLDER,
        cases=case_names,
        options={"target_name": target.name},
        runners=members,
        num_cpu_devices=target.num_devices_per_worker,
        case_timeout_sec=CASE_TIMEOUT_SEC,
        num_workers=target.num_workers,
        num_ps=int(has_chief),
        has_chief=has_chief,
    ) as running:
        running.ends_well(START_TIMEOUT_SEC + TIMEOUT_PER_CASE_SEC * len(case_names))
        output, results = running.last_output(), running.results
    found = {}
    last = "its start"
    for name in case_names:
        if results.has_all(name):
            found[name] = cases.join([_outcome(r) for r in results.read_all(name)])
            last = name
        else:
            message = f"no result of {name}: the cluster ended after {last}"
            found[name] = cases.Outcome(
                error_kinds=("ClusterEnded",), message=message, trace=output
            )
    return found


def _outcome(result):
    """What came of a case in one process, if it could be written."""
    if not result.error:
        return result.value
    return cases.Outcome(
        error_kinds=("Unwritten",), message=result.error, trace=result.trace
    )


# What a process of a cluster looks up, on replicators that are made once.


def set_up(_folder, *, target_name):
    """What makes replicators; the first joins the cluster, before any variable."""
    target = TARGETS[target_name]
    devices.split_cpu(target.num_devices_per_worker)
    make = functools.cache(target.make_for)
    make(1)
    cases.CASE_TIMEOUT_SEC = CASE_TIMEOUT_SEC
    return (make,)


def _case(case):
    return lambda make: cases.evaluate(case, lambda c: make(c.num_logical_devices))


CASES = {name: _case(case) for name, case in cases.CASES.items()}


def can_continue(outcomes, _make):
    """Whether no case has parted the processes; None is an outcome that was lost."""
    return all(outcome is not None and not outcome.error_kinds for outcome in outcomes)
