"""Which workers are lost, and which began it, after a collective failed."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

import tensorflow as tf

from replicator._tf import workers as _tf_workers
from replicator.cluster import failures
from replicator.cluster.worker_state import key_of
from replicator.errors import ReplicatorError, WorkerLostError

if TYPE_CHECKING:
    from replicator.cluster.worker_state import WorkerState

# How long those who lost a worker wait for the reports of the others.
_GRACE_SEC = 5.0


def diagnose(state: WorkerState, message: str, timeout_sec: float) -> ReplicatorError:
    """Finds out which workers are lost, after a collective failed."""
    config, others = state.config, state.others
    reports: dict[int, str] = {}
    has_leader = state.report()
    deadline = time.monotonic() + _GRACE_SEC
    faults: dict[int, str] = {}
    for worker in others:
        faults[worker] = state.fault_of(worker)
    for worker in others if has_leader else ():
        wait_sec = deadline - time.monotonic() if not faults[worker] else 0.05
        with contextlib.suppress(tf.errors.OpError):
            reports[worker] = _tf_workers.get_value(
                key_of("fault", worker), max(wait_sec, 0.05)
            )
    lost = [
        f"{config.name_of(worker)} {faults[worker]}"
        for worker in others
        # One that reported what it was doing ended because of what this is about.
        if faults[worker] and worker not in reports
    ]
    silent = [w for w in others if not faults[w] and w not in reports]
    if not lost and has_leader:
        lost = [f"{config.name_of(w)} is alive, but did not come" for w in silent]
    elsewhere = [
        f"{config.name_of(w)} was at {doing}"
        for w, doing in reports.items()
        if doing != state.doing
    ]
    reason = "; ".join([*lost, *elsewhere]) or failures.root_cause(message)
    return WorkerLostError(
        f"{state.doing} cannot go on on {config.name_of(config.worker_id)}: "
        f"{reason}; a synchronous step needs every worker: restart the job, from "
        "its last checkpoint (a worker that is only slow needs a larger "
        f"timeout_sec, which is {timeout_sec:g} s)"
    )
