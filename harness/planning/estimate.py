"""Estimates how long a plan takes, from earlier trials or a stated assumption."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import re
import statistics
from typing import TYPE_CHECKING

from harness import catalog
from harness.errors import ParseError, PlanError
from harness.options.kinds import seconds_of
from harness.planning.request import NONE, WINDOW, SweepRequest, is_evaluated
from results.errors import ResultsError
from results.records import identity
from results.records.models import (
    Budget,
    BudgetUnit,
    Control,
    Environment,
    Order,
    ScalingMode,
    StatusRecord,
    TrialSpec,
    TrialStatus,
)
from results.records.record_base import MAX_BUDGET
from results.store import study_store

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from harness.catalog import PresetInfo
    from results.records.measuring import Measuring
    from results.records.models import PlannedTrial


ASSUMED_TRIAL_SEC = 30.0
"""Assumed where there is no earlier trial: that of a laptop preset on two cores."""
GPU_START_SEC = 42.0
"""Assumed of a trial on GPUs: imports, tracing, choosing kernels, checks."""
EACH_GPU_SEC = 5.0
"""The same for each GPU: its context, its part of the graph, its choice of kernels."""
GPU_STEP_SEC = 0.1
"""Assumed of a step: presets for GPUs fill one, so faster ones have larger batches."""

_MAX_EARLIER_TRIALS = 2_000

_KIND = ("workload", "preset", "data", "device")
_TRAINING = (*_KIND, "budget", "num_warmup_steps", "num_measured_steps")
_CASE = ("backend", "num_replicas")
_AS_LONG = (
    (*_TRAINING, *_CASE, "global_batch_size"),
    (*_TRAINING, *_CASE),
    (*_TRAINING, "num_replicas"),
    _TRAINING,
)
"""Fields by which trials take as long, most specific first."""
_AS_FAST = ((*_KIND, *_CASE, "global_batch_size"), (*_KIND, *_CASE), _KIND)
"""The same by which they are as fast: a quality run as a trial without a budget."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    total_sec: float  # Duration of all the given trials.
    basis: str  # One line for the user.
    # Duration where an interleaved study goes on until it has its target; None where
    # the trials are all there are.
    most_sec: float | None = None

    @property
    def text(self) -> str:
        most = "" if self.most_sec is None else f" to {format_duration(self.most_sec)}"
        return f"about {format_duration(self.total_sec)}{most} ({self.basis})"


class Durations:
    def __init__(self) -> None:
        self._seconds: dict[tuple[str, ...], list[float]] = {}
        self._rates: dict[tuple[str, ...], list[float]] = {}
        self.num_trials = 0
        # What the last repetition of this measurement took; None before the first one.
        self.repetition_sec: float | None = None

    def add(
        self, spec: TrialSpec, duration_sec: float, per_sec: float | None = None
    ) -> None:
        """Adds a trial, and how many examples it processed ``per_sec``."""
        self.num_trials += 1
        for key in _keys(spec, _AS_LONG):
            self._seconds.setdefault(key, []).append(duration_sec)
        for key in _keys(spec, _AS_FAST) if per_sec else ():
            self._rates.setdefault(key, []).append(per_sec or 0.0)

    def guess(self, spec: TrialSpec) -> float | None:
        return _median(self._seconds, _keys(spec, _AS_LONG))

    def remaining_sec(self, specs: Iterable[TrialSpec]) -> float:
        guesses = [(spec, self.guess(spec)) for spec in specs]
        return math.fsum(
            self._assumed_sec(spec) if guess is None else guess
            for spec, guess in guesses
        )

    def _assumed_sec(self, spec: TrialSpec) -> float:
        """Returns what a trial is assumed to take, its training budget included."""
        budget, alone_sec = spec.budget, ASSUMED_TRIAL_SEC
        if spec.device == "gpu":
            num_steps = spec.num_warmup_steps + (spec.num_measured_steps or 0)
            alone_sec = GPU_START_SEC + EACH_GPU_SEC * spec.num_replicas
            alone_sec += GPU_STEP_SEC * num_steps
        if budget is None:
            return alone_sec
        if budget.unit is BudgetUnit.SECONDS:
            return alone_sec + budget.amount
        num_examples = budget.amount
        if budget.unit is BudgetUnit.STEPS:
            num_examples *= spec.global_batch_size
        rate = _median(self._rates, _keys(spec, _AS_FAST))
        return alone_sec if rate is None else alone_sec + num_examples / rate

    def estimate(
        self, trials: Sequence[PlannedTrial], measuring: Measuring | None = None
    ) -> Estimate:
        together = [trial for trial in trials if trial.spec.order is Order.INTERLEAVED]
        if not together or measuring is None or measuring.repetition_sec is None:
            return self._estimate_alone(trials)
        interleaved = self._estimate_interleaved(together, measuring)
        alone = [trial for trial in trials if trial.spec.order is not Order.INTERLEAVED]
        if not alone:
            return interleaved
        rest, most = self._estimate_alone(alone), interleaved.most_sec
        return Estimate(
            total_sec=interleaved.total_sec + rest.total_sec,
            basis=f"{interleaved.basis}; {len(alone)} trials alone {rest.text}",
            most_sec=None if most is None else most + rest.total_sec,
        )

    def _estimate_interleaved(
        self, trials: Sequence[PlannedTrial], measuring: Measuring
    ) -> Estimate:
        """Repetitions end when their time is over, or after their rounds."""
        assert measuring.repetition_sec is not None
        assert measuring.minutes is not None
        number = len({trial.spec.repetition_index for trial in trials})
        given = number * measuring.repetition_sec
        guesses = [self.guess(trial.spec) for trial in trials]
        known = sum(guess for guess in guesses if guess is not None)
        is_shorter = None not in guesses and known < given
        most_sec, numbers = None, f"{number}"
        if measuring.target is not None:
            numbers, most_sec = f"{number} or more", measuring.minutes * 60
        each = format_duration(measuring.repetition_sec)
        basis = f"{numbers} runs of {each}"
        basis += (
            " at most; from earlier trials like these"
            if is_shorter
            else f", or less after {measuring.max_rounds} rounds"
        )
        return Estimate(
            total_sec=known if is_shorter else given, basis=basis, most_sec=most_sec
        )

    def _estimate_alone(self, trials: Sequence[PlannedTrial]) -> Estimate:
        specs = [trial.spec for trial in trials]
        num_assumed = sum(self.guess(spec) is None for spec in specs)
        assumption = f"{ASSUMED_TRIAL_SEC:g} s per trial"
        if any(spec.device == "gpu" for spec in specs):
            assumption = (
                f"{GPU_START_SEC:g} s per trial, {EACH_GPU_SEC:g} s per GPU of it and"
                f" {GPU_STEP_SEC:g} s per step"
            )
        if not num_assumed:
            basis = "from earlier trials like these"
        elif num_assumed == len(trials):
            basis = f"assuming {assumption}: no earlier ones like these"
        else:
            basis = (
                f"from earlier trials; {num_assumed} of {len(trials)} assumed to take"
                f" {assumption}"
            )
        return Estimate(total_sec=self.remaining_sec(specs), basis=basis)


