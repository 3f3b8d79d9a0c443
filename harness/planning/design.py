"""Chooses the design of the measurement: what is run, in which order, and compared.

Cases are interleaved on CPUs, with an A/A control of one case whose ratio to it must
include 1; GPUs are exclusive, so there trials run in sequence. The primary contrast is
named first: of two backends or more, the first over the second; of one, its most
replicas that are not oversubscribed over its baseline.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import TYPE_CHECKING, Any, Final

from harness import catalog
from harness.command.program import ForeignProgram, names_in
from harness.errors import PlanError
from harness.planning import defaults
from harness.planning.estimate import PlannedCase, QualityRuns
from results.records import program as program_lib
from results.records.models import (
    Contrast,
    Control,
    EquivalenceCheck,
    Measuring,
    Order,
    ScalingMode,
)
from results.records.record_base import MAX_TRIALS
from results.study.equivalence import NUM_STEPS, is_judged

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from harness.catalog import BackendInfo, WorkloadInfo
    from harness.planning.request import SweepRequest
    from results.records.models import PlannedTrial


FEWEST_TO_STOP = 5  # Repetitions before a study may end as its target is reached.
_SHORT_SEC = 60.0  # A repetition of a gate that is given little time.


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class CheckedSweep:
    """A request that can be carried out on a machine, in whatever order."""

    request: SweepRequest  # The request.
    info: WorkloadInfo  # What is measured; of a program too.
    backends: Sequence[BackendInfo]  # By what; of a program its variants.
    num_cores: int  # Available logical CPUs of the machine.
    baseline_num_replicas: int  # The smallest replica count.
    cases: tuple[PlannedCase, ...]  # The distinct cases.
    learning: QualityRuns | None  # Its quality runs; None without any.
    common: Mapping[str, Any]  # Fields of all specs.
    notes: tuple[str, ...]  # Defaults that were chosen for the user, one line each.

    def of_both(self, cases: Sequence[PlannedCase]) -> list[PlannedCase]:
        """Returns cases, then the same with the code of another revision, if any."""
        if self.request.baseline is None:
            return list(cases)
        revision = self.request.baseline.revision
        return [
            *cases,
            *(dataclasses.replace(case, revision=revision) for case in cases),
        ]

    @property
    def quality_runs(self) -> list[PlannedCase]:
        return self.of_both(self.learning.cases if self.learning else ())


def choose_order(request: SweepRequest) -> Order:
    default = Order.INTERLEAVED if request.device == "cpu" else Order.SEQUENTIAL
    order = request.order or default
    if order is Order.INTERLEAVED and request.device != "cpu":
        raise PlanError(
            f"--order interleaved with --device {request.device}: a device belongs "
            "to one trial at a time; use --order sequential"
        )
    if order is not Order.INTERLEAVED and (given := interleaved_settings(request)):
        raise PlanError(
            f"{given[0]} has no effect with order sequential, whose trials have a fixed"
            " number of steps; use --repeats and --steps, or --order interleaved"
        )
    return order


def interleaved_settings(request: SweepRequest) -> list[str]:
    """Returns settings that trials in sequence do not have."""
    settings = {
        "--time-budget ": request.minutes,
        "--set rounds=": request.max_rounds,
        "--target ": request.target,
    }
    return [f"{k}{value:g}" for k, value in settings.items() if value is not None]


def check_number(num_trials: int) -> None:
    if num_trials > MAX_TRIALS:
        raise PlanError(
            f"the sweep has {num_trials} trials, and each is a process; allowed are at"
            f" most {MAX_TRIALS}: use fewer --backends, --replicas, --repeats or"
            " quality-repeats"
        )


def choose_repeats(request: SweepRequest, order: Order) -> int:
    usual = defaults.REPEATS
    if order is Order.INTERLEAVED:
        usual = defaults.REPETITIONS if request.target is None else FEWEST_TO_STOP
        usual = request.gate.looks[0] if request.gate and request.gate.looks else usual
    repeats = request.repeats or usual
    if request.target is not None and repeats < FEWEST_TO_STOP:
        raise PlanError(
            f"--repeats {repeats} with --target {request.target:.2%}: an interleaved "
            f"measurement ends on its width from {FEWEST_TO_STOP} runs on; use at "
            "least that many, or leave --target out"
        )
    return repeats


def with_aa_control(
    cases: Sequence[PlannedCase], num_cores: int, order: Order
) -> list[PlannedCase]:
    if order is not Order.INTERLEAVED or not cases:
        return list(cases)
    own = [case for case in cases if case.backend == cases[0].backend]
    fitting = [case for case in own if case.num_replicas <= num_cores] or own[:1]
    aa_control = max(fitting, key=lambda case: case.num_replicas)
    return [*cases, dataclasses.replace(aa_control, control=Control.AA)]


def make_measuring(
    request: SweepRequest, order: Order, trials: Sequence[PlannedTrial], num_cores: int
) -> Measuring:
    primary = _primary(trials, num_cores)
    measuring = functools.partial(
        Measuring,
        order=order,
        primary=primary,
        efficiency_target=request.efficiency_target,
        gate=request.gate,
    )
    if order is not Order.INTERLEAVED:
        return measuring()
    if request.target is not None and primary is None:
        raise PlanError(
            f"--target {request.target:.2%} needs a primary contrast, but the sweep has"
            " one case only; add a backend or a replica count"
        )
    minutes = request.minutes
    usual_sec = defaults.MINUTES * 60 / defaults.REPETITIONS
    looks = request.gate.looks if request.gate is not None else ()
    if looks:
        minutes = minutes or defaults.MINUTES_OF_GATE
        # As many as a pass needs, unless they would be too short to start.
        repetition_sec = min(minutes * 60 / looks[-2:][0], usual_sec)
        repetition_sec = max(repetition_sec, min(minutes * 60 / looks[0], _SHORT_SEC))
    elif request.target is None:
        minutes = minutes or defaults.MINUTES
        repetition_sec = minutes * 60 / choose_repeats(request, order)
    else:
        minutes = minutes or defaults.MINUTES_TO_TARGET
        repetition_sec = min(minutes * 60 / FEWEST_TO_STOP, usual_sec)
    return measuring(
        minutes=minutes,
        repetition_sec=repetition_sec,
        max_rounds=request.max_rounds or defaults.MAX_ROUNDS,
        target=request.target,
    )


def _primary(trials: Sequence[PlannedTrial], num_cores: int) -> Contrast | None:
    def contrast(first: PlannedTrial, second: PlannedTrial, text: str) -> Contrast:
        ids = {"first_case_id": first.case_id, "second_case_id": second.case_id}
        return Contrast(**ids, text=text)

    both = [
        trial
        for trial in trials
        if trial.spec.repetition_index == 0 and trial.spec.control is Control.NONE
    ]
    own = [trial for trial in both if not trial.spec.revision]
    if not own:
        return None
    backends = list(dict.fromkeys(trial.spec.backend for trial in own))
    if len(own) < len(both):  # the most replicas of the first backend, by revision
        own = [trial for trial in own if trial.spec.backend == backends[0]]
        fitting = [t for t in own if t.spec.num_replicas <= num_cores] or own[:1]
        first = max(fitting, key=lambda trial: trial.spec.num_replicas)
        spec = first.spec
        case = ("backend", "num_replicas", "global_batch_size")
        (second,) = (
            each
            for each in both
            if each.spec.revision
            and each.modes == first.modes
            and all(getattr(each.spec, name) == getattr(spec, name) for name in case)
        )
        text = f"{spec.backend} x{spec.num_replicas}: this tree / "
        return contrast(first, second, text + second.spec.revision)
    mode = own[0].modes[0]
    by_key = {
        (trial.spec.backend, trial.spec.num_replicas): trial
        for trial in own
        if mode in trial.modes
        and (trial.spec.device == "gpu" or trial.spec.num_replicas <= num_cores)
    }
    sizes = sorted({size for _, size in by_key}, reverse=True)
    # At the baseline, with more replicas elsewhere, the question is how those scale.
    for size in sizes[:-1] or sizes:
        pair = [by_key[each, size] for each in backends[:2] if (each, size) in by_key]
        if len(pair) > 1:
            text = f"{backends[0]} / {backends[1]}, {mode.value} scaling, x{size}"
            return contrast(pair[0], pair[1], text)
    for backend in backends:
        measured = [size for size in sizes if (backend, size) in by_key]
        if len(measured) > 1:
            most, fewest = measured[0], measured[-1]
            text = f"{backend}, {mode.value} scaling, x{most} / x{fewest}"
            return contrast(by_key[backend, most], by_key[backend, fewest], text)
    return None


def notes(measuring: Measuring, repeats: int) -> list[str]:
    texts = []
    if measuring.order is Order.INTERLEAVED:
        looks = () if measuring.gate is None else measuring.gate.looks
        number = f"{looks[0]} to {looks[-1]}" if looks else f"{repeats}"
        texts.append(
            f"interleaved measurement: {number} runs of at most {measuring.max_rounds} "
            "rounds; the A/A control shows what it resolves"
        )
    if measuring.primary is not None:
        texts.append(f"primary contrast: {measuring.primary.text}")
    return texts


# They show where the time of one case goes (``results/figures/lost_time.py``): that of
# the first backend with more than one replica, in weak scaling, at the most replicas
# that are not oversubscribed. One replica with the same batch must be a case as well,
# which weak scaling has.
#
# - ``nosync``: the case without communication.
# - ``independent``: as many programs as replicas that never communicate. Their
#   backend is ``single``, so they have the code digest of that.
# - ``synthetic``: the case, and one replica, with one batch for ever.
# - ``input_only``: the input pipelines of the case, without its step.
# - ``no_update``: the case, and one replica, without the update of the variables.

INDEPENDENT_BACKEND = "single"


def choose_controls(
    checked: CheckedSweep, cases: Sequence[PlannedCase], order: Order
) -> tuple[list[PlannedCase], list[str]]:
    """Returns the controls that were requested, and a note on each that is missing."""
    request = checked.request
    if not request.controls:
        return [], []
    names = ",".join(control.label for control in request.controls)
    if order is not Order.INTERLEAVED:
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
    case, alone = _case_and_alone(cases, checked.num_cores, names)
    weak = (ScalingMode.WEAK,)
    size = case.num_replicas, case.per_replica_batch_size
    added, notes = [], []
    backend = next(each for each in checked.backends if each.name == case.backend)
    of_peer = ""
    if backend.name in catalog.PEERS:
        of_peer = "programs of other frameworks offer nosync and synthetic"
    missing = {
        Control.NOSYNC: backend.no_control_because,
        Control.NO_UPDATE: of_peer
        or backend.lacks.get("synchronous_training")
        or checked.info.no_update_because,
        Control.INPUT_ONLY: of_peer,
    }
    for control in request.controls:
        if reason := missing.get(control):
            what = f"control {control.label} of backend {backend.name}"
            notes.append(f"no {what}: {reason}")
            continue
        name = INDEPENDENT_BACKEND if control is Control.INDEPENDENT else case.backend
        added.append(PlannedCase(name, *size, weak, control))
        if control in (Control.SYNTHETIC, Control.NO_UPDATE):
            added.append(PlannedCase(name, alone.num_replicas, size[1], weak, control))
    if added:
        kinds = ", ".join(dict.fromkeys(item.control.label for item in added))
        notes.append(
            f"controls {kinds}: of {case.backend} x{case.num_replicas}, weak scaling"
        )
    return added, notes


def _case_and_alone(
    cases: Sequence[PlannedCase], num_cores: int, names: str
) -> tuple[PlannedCase, PlannedCase]:
    weak = [case for case in cases if ScalingMode.WEAK in case.modes]
    several = [case for case in weak if 1 < case.num_replicas <= num_cores]
    for first in several:
        own = [case for case in several if case.backend == first.backend]
        for alone in weak:
            if alone.backend == first.backend and alone.num_replicas == 1:
                return max(own, key=lambda case: case.num_replicas), alone
    what = f"--controls {names} explain a case of 2 replicas or more"
    if num_cores == 1:
        raise PlanError(
            f"{what}, each on a core of its own, and there is 1 core; use "
            "--controls none"
        )
    raise PlanError(
        f"{what}, on at most {num_cores} cores, against 1 replica of the same backend, "
        "and this sweep does not have both; add them to --replicas, or use "
        "--controls none"
    )


# Trials that match N replicas with one replica; nothing of them is timed. For every
# backend and size that a study measures: a few steps on a small global batch, and the
# same on one replica of the backend ``single``, on one device and without a pipeline
# (``results/study/equivalence.py``). All sizes share the global batch, and so the one
# replica, if their common multiple is small enough.

REFERENCE_BACKEND: Final = "single"
FEWEST_EXAMPLES: Final = 16
"""Of a global batch: batch normalization needs several, and a small one is quick."""
SHARED_ROWS: Final = "shared_rows"
_FEWEST_PER_REPLICA = 2
_LARGEST_FACTOR = 4

NUM_WARMUP_STEPS: Final = 1
NUM_MEASURED_STEPS: Final = NUM_STEPS - NUM_WARMUP_STEPS


def choose_equivalence(
    checked: CheckedSweep, trials: Sequence[PlannedTrial]
) -> tuple[list[PlannedCase], list[PlannedCase], dict[str, str]]:
    """Returns references, cases that match them, and by backend why others do not."""
    request, info = checked.request, checked.info
    wanted = dict.fromkeys(
        (trial.spec.backend, trial.spec.num_replicas)
        for trial in trials
        if is_judged(trial.spec) and trial.spec.num_devices > 1
    )
    reference = REFERENCE_BACKEND
    not_checked: dict[str, str] = {}
    if request.program is not None:
        reference = request.program.name
        not_checked = _why_not(request, request.program)
    for backend, _ in wanted if request.program is None else ():
        reason = catalog.backend(backend).lacks.get("synchronous_training", "")
        if not request.is_matched:
            reason = "--no-match was given"
        elif info.equivalence is None:
            reason = f"{info.name} cannot be matched: {info.not_matched_because}"
        if reason:
            not_checked[backend] = reason
    checked_cases = [(b, n) for b, n in wanted if b not in not_checked]
    # What an example of a batch counts, and into how many parts it is cut. Every
    # replica has two examples or more of each part.
    units, parts = {}, 1
    if checked_cases:
        spec = trials[0].spec
        units = catalog.batch_units(info, spec.preset, spec.options)
        of_splits = info.equivalence.of_splits if info.equivalence else ()
        parts = math.prod(units.pop(name) for name in of_splits if name in units)
    unit = math.prod(units.values())
    cut = global_batch_sizes([number * parts for _, number in checked_cases])
    sizes = {count // parts: unit * size for count, size in cut.items()}
    references = [_case(reference, 1, size) for size in dict.fromkeys(sizes.values())]
    return references, [_case(b, n, sizes[n]) for b, n in checked_cases], not_checked


def _why_not(request: SweepRequest, program: ForeignProgram) -> dict[str, str]:
    """Returns why a program of the user's cannot be matched, by its name."""
    if not program.record.is_client:
        return {}  # it shows neither its losses nor its updates
    if program.variants:
        why = "variants of a program are not checked; measure one alone for that"
    elif not request.is_matched:
        why = "--no-match was given"
    elif "seed" not in names_in(program.record.command):
        why = "its command has no {seed}, so replicas may draw other examples than one"
        why += " does"
    else:
        return {}
    return dict.fromkeys(program.variants or [program.name], why)


