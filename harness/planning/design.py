"""Chooses the design of the measurement: order, repetitions, twin, primary contrast.

Cases are interleaved on CPUs, with a twin of one case whose ratio to it must include 1;
GPUs are exclusive, so there trials run in sequence. The primary contrast is named
first: of two backends or more, the first over the second; of one, its most replicas
that are not oversubscribed over its baseline.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from harness import catalog
from harness.errors import PlanError
from harness.planning import defaults
from harness.planning.estimate import PlannedCase
from results.records.models import (
    Allocator,
    Contrast,
    Control,
    Measuring,
    Order,
    ScalingMode,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.catalog import BackendInfo
    from harness.planning.request import SweepRequest
    from harness.sources.code_digest import SourceTree
    from results.records.models import PlannedTrial


FEWEST_TO_STOP = 5
"""Generations before a relay may end because its target is reached."""


_SHORT_SEC = 60.0
"""A generation of a gate that is given little time."""


def choose_order(request: SweepRequest) -> Order:
    """Returns the requested order, or the default one."""
    default = Order.RELAY if request.device == "cpu" else Order.SEQUENTIAL
    order = request.order or default
    if order is Order.RELAY:
        if request.device != "cpu":
            raise PlanError(
                f"--order interleaved with --device {request.device}: a device belongs "
                "to one trial at a time; use --order sequential"
            )
        return order
    for name, value in _of_relay(request):
        if value is not None:
            raise PlanError(
                f"{name} {value:g} has no effect with order sequential, whose trials"
                " have a fixed number of steps; use --repeats and"
                " --steps, or --order interleaved"
            )
    return order


def needs_relay(request: SweepRequest) -> bool:
    """Whether it has settings that trials in sequence do not have."""
    is_any_set = any(value is not None for _, value in _of_relay(request))
    return is_any_set or bool(request.controls)


def _of_relay(request: SweepRequest) -> tuple[tuple[str, float | None], ...]:
    return (
        ("--time-budget", request.minutes),
        ("--rounds", request.max_rounds),
        ("--target", request.target),
    )


def choose_repeats(request: SweepRequest, order: Order) -> int:
    """Returns the repetitions of each case."""
    looks = request.gate.looks if request.gate is not None else ()
    in_relay = defaults.GENERATIONS if request.target is None else FEWEST_TO_STOP
    default = {
        Order.SEQUENTIAL: defaults.REPEATS,
        Order.RELAY: looks[0] if looks else in_relay,
    }[order]
    repeats = default if request.repeats is None else request.repeats
    if request.target is not None and repeats < FEWEST_TO_STOP:
        raise PlanError(
            f"--repeats {repeats} with --target {request.target:.2%}: an interleaved "
            f"measurement ends on its width from {FEWEST_TO_STOP} runs on; use at "
            "least that many, or leave --target out"
        )
    return repeats


def choose_allocator(request: SweepRequest) -> Allocator:
    """Returns the requested allocator; by default the one that keeps memory.

    A peer is shown at its best: ``tf_mirrored`` gains up to a half when glibc keeps
    what was freed (``docs/benchmarks``).
    """
    return request.allocator or Allocator.KEEP


def relay_fields(request: SweepRequest) -> dict[str, Any]:
    """Returns the fields of a relay's specs; quality runs measure quality."""
    return {
        "order": Order.RELAY,
        "num_measured_steps": None,
        "is_evaluated": bool(request.is_evaluated),
    }


def with_twin(
    cases: Sequence[PlannedCase], num_cores: int, order: Order
) -> list[PlannedCase]:
    """Returns the cases of a relay with the twin of one of them."""
    if order is not Order.RELAY or not cases:
        return list(cases)
    backend = cases[0].backend
    own = [case for case in cases if case.backend == backend]
    fitting = [case for case in own if case.num_replicas <= num_cores] or own[:1]
    twin = max(fitting, key=lambda case: case.num_replicas)
    return [*cases, dataclasses.replace(twin, control=Control.TWIN)]


def with_revision(
    cases: Sequence[PlannedCase], baseline: SourceTree | None
) -> list[PlannedCase]:
    """Returns cases, then the same with the code of another revision, if any."""
    if baseline is None:
        return list(cases)
    revision = baseline.revision
    return [*cases, *(dataclasses.replace(case, revision=revision) for case in cases)]


def make_measuring(
    request: SweepRequest,
    order: Order,
    trials: Sequence[PlannedTrial],
    num_cores: int,
) -> Measuring:
    """Returns how the trials are measured."""
    primary = _primary(trials, num_cores)
    if order is not Order.RELAY:
        return Measuring(
            order=order,
            primary=primary,
            efficiency_target=request.efficiency_target,
            gate=request.gate,
        )
    if request.target is not None and primary is None:
        raise PlanError(
            f"--target {request.target:.2%} needs a primary contrast, but the sweep has"
            " one case only; add a backend or a replica count"
        )
    minutes = request.minutes
    usual_sec = defaults.MINUTES * 60 / defaults.GENERATIONS
    looks = request.gate.looks if request.gate is not None else ()
    if looks:
        minutes = minutes or defaults.MINUTES_OF_GATE
        # As many as a pass needs, unless they would be too short to start.
        generation_sec = min(minutes * 60 / looks[-2:][0], usual_sec)
        generation_sec = max(generation_sec, min(minutes * 60 / looks[0], _SHORT_SEC))
    elif request.target is None:
        minutes = minutes or defaults.MINUTES
        generation_sec = minutes * 60 / choose_repeats(request, order)
    else:
        minutes = minutes or defaults.MINUTES_TO_TARGET
        generation_sec = min(minutes * 60 / FEWEST_TO_STOP, usual_sec)
    return Measuring(
        order=order,
        minutes=minutes,
        generation_sec=generation_sec,
        max_rounds=request.max_rounds or defaults.MAX_ROUNDS,
        target=request.target,
        primary=primary,
        efficiency_target=request.efficiency_target,
        gate=request.gate,
    )


