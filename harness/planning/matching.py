"""Plans the trials that match N replicas with one replica; nothing of them is timed.

For every backend and size that a study measures: a few steps on a small global batch,
and the same on one replica of the backend ``single``, on one device and without a
pipeline (``results/study/matching.py``). All sizes share the global batch, and so the
one replica, if their common multiple is small enough.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from harness import catalog
from harness.command.program import names_in
from harness.planning.estimate import PlannedCase
from results.records import program as program_lib
from results.records.models import Control, Matching, ScalingMode
from results.study.matching import NUM_STEPS, is_judged

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from harness.catalog import WorkloadInfo
    from harness.command.program import ForeignProgram
    from harness.planning.request import SweepRequest
    from results.records.models import OptionValue, PlannedTrial

REFERENCE_BACKEND: Final = "single"
FEWEST_EXAMPLES: Final = 16
"""Of a global batch: batch normalization needs several, and a small one is quick."""
SHARED_ROWS: Final = "shared_rows"
_FEWEST_PER_REPLICA = 2
_LARGEST_FACTOR = 4

NUM_WARMUP_STEPS: Final = 1
NUM_MEASURED_STEPS: Final = NUM_STEPS - NUM_WARMUP_STEPS


def choose(
    request: SweepRequest, trials: Iterable[PlannedTrial]
) -> tuple[list[PlannedCase], list[PlannedCase], dict[str, str]]:
    """Returns references, cases that match them, and by backend why others do not."""
    trials = tuple(trials)
    wanted = list(
        dict.fromkeys(
            (trial.spec.backend, trial.spec.num_replicas)
            for trial in trials
            if is_judged(trial.spec) and trial.spec.num_devices > 1
        )
    )
    reference = REFERENCE_BACKEND
    not_checked: dict[str, str] = {}
    if request.program is not None:
        reference = request.program.name
        not_checked = _why_not(request, request.program)
    info = None if request.program else catalog.workload(request.workload)
    for backend, _ in wanted if info else ():
        assert info is not None
        reason = catalog.backend(backend).lacks.get("synchronous_training", "")
        if not request.is_matched:
            reason = "--no-match was given"
        elif info.matching is None:
            reason = f"{info.name} cannot be matched: {info.not_matched_because}"
        if reason:
            not_checked[backend] = reason
    wanted = [(b, n) for b, n in wanted if b not in not_checked]
    unit, parts = _units(info, trials)
    # Every replica has two examples or more of each part of a batch.
    sizes = {
        count // parts: unit * size
        for count, size in global_batch_sizes([n * parts for _, n in wanted]).items()
    }
    references = [_case(reference, 1, size) for size in dict.fromkeys(sizes.values())]
    return references, [_case(b, n, sizes[n]) for b, n in wanted], not_checked


def _units(
    info: WorkloadInfo | None, trials: Sequence[PlannedTrial]
) -> tuple[int, int]:
    """Returns what an example of a batch counts, and into how many parts it is cut."""
    if info is None or not trials:
        return 1, 1
    spec = trials[0].spec
    units = catalog.batch_units(info, spec.preset, spec.options)
    of_parts = () if info.matching is None else info.matching.of_pipelines
    parts = math.prod(units.pop(name) for name in of_parts if name in units)
    return math.prod(units.values()), parts


def options_of_reference(
    info: WorkloadInfo | None, options: Mapping[str, OptionValue]
) -> dict[str, OptionValue]:
    """Returns the options of one replica on one device, without a pipeline."""
    left_out = (
        () if info is None or info.matching is None else info.matching.of_pipelines
    )
    return {name: of for name, of in options.items() if name not in left_out}


def _why_not(request: SweepRequest, program: ForeignProgram) -> dict[str, str]:
    """Returns why a program of the user's cannot be matched, by its name."""
    if not program.record.is_client:
        return {}  # it shows neither its losses nor its updates
    if program.variants:
        why = "variants of a program are not checked; measure one alone for that"
        return dict.fromkeys(program.variants, why)
    if not request.is_matched:
        return {program.name: "--no-match was given"}
    if "seed" not in names_in(program.record.command):
        return {
            program.name: "its command has no {seed}, so replicas may draw other"
            " examples than one does"
        }
    return {}


def remarks(request: SweepRequest, cases: Iterable[PlannedCase]) -> dict[str, str]:
    """Returns by backend what is changed so that it can be matched."""
    if request.program is not None:
        return {}
    info = catalog.workload(request.workload)
    found = {}
    is_split = program_lib.devices_per_replica(request.options) > 1
    split = "; the one replica is on one device, without a pipeline"
    for case in cases:
        assert info.matching is not None  # otherwise there are no cases
        rows = catalog.backend(case.backend).lacks.get(SHARED_ROWS)
        dense = f"; dense gradients, since otherwise {rows}" if rows else ""
        found[case.backend] = (
            f"{info.matching.remark}{dense}{split if is_split else ''}"
        )
    return found


def _case(backend: str, num_replicas: int, global_batch_size: int) -> PlannedCase:
    return PlannedCase(
        backend,
        num_replicas,
        global_batch_size // num_replicas,
        (ScalingMode.STRONG,),
        Control.MATCH,
    )


def global_batch_sizes(counts: Sequence[int]) -> dict[int, int]:
    """Returns the global batch size of each number of replicas; one for all if it can.

    Every replica has two examples or more.
    """
    if not counts:
        return {}
    fewest = max(FEWEST_EXAMPLES, _FEWEST_PER_REPLICA * max(counts))
    common = math.lcm(*counts)
    if common <= _LARGEST_FACTOR * fewest:
        return dict.fromkeys(counts, _multiple(common, fewest))
    return {
        count: _multiple(count, max(FEWEST_EXAMPLES, _FEWEST_PER_REPLICA * count))
        for count in counts
    }


def _multiple(of: int, at_least: int) -> int:
    return of * math.ceil(at_least / of)


def merged(existing: Matching | None, new: Matching | None) -> Matching | None:
    """Returns the trials that match of both plans; the new reasons replace others."""
    if existing is None or new is None:
        return new or existing
    trials = {trial.trial_id: trial for trial in (*existing.trials, *new.trials)}
    matched = {trial.spec.backend for trial in trials.values()}
    reasons = {**existing.not_checked, **new.not_checked}
    return Matching(
        trials=tuple(trials.values()),
        not_checked={k: v for k, v in reasons.items() if k not in matched},
        remarks={**existing.remarks, **new.remarks},
    )
