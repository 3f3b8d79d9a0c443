"""Estimates how long a plan takes, from earlier trials or a stated assumption."""

from __future__ import annotations

import contextlib
import dataclasses
import statistics
from typing import TYPE_CHECKING

from harness import catalog
from harness.errors import PlanError
from harness.planning import settings
from results.errors import ResultsError
from results.records import identity
from results.records.models import (
    BudgetUnit,
    Control,
    Environment,
    Order,
    ScalingMode,
    StatusRecord,
    TrialSpec,
    TrialStatus,
)
from results.store import record_file

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence
    from pathlib import Path

    from harness.catalog import PresetInfo
    from harness.planning.request import SweepRequest
    from results.records.measuring import Measuring
    from results.records.models import Budget, PlannedTrial


ASSUMED_TRIAL_SEC = 30.0
"""Assumed where there is no earlier trial: that of a laptop preset on two cores."""

GPU_START_SEC = 42.0
"""Assumed of a trial on GPUs: imports, tracing, choosing kernels, checks."""
EACH_GPU_SEC = 5.0
"""The same for each GPU: its context, its part of the graph, its choice of kernels."""
GPU_STEP_SEC = 0.1
"""Assumed of a step: presets for GPUs fill one, so faster ones have larger batches."""

_MAX_EARLIER_TRIALS = 2_000

_Key = tuple[str, ...]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """An estimated duration and its basis."""

    total_sec: float  # Duration of all the given trials.
    basis: str  # One line for the user.
    # Duration where a relay goes on until it has a verdict or its target; None where
    # the trials are all there are.
    most_sec: float | None = None

    @property
    def text(self) -> str:
        """The duration and its basis, in words."""
        most = "" if self.most_sec is None else f" to {format_duration(self.most_sec)}"
        return f"about {format_duration(self.total_sec)}{most} ({self.basis})"


class Durations:
    """Durations of finished trials, and estimates for others from them."""

    def __init__(self) -> None:
        self._by_key: dict[_Key, list[float]] = {}
        self._rates: dict[_Key, list[float]] = {}
        self.num_trials = 0
        self.generation_sec: float | None = None
        """What the last generation of this relay took; None before the first one."""

    def add(
        self,
        spec: TrialSpec,
        duration_sec: float,
        examples_per_sec: float | None = None,
    ) -> None:
        """Adds one finished trial."""
        self.num_trials += 1
        for key in _keys(spec):
            self._by_key.setdefault(key, []).append(duration_sec)
        if examples_per_sec:
            for key in _rate_keys(spec):
                self._rates.setdefault(key, []).append(examples_per_sec)

    def guess(self, spec: TrialSpec) -> float | None:
        """Returns the median of the most similar trials, or None without any."""
        for key in _keys(spec):
            if key in self._by_key:
                return statistics.median(self._by_key[key])
        return None

    def remaining_sec(self, specs: Iterable[TrialSpec]) -> float:
        """Returns the estimated duration of the trials; unknown ones are assumed."""
        total = 0.0
        for spec in specs:
            guess = self.guess(spec)
            total += self.assumed_sec(spec) if guess is None else guess
        return total

    def assumed_sec(self, spec: TrialSpec) -> float:
        """Returns what a trial is assumed to take where there is no earlier one.

        A quality run takes its budget too: in seconds, or at the throughput of trials
        of the same case.
        """
        budget, alone_sec = spec.budget, _assumed_alone_sec(spec)
        if budget is None:
            return alone_sec
        if budget.unit is BudgetUnit.SECONDS:
            return alone_sec + budget.amount
        num_examples = budget.amount
        if budget.unit is BudgetUnit.STEPS:
            num_examples *= spec.global_batch_size
        rates = next(
            (self._rates[key] for key in _rate_keys(spec) if key in self._rates), None
        )
        if rates is None:
            return alone_sec
        return alone_sec + num_examples / statistics.median(rates)


