"""Which workers are lost, and which began it, after a collective failed."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

import tensorflow as tf

from replicator._tf import workers as _tf_workers
from replicator.cluster.workers import failures
from replicator.cluster.workers.worker_state import FAILURES, key_of
from replicator.errors import ReplicatorError, WorkerLostError

if TYPE_CHECKING:
    from replicator.cluster.workers.worker_state import WorkerState

# How long workers wait for reports of the others after a worker was lost.
_GRACE_SEC = 5.0


def diagnose(state: WorkerState, message: str, timeout_sec: float) -> ReplicatorError:
    """Finds out which workers are lost, after a collective has failed."""
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
        # A worker that reported its position failed because of the lost one.
        if faults[worker] and worker not in reports
    ]
    silent = [w for w in others if not faults[w] and w not in reports]
    if not lost and has_leader:
        lost = [f"{config.name_of(w)} is alive, but timed out" for w in silent]
    elsewhere = [
        f"{config.name_of(w)} {_said(doing)}"
        for w, doing in reports.items()
        if doing != state.doing
    ]
    reason = "; ".join([*lost, *elsewhere]) or failures.root_cause(message)
    return WorkerLostError(
        f"{config.name_of(config.worker_id)} failed during {state.doing}: "
        f"{reason}; a synchronous step needs every worker: restart the job from "
        "its last checkpoint (if a worker is only slow, increase timeout_sec, "
        f"which is {timeout_sec:g} s)"
    )


def _said(report: str) -> str:
    """A worker's report: how it failed, or where it was."""
    return report if report.startswith(FAILURES) else f"was at {report}"