def _keys(spec: TrialSpec, similar: Iterable[tuple[str, ...]]) -> list[tuple[str, ...]]:
    fields = spec.model_dump(mode="json")
    return [tuple(str(fields[name]) for name in names) for names in similar]


def _median(
    known: Mapping[tuple[str, ...], list[float]], keys: Iterable[tuple[str, ...]]
) -> float | None:
    return next((statistics.median(known[key]) for key in keys if key in known), None)


def read_durations(runs_dir: Path) -> Durations:
    durations = Durations()
    for _, spec, status in _earlier(runs_dir, (TrialStatus.OK,)):
        durations.add(spec, status.duration_sec)
    return durations


def _earlier(
    runs_dir: Path, wanted: Collection[TrialStatus]
) -> Iterator[tuple[Path, TrialSpec, StatusRecord]]:
    """Yields folders and records of trials that ended so; skips what is unreadable."""
    paths = sorted(runs_dir.glob("*/trials/*/status.json"))
    for path in paths[-_MAX_EARLIER_TRIALS:]:
        with contextlib.suppress(ResultsError):
            status = study_store.read_record(path, "status", StatusRecord)
            if status is None or status.status not in wanted:
                continue
            own = path.with_name("spec.json")
            spec = study_store.read_record(own, "spec", TrialSpec)
            if spec is not None:
                yield path.parent, spec, status


def format_duration(seconds: float) -> str:
    """Returns ``45 s``, ``3 min 20 s`` or ``2 h 05 min``."""
    whole = round(seconds)
    if whole < 60:  # noqa: PLR2004 - seconds per minute
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    hours, left = divmod(minutes, 60)
    return f"{hours} h {left:02d} min" if hours else f"{minutes} min {rest:02d} s"


# The memory that a program needs cannot be computed before it runs. But where the same
# code has run out of memory with a batch on the same model of GPU, the same batch or a
# larger one will not fit, on as many GPUs or more; and that takes minutes to find out.

_DECISIVE = (TrialStatus.OK, TrialStatus.OUT_OF_MEMORY)


