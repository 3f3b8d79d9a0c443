"""Chooses the controls of a relay: cases that leave something out, to explain others.

They show where the time of one case goes (``results/figures/lost_time.py``): that of
the first backend with more than one replica, in weak scaling, at the most replicas that
are not oversubscribed. One replica with the same batch must be a case as well, which
weak scaling has.

- ``nosync``: the case without communication.
- ``solo``: as many programs as replicas that never communicate. Their backend is
  ``single``, so they have the code digest of that.
- ``synthetic``: the case, and one replica, with one batch for ever.
- ``input_only``: the input pipelines of the case, without its step.
- ``no_update``: the case, and one replica, without the update of the variables.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness import catalog
from harness.errors import PlanError
from harness.planning.estimate import PlannedCase
from results.records.models import Control, Order, ScalingMode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.catalog import BackendInfo
    from harness.planning.request import SweepRequest

SOLO_BACKEND = "single"
_NOT_OF_PEERS = "programs of other frameworks offer nosync and synthetic"


def choose(
    request: SweepRequest, cases: Sequence[PlannedCase], num_cores: int, order: Order
) -> tuple[list[PlannedCase], list[str]]:
    """Returns the controls that were requested, and a note on each that is missing."""
    if not request.controls:
        return [], []
    names = ",".join(control.value for control in request.controls)
    if order is not Order.RELAY:
        raise PlanError(
            f"--controls {names} with order {order.value}: a control explains a case"
            " that it takes turns with; use --order relay, or --controls none"
        )
    if ScalingMode.WEAK not in request.modes:
        raise PlanError(
            f"--controls {names} without weak scaling: controls are compared with one"
            " replica at the same batch per replica, which strong scaling does not"
            " have; add weak to --mode, or use --controls none"
        )
    case, alone = _case_and_alone(cases, num_cores, names)
    weak = (ScalingMode.WEAK,)
    size = case.num_replicas, case.per_replica_batch_size
    added, notes = [], []
    backend = _backend(request, case.backend)
    missing = {
        Control.NOSYNC: backend.no_control_because,
        Control.NO_UPDATE: _why_no_update(request, backend),
        Control.INPUT_ONLY: _why_not_of_peer(backend),
    }
    for control in request.controls:
        if reason := missing.get(control):
            notes.append(
                f"no control {control.value} of backend {backend.name}: {reason}"
            )
        elif control is Control.NOSYNC:
            added.append(PlannedCase(case.backend, *size, weak, control))
        elif control is Control.SOLO:
            added.append(PlannedCase(SOLO_BACKEND, *size, weak, control))
        elif control is Control.INPUT_ONLY:
            added.append(PlannedCase(case.backend, *size, weak, control))
        else:
            added += [
                PlannedCase(c.backend, c.num_replicas, size[1], weak, control)
                for c in (case, alone)
            ]
    if added:
        kinds = ", ".join(dict.fromkeys(item.control.value for item in added))
        notes.append(
            f"controls {kinds}: of {case.backend} x{case.num_replicas}, weak scaling"
        )
    return added, notes


def _backend(request: SweepRequest, name: str) -> BackendInfo:
    if request.program is not None:
        return request.program.backend
    return catalog.backend(name)


def _why_no_update(request: SweepRequest, backend: BackendInfo) -> str:
    """Why updates cannot be left out; empty if they can."""
    reason = _why_not_of_peer(backend) or backend.lacks.get("synchronous_training", "")
    if reason or request.program is not None:
        return reason
    return catalog.workload(request.workload).no_update_because


def _why_not_of_peer(backend: BackendInfo) -> str:
    """Why a program of another framework lacks a control; empty of other backends."""
    return "" if catalog.peer(backend.name) is None else _NOT_OF_PEERS


def with_order(request: SweepRequest, order: Order) -> tuple[SweepRequest, list[str]]:
    """Returns a request in an order that was not requested, and what it leaves out."""
    if order is Order.RELAY or not request.controls:
        return request.model_copy(update={"order": order}), []
    names = ", ".join(control.value for control in request.controls)
    note = f"no controls ({names}): they need a relay"
    return request.model_copy(update={"order": order, "controls": ()}), [note]


def _case_and_alone(
    cases: Sequence[PlannedCase], num_cores: int, names: str
) -> tuple[PlannedCase, PlannedCase]:
    """Returns the case to explain, and its backend's single replica."""
    weak = [case for case in cases if ScalingMode.WEAK in case.modes]
    several = [case for case in weak if 1 < case.num_replicas <= num_cores]
    for first in several:
        own = [case for case in several if case.backend == first.backend]
        for alone in weak:
            if alone.backend == first.backend and alone.num_replicas == 1:
                return max(own, key=lambda case: case.num_replicas), alone
    raise PlanError(
        f"--controls {names} explain a case of 2 replicas or more, on at most"
        f" {num_cores} cores, against 1 replica of the same backend, and this sweep"
        " does not have both; add them to --replicas, or use --controls none"
    )