def _assumed_alone_sec(spec: TrialSpec) -> float:
    """Returns what a trial is assumed to take without its budget."""
    if spec.device != "gpu":
        return ASSUMED_TRIAL_SEC
    num_steps = spec.num_warmup_steps + (spec.num_measured_steps or 0)
    return GPU_START_SEC + EACH_GPU_SEC * spec.num_replicas + GPU_STEP_SEC * num_steps


def _assumption(trials: Sequence[PlannedTrial]) -> str:
    if any(trial.spec.device == "gpu" for trial in trials):
        return (
            f"{GPU_START_SEC:g} s per trial, {EACH_GPU_SEC:g} s per GPU of it and"
            f" {GPU_STEP_SEC:g} s per step"
        )
    return f"{ASSUMED_TRIAL_SEC:g} s per trial"


def _keys(spec: TrialSpec) -> list[_Key]:
    """Returns the keys by which trials are similar, most specific first."""
    fields = spec.model_dump(mode="json")

    def get(name: str) -> str:
        return str(fields.get(name))

    kind = tuple(get(n) for n in ("workload", "preset", "data", "device", "budget"))
    size = (*kind, get("num_warmup_steps"), get("num_measured_steps"))
    backend, replicas = get("backend"), get("num_replicas")
    return [
        (*size, backend, replicas, get("global_batch_size")),
        (*size, backend, replicas),
        (*size, replicas),
        size,
    ]


def _rate_keys(spec: TrialSpec) -> list[_Key]:
    """Returns the keys by which trials are equally fast, most specific first.

    A quality run is as fast as a trial without a budget.
    """
    fields = spec.model_dump(mode="json")
    kind = tuple(str(fields[n]) for n in ("workload", "preset", "data", "device"))
    case = tuple(str(fields[n]) for n in ("backend", "num_replicas"))
    return [(*kind, *case, str(spec.global_batch_size)), (*kind, *case), kind]


def read_durations(runs_dir: Path) -> Durations:
    """Reads the durations of ok trials of all studies; skips unreadable studies."""
    durations = Durations()
    for _, spec, status in _earlier(runs_dir, (TrialStatus.OK,)):
        durations.add(spec, status.duration_sec)
    return durations


def _earlier(
    runs_dir: Path, wanted: Collection[TrialStatus]
) -> Iterator[tuple[Path, TrialSpec, StatusRecord]]:
    """Yields the folders and records of trials that ended so; these are estimates.

    What cannot be read is reported when its own study is read.
    """
    paths = sorted(runs_dir.glob("*/trials/*/status.json"))
    for path in paths[-_MAX_EARLIER_TRIALS:]:
        with contextlib.suppress(ResultsError):
            status = record_file.read(path, "status", StatusRecord)
            if status is None or status.status not in wanted:
                continue
            spec = record_file.read(path.with_name("spec.json"), "spec", TrialSpec)
            if spec is not None:
                yield path.parent, spec, status


def estimate(
    trials: Sequence[PlannedTrial],
    durations: Durations,
    measuring: Measuring | None = None,
) -> Estimate:
    """Returns the estimated duration of ``trials``."""
    together = [trial for trial in trials if trial.spec.order is Order.RELAY]
    if not together or measuring is None or measuring.generation_sec is None:
        return _of_trials(trials, durations)
    relay = _of_relay(together, durations, measuring)
    alone = [trial for trial in trials if trial.spec.order is not Order.RELAY]
    if not alone:
        return relay
    rest = _of_trials(alone, durations)
    most = None if relay.most_sec is None else relay.most_sec + rest.total_sec
    return Estimate(
        total_sec=relay.total_sec + rest.total_sec,
        basis=f"{relay.basis}; {len(alone)} trials alone {rest.text}",
        most_sec=most,
    )