def check_memory(
    trials: Sequence[PlannedTrial], runs_dir: Path, *, study: str, gpu: str
) -> None:
    # By what determines the memory of a trial but its sizes.
    earlier: dict[str, list[tuple[str, TrialSpec, bool]]] = {}
    for folder, earlier_spec, status in _earlier(runs_dir, _DECISIVE):
        env, name = None, folder.parents[1].name
        with contextlib.suppress(ResultsError):
            env = study_store.read_record(folder / "env.json", "env", Environment)
        if env is not None and env.gpus[:1] == (gpu,) and name != study:
            has_fitted = status.status is TrialStatus.OK
            earlier.setdefault(_program_of(earlier_spec), []).append(
                (name, earlier_spec, has_fitted)
            )
    for spec in (trial.spec for trial in trials):
        size, same = spec.per_replica_batch_size, earlier.get(_program_of(spec), [])
        failed = [
            (name, earlier_spec.num_replicas, earlier_spec.per_replica_batch_size)
            for name, earlier_spec, has_fitted in same
            if not has_fitted
            and earlier_spec.num_replicas <= spec.num_replicas
            and earlier_spec.per_replica_batch_size <= size
        ]
        for name, number, least in failed[-1:]:
            fitting = {0} | {
                earlier_spec.per_replica_batch_size
                for _, earlier_spec, has_fitted in same
                if has_fitted and earlier_spec.num_replicas >= spec.num_replicas
            }
            most = max(earlier_spec for earlier_spec in fitting if earlier_spec < least)
            known = f"{most} fits: use" if most else "use less than"
            raise PlanError(
                f"{spec.num_replicas} x {size} examples do not fit with backend"
                f" {spec.backend!r}: {number} x {least} ran out of memory on {gpu} in"
                f" study {name!r}; {known} --per-replica-batch-size {most or least}, or"
                " --retry failed to try it again"
            )


def _program_of(spec: TrialSpec) -> str:
    fields = ("workload", "preset", "data", "backend", "code_digest", "options")
    return identity.digest({name: getattr(spec, name) for name in fields})


_BUDGET = re.compile(r"(\d+(?:\.\d+)?)\s*(steps|examples)", re.ASCII)


def parse_budget(text: str, *, num_evaluations: int) -> Budget | None:
    """Returns the budget that ``text`` names, or None without quality runs."""
    parts = [part for word in text.split(",") if (part := word.strip()) != WINDOW]
    if not parts or is_evaluated(text) is False:
        return None
    match = _BUDGET.fullmatch(",".join(parts))
    unit = BudgetUnit(match[2]) if match else BudgetUnit.SECONDS
    amount = float(match[1]) if match else seconds_of(",".join(parts))
    if amount is None or not 0 < amount <= MAX_BUDGET:
        raise ParseError(
            f"--budget {text!r} is not a budget; allowed are a positive number with"
            f" s, min, h, steps or examples (60s, 10min, 500steps), at most"
            f" {MAX_BUDGET:g}, {WINDOW}, both with a comma between, or {NONE} alone"
        )
    return Budget(amount=amount, unit=unit, num_evaluations=num_evaluations)


# Allowance for evaluations, start-up and a slow machine, on top of the budget.
_OVERHEAD_FACTOR = 1.5
_OVERHEAD_SEC = 120.0


@dataclasses.dataclass(frozen=True, slots=True)
class PlannedCase:
    """A case of a sweep: backend, size, and the scaling modes that it serves."""

    backend: str
    num_replicas: int
    per_replica_batch_size: int
    modes: tuple[ScalingMode, ...]
    control: Control = Control.NONE
    revision: str = ""  # Of the code; empty for the tree of the harness.

    @property
    def global_batch_size(self) -> int:
        return self.num_replicas * self.per_replica_batch_size


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class QualityRuns:
    budget: Budget  # The budget of each.
    cases: tuple[PlannedCase, ...]  # Those that train.
    note: str  # What was chosen for the user, one line.


def choose_quality_runs(
    request: SweepRequest,
    preset: PresetInfo,
    cases: Sequence[PlannedCase],
    is_data_real: bool,
) -> QualityRuns | None:
    """Returns those requested, of every backend; or the preset's, of the first."""
    is_asked_for = request.budget is not None
    text = preset.budget if request.budget is None else request.budget
    if not text or (not is_asked_for and not is_data_real):
        return None
    budget = parse_budget(text, num_evaluations=preset.num_evaluations)
    if budget is None:
        return None
    if not is_data_real:
        raise PlanError(
            f"--budget {text}: the data set 'synthetic' has nothing to learn; use"
            " another --data, or --budget none"
        )
    needed = round(budget.amount * _OVERHEAD_FACTOR + _OVERHEAD_SEC)
    if budget.unit is BudgetUnit.SECONDS and needed > request.timeout_sec:
        raise PlanError(
            f"--budget {text} may not end within --timeout {request.timeout_sec:g} s,"
            f" with start-up and evaluations; use --timeout {needed}s or more"
        )
    is_strong = ScalingMode.STRONG in request.modes
    mode = ScalingMode.STRONG if is_strong else ScalingMode.WEAK
    # Peers take steps, and measure nothing of what they learn.
    learning = [name for name in request.backends if name not in catalog.PEERS]
    if not learning:
        return None
    backends = learning if is_asked_for else learning[:1]
    chosen = [c for c in cases if mode in c.modes and c.backend in backends]
    where = ", ".join(f"{case.backend} x{case.num_replicas}" for case in chosen)
    note = (
        f"quality runs: {where} for {budget} each, {mode.value} scaling; --budget"
        f" {NONE} leaves them out"
    )
    return QualityRuns(budget=budget, cases=tuple(chosen), note=note)