def _primary(trials: Sequence[PlannedTrial], num_cores: int) -> Contrast | None:
    both = [
        trial
        for trial in trials
        if trial.spec.repetition_index == 0 and trial.spec.control is Control.NONE
    ]
    if not both:
        return None
    first_repetition = [trial for trial in both if not trial.spec.revision]
    if len(first_repetition) < len(both):
        return _primary_of_revisions(both, num_cores)
    mode = first_repetition[0].modes[0]
    usable = [
        trial
        for trial in first_repetition
        if mode in trial.modes
        and (trial.spec.device == "gpu" or trial.spec.num_replicas <= num_cores)
    ]
    by_key = {(t.spec.backend, t.spec.num_replicas): t for t in usable}
    backends = list(dict.fromkeys(trial.spec.backend for trial in first_repetition))
    sizes = sorted({trial.spec.num_replicas for trial in usable}, reverse=True)
    # At the baseline, with more replicas elsewhere, the question is how those scale.
    for size in sizes[:-1] or sizes:
        pair = [by_key.get((backend, size)) for backend in backends[:2]]
        if len(pair) == 2 and None not in pair:  # noqa: PLR2004 - a pair
            text = f"{backends[0]} / {backends[1]}, {mode.value} scaling, x{size}"
            return _contrast(pair[0], pair[1], text)
    for backend in backends:
        own = [by_key[backend, n] for n in sizes if (backend, n) in by_key]
        if len(own) > 1:
            most, fewest = own[0].spec.num_replicas, own[-1].spec.num_replicas
            text = f"{backend}, {mode.value} scaling, x{most} / x{fewest}"
            return _contrast(own[0], own[-1], text)
    return None


def _primary_of_revisions(
    trials: Sequence[PlannedTrial], num_cores: int
) -> Contrast | None:
    """Returns the most replicas of the first backend, over the other revision."""
    own = [trial for trial in trials if not trial.spec.revision]
    own = [trial for trial in own if trial.spec.backend == own[0].spec.backend]
    fitting = [t for t in own if t.spec.num_replicas <= num_cores] or own[:1]
    first = max(fitting, key=lambda trial: trial.spec.num_replicas)
    (second,) = (
        trial
        for trial in trials
        if trial.spec.revision
        and (trial.spec.backend, trial.spec.global_batch_size, trial.modes)
        == (first.spec.backend, first.spec.global_batch_size, first.modes)
        and trial.spec.num_replicas == first.spec.num_replicas
    )
    spec = first.spec
    text = f"{spec.backend} x{spec.num_replicas}: this tree / {second.spec.revision}"
    return _contrast(first, second, text)


def _contrast(
    first: PlannedTrial | None, second: PlannedTrial | None, text: str
) -> Contrast:
    assert first is not None
    assert second is not None
    return Contrast(
        first_case_id=first.case_id, second_case_id=second.case_id, text=text
    )


def notes(measuring: Measuring, repeats: int) -> list[str]:
    """Returns what was chosen for the user, one line each."""
    found = []
    if measuring.order is Order.RELAY:
        looks = () if measuring.gate is None else measuring.gate.looks
        number = f"{looks[0]} to {looks[-1]}" if looks else f"{repeats}"
        found.append(
            f"interleaved measurement: {number} runs of at most {measuring.max_rounds} "
            "rounds; the A/A control shows what it resolves"
        )
    if measuring.primary is not None:
        found.append(f"primary contrast: {measuring.primary.text}")
    return found


# They show where the time of one case goes (``results/figures/lost_time.py``): that of
# the first backend with more than one replica, in weak scaling, at the most replicas
# that are not oversubscribed. One replica with the same batch must be a case as well,
# which weak scaling has.
#
# - ``nosync``: the case without communication.
# - ``solo``: as many programs as replicas that never communicate. Their backend is
#   ``single``, so they have the code digest of that.
# - ``synthetic``: the case, and one replica, with one batch for ever.
# - ``input_only``: the input pipelines of the case, without its step.
# - ``no_update``: the case, and one replica, without the update of the variables.

SOLO_BACKEND = "single"
_NOT_OF_PEERS = "programs of other frameworks offer nosync and synthetic"


def choose_controls(
    request: SweepRequest, cases: Sequence[PlannedCase], num_cores: int, order: Order
) -> tuple[list[PlannedCase], list[str]]:
    """Returns the controls that were requested, and a note on each that is missing."""
    if not request.controls:
        return [], []
    names = ",".join(control.label for control in request.controls)
    if order is not Order.RELAY:
        raise PlanError(
            f"--controls {names} with order {order.label}: a control explains a case"
            " that it takes turns with; use --order interleaved, or --controls none"
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
    backend = _backend_of(request, case.backend)
    missing = {
        Control.NOSYNC: backend.no_control_because,
        Control.NO_UPDATE: _why_no_update(request, backend),
        Control.INPUT_ONLY: _why_not_of_peer(backend),
    }
    for control in request.controls:
        if reason := missing.get(control):
            notes.append(
                f"no control {control.label} of backend {backend.name}: {reason}"
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
        kinds = ", ".join(dict.fromkeys(item.control.label for item in added))
        notes.append(
            f"controls {kinds}: of {case.backend} x{case.num_replicas}, weak scaling"
        )
    return added, notes


def _backend_of(request: SweepRequest, name: str) -> BackendInfo:
    if request.program is not None:
        return request.program.backends[0]
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
    names = ", ".join(control.label for control in request.controls)
    note = f"no controls ({names}): they need an interleaved measurement"
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