def _of_relay(
    trials: Sequence[PlannedTrial], durations: Durations, measuring: Measuring
) -> Estimate:
    """Generations end when their time is over, or after their rounds."""
    assert measuring.generation_sec is not None
    assert measuring.minutes is not None
    number = len({trial.spec.repetition_index for trial in trials})
    given = number * measuring.generation_sec
    guesses = [durations.guess(trial.spec) for trial in trials]
    known = sum(guess for guess in guesses if guess is not None)
    is_shorter = None not in guesses and known < given
    looks = () if measuring.gate is None else measuring.gate.looks
    most_sec, numbers = None, f"{number}"
    if looks and looks[-1] > number:
        numbers = f"{number} to {looks[-1]}"
        most_sec = min(looks[-1] * measuring.generation_sec, measuring.minutes * 60)
    elif measuring.target is not None and not looks:
        numbers, most_sec = f"{number} or more", measuring.minutes * 60
    each = format_duration(measuring.generation_sec)
    basis = f"{numbers} runs of {each}"
    basis += (
        " at most; from earlier trials like these"
        if is_shorter
        else f", or less after {measuring.max_rounds} rounds"
    )
    return Estimate(
        total_sec=known if is_shorter else given, basis=basis, most_sec=most_sec
    )


def _of_trials(trials: Sequence[PlannedTrial], durations: Durations) -> Estimate:
    total = 0.0
    num_assumed = 0
    for trial in trials:
        guess = durations.guess(trial.spec)
        if guess is None:
            num_assumed += 1
            guess = durations.assumed_sec(trial.spec)
        total += guess
    if not num_assumed:
        basis = "from earlier trials like these"
    elif num_assumed == len(trials):
        basis = f"assuming {_assumption(trials)}: no earlier ones like these"
    else:
        basis = (
            f"from earlier trials; {num_assumed} of {len(trials)} assumed to take"
            f" {_assumption(trials)}"
        )
    return Estimate(total_sec=total, basis=basis)


def format_duration(seconds: float) -> str:
    """Returns ``45 s``, ``3 min 20 s`` or ``2 h 05 min``."""
    whole = round(seconds)
    if whole < 60:  # noqa: PLR2004 - seconds per minute
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:  # noqa: PLR2004 - minutes per hour
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min"


# The memory that a program needs cannot be computed before it runs. But where the same
# code has run out of memory with a batch on the same model of GPU, the same batch or a
# larger one will not fit, on as many GPUs or more; and that takes minutes to find out.

_DECISIVE = (TrialStatus.OK, TrialStatus.OUT_OF_MEMORY)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class EarlierTrial:
    """A trial on GPUs that fitted into memory, or did not."""

    study: str  # The name of its study.
    program: str  # The digest of what it ran, without batch, replicas and repetition.
    gpu: str  # Product name of its GPUs.
    num_replicas: int  # Its replicas.
    per_replica_batch_size: int  # Its batch on each GPU.
    has_fitted: bool  # Whether it completed.


def program_of(spec: TrialSpec) -> str:
    """Returns the digest of what determines the memory of a trial but its sizes."""
    fields = ("workload", "preset", "data", "backend", "code_digest", "options")
    return identity.digest({name: getattr(spec, name) for name in fields})


def check_memory(
    trials: Sequence[PlannedTrial], runs_dir: Path, *, study: str, gpu: str
) -> None:
    """Checks that no trial has a batch that is known not to fit."""
    earlier = [e for e in _read(runs_dir) if e.gpu == gpu and e.study != study]
    for trial in trials:
        spec = trial.spec
        same = [e for e in earlier if e.program == program_of(spec)]
        failed = [
            e
            for e in same
            if not e.has_fitted
            and e.num_replicas <= spec.num_replicas
            and e.per_replica_batch_size <= spec.per_replica_batch_size
        ]
        if failed:
            raise PlanError(_complaint(spec, failed[-1], same))