def matching_remark(checked: CheckedSweep, backend: str) -> str:
    """Says what is changed of a backend so that it can be matched."""
    assert checked.info.equivalence is not None
    rows = catalog.backend(backend).lacks.get(SHARED_ROWS)
    remark = checked.info.equivalence.remark
    remark += f"; dense gradients, since otherwise {rows}" if rows else ""
    if program_lib.devices_per_replica(checked.request.options, backend) > 1:
        remark += "; the one replica is on one device"
    return remark


def _case(backend: str, num_replicas: int, global_batch_size: int) -> PlannedCase:
    size = global_batch_size // num_replicas
    return PlannedCase(
        backend, num_replicas, size, (ScalingMode.STRONG,), Control.MATCH
    )


def global_batch_sizes(counts: Sequence[int]) -> dict[int, int]:
    """Returns global batch sizes by replicas, two examples for each; one if it can."""
    fewest = {each: max(FEWEST_EXAMPLES, _FEWEST_PER_REPLICA * each) for each in counts}
    most, common = max(fewest.values(), default=0), math.lcm(*counts)
    if common <= _LARGEST_FACTOR * most:
        return dict.fromkeys(counts, common * math.ceil(most / common))
    return {each: each * math.ceil(least / each) for each, least in fewest.items()}


def merged_equivalence(
    existing: EquivalenceCheck | None, new: EquivalenceCheck | None
) -> EquivalenceCheck | None:
    """Returns the trials that match of both plans; the new reasons replace others."""
    if existing is None or new is None:
        return new or existing
    trials = {trial.trial_id: trial for trial in (*existing.trials, *new.trials)}
    matched = {trial.spec.backend for trial in trials.values()}
    reasons = {**existing.not_checked, **new.not_checked}
    return EquivalenceCheck(
        trials=tuple(trials.values()),
        not_checked={k: v for k, v in reasons.items() if k not in matched},
        remarks={**existing.remarks, **new.remarks},
    )