def _complaint(
    spec: TrialSpec, failed: EarlierTrial, same: Sequence[EarlierTrial]
) -> str:
    fitting = max(
        (
            e.per_replica_batch_size
            for e in same
            if e.has_fitted
            and e.num_replicas >= spec.num_replicas
            and e.per_replica_batch_size < failed.per_replica_batch_size
        ),
        default=None,
    )
    size = spec.per_replica_batch_size
    known = f"use less than --per-replica-batch-size {failed.per_replica_batch_size}"
    if fitting is not None:
        known = f"{fitting} fits: use --per-replica-batch-size {fitting}"
    return (
        f"{spec.num_replicas} x {size} examples do not fit with backend"
        f" {spec.backend!r}: {failed.num_replicas} x"
        f" {failed.per_replica_batch_size} ran out of memory on {failed.gpu} in study"
        f" {failed.study!r}; {known}, or --retry failed to try it"
        " again"
    )


def _read(runs_dir: Path) -> Iterator[EarlierTrial]:
    for folder, spec, status in _earlier(runs_dir, _DECISIVE):
        env = None
        with contextlib.suppress(ResultsError):
            env = record_file.read(folder / "env.json", "env", Environment)
        if env is not None and env.gpus:
            yield EarlierTrial(
                study=folder.parents[1].name,
                program=program_of(spec),
                gpu=env.gpus[0],
                num_replicas=spec.num_replicas,
                per_replica_batch_size=spec.per_replica_batch_size,
                has_fitted=status.status is TrialStatus.OK,
            )


# Allowance for evaluations, start-up and a slow machine, on top of the budget.
_OVERHEAD_FACTOR = 1.5
_OVERHEAD_SEC = 120.0


@dataclasses.dataclass(frozen=True, slots=True)
class PlannedCase:
    """A case of a sweep: backend, size, and the scaling modes that it serves.

    ``revision`` is that of the code, empty for the tree of the harness.
    """

    backend: str
    num_replicas: int
    per_replica_batch_size: int
    modes: tuple[ScalingMode, ...]
    control: Control = Control.NONE
    revision: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class QualityRuns:
    """The quality runs of a sweep."""

    budget: Budget  # The budget of each.
    cases: tuple[PlannedCase, ...]  # Those that train.
    note: str  # What was chosen for the user, one line.


def choose_quality_runs(
    request: SweepRequest,
    preset: PresetInfo,
    cases: Sequence[PlannedCase],
    *,
    is_data_real: bool,
) -> QualityRuns | None:
    """Returns the requested quality runs, or the preset's, or None.

    A requested budget applies to every backend, the preset's to the first.
    """
    is_asked_for = request.budget is not None
    text = preset.budget if request.budget is None else request.budget
    if not text or (not is_asked_for and not is_data_real):
        return None
    budget = settings.parse_budget(text, num_evaluations=preset.num_evaluations)
    if budget is None:
        return None
    if not is_data_real:
        raise PlanError(
            f"--budget {text}: the data set 'synthetic' has nothing to learn; use"
            " another --data, or --budget none"
        )
    _check_timeout(text, budget, request.timeout_sec)
    mode = ScalingMode.STRONG
    if mode not in request.modes:
        mode = ScalingMode.WEAK
    # Peers take steps, and measure nothing of what they learn.
    learning = [name for name in request.backends if catalog.peer(name) is None]
    if not learning:
        return None
    backends = learning if is_asked_for else learning[:1]
    chosen = [c for c in cases if mode in c.modes and c.backend in backends]
    where = ", ".join(f"{case.backend} x{case.num_replicas}" for case in chosen)
    return QualityRuns(
        budget=budget,
        cases=tuple(chosen),
        note=(
            f"quality runs: {where} for {budget} each, {mode.value} scaling; --budget"
            f" {settings.NONE} leaves them out"
        ),
    )


def _check_timeout(text: str, budget: Budget, timeout_sec: float) -> None:
    if budget.unit is not BudgetUnit.SECONDS:
        return
    needed = round(budget.amount * _OVERHEAD_FACTOR + _OVERHEAD_SEC)
    if needed > timeout_sec:
        raise PlanError(
            f"--budget {text} may not end within --timeout {timeout_sec:g} s, with"
            f" start-up and evaluations; use --timeout {needed}s or more"
        )
