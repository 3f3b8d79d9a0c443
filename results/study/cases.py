"""A study for readers: the plan joined with the records in the store."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from results import errors
from results.records import identity, models
from results.study.equivalence import Outcome, is_judged, planned_matches

if TYPE_CHECKING:
    from results.store.study_store import Store, Trial
    from results.study.equivalence import Match


UNFINISHED = "unfinished"
MISSING = "missing"
CORRUPT = "corrupt"
"""States of a planned trial that has no status record; the others are statuses."""
UNMATCHED = "unmatched"
_ENDED_EARLY = {
    models.TrialStatus.FAILED.value,
    models.TrialStatus.TIMEOUT.value,
    models.TrialStatus.OUT_OF_MEMORY.value,
    models.TrialStatus.FAILED_CHECKS.value,
}
"""State of a trial that ended well, and whose replicas do not match one replica."""

Key = tuple[int, int]
"""Identifies a repetition across cases: its index and its seed."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One trial: planned, found in the store, or both."""

    trial_id: str  # Content hash of ``spec``.
    case_id: str  # Content hash of ``spec`` without repetition and seed.
    # Scaling modes that the case serves; empty if the trial is not planned.
    modes: tuple[models.ScalingMode, ...]
    spec: models.TrialSpec  # What the trial runs.
    trial: Trial | None  # Its records, or None.
    # A ``TrialStatus`` value, or one of the states above.
    state: str
    reason: str  # One line saying why it is not ok; empty if it is.
    # Whether every block was beside load: shown where its case has nothing else.
    is_disturbed: bool = False

    @property
    def is_ok(self) -> bool:
        return self.state == models.TrialStatus.OK.value

    @property
    def label(self) -> str:
        """Its state in words."""
        if self.state == UNMATCHED:
            return "not equivalent"
        known = {status.value: status.label for status in models.TrialStatus}
        return known.get(self.state, self.state).replace("_", " ")

    @property
    def is_measured(self) -> bool:
        """Whether it has numbers, be they evidence or not."""
        return self.is_ok or self.is_disturbed

    @property
    def key(self) -> Key:
        """Identifies the repetition, so that cases can be compared in pairs."""
        return self.spec.repetition_index, self.spec.seed

    @property
    def env(self) -> models.Environment | None:
        return None if self.trial is None else self.trial.env

    @property
    def status(self) -> models.StatusRecord | None:
        return None if self.trial is None else self.trial.status

    @property
    def blocks(self) -> tuple[models.Block, ...]:
        """All that were taken, whatever became of the trial."""
        result = None if self.trial is None else self.trial.result
        return () if result is None else result.blocks

    @property
    def result(self) -> models.TrialResult:
        assert self.is_measured
        assert self.trial is not None
        assert self.trial.result is not None
        return self.trial.result


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """All repetitions of one configuration."""

    case_id: str  # Content hash.
    modes: tuple[models.ScalingMode, ...]  # Scaling modes that the case serves.
    entries: tuple[Entry, ...]  # One per repetition, planned order.
    # Whether the width of an interval decided when to stop; it is then widened.
    is_stopped_on_width: bool = False

    @property
    def spec(self) -> models.TrialSpec:
        """The spec of the first repetition; the others differ in index and seed."""
        return self.entries[0].spec

    def spec_without(self, names: set[str]) -> dict[str, Any]:
        """Returns the fields of the spec but some, to find cases that are alike."""
        return self.spec.model_dump(mode="json", exclude=names)

    @functools.cached_property
    def ok_entries(self) -> tuple[Entry, ...]:
        """The repetitions whose numbers are used."""
        return tuple(entry for entry in self.entries if entry.is_ok)

    @functools.cached_property
    def environments(self) -> list[models.Environment]:
        """The machines that the repetitions ran on whose numbers are used."""
        return [entry.env for entry in self.ok_entries if entry.env is not None]

    @property
    def is_disturbed(self) -> bool:
        """Whether it was measured, and beside load only: that is no evidence."""
        return bool(self.measured_entries) and not self.ok_entries

    @functools.cached_property
    def measured_entries(self) -> tuple[Entry, ...]:
        """The repetitions that have numbers, be they evidence or not."""
        return tuple(entry for entry in self.entries if entry.is_measured)

    @property
    def shown_entries(self) -> tuple[Entry, ...]:
        """The repetitions whose numbers are shown: disturbed ones if all are."""
        return self.ok_entries or self.measured_entries

    @property
    def failed_entries(self) -> tuple[Entry, ...]:
        """The repetitions that ended early; of quality runs, the worst outcome."""
        return tuple(entry for entry in self.entries if entry.state in _ENDED_EARLY)

    @property
    def why_unmatched(self) -> str:
        """How its replicas differ from one replica; empty unless they do."""
        return next((e.reason for e in self.entries if e.state == UNMATCHED), "")

    @property
    def is_interleaved(self) -> bool:
        return self.spec.order is models.Order.INTERLEAVED

    @functools.cached_property
    def is_oversubscribed(self) -> bool:
        return any(
            entry.env is not None and entry.env.placement.is_oversubscribed
            for entry in self.entries
        )

    @functools.cached_property
    def label(self) -> str:
        """Backend, replicas and per-replica batch, in words; and another revision."""
        spec = self.spec
        revision = f", revision {spec.revision}" if spec.revision else ""
        stages = spec.devices_per_replica
        devices = f" of {stages} devices" if stages > 1 else ""
        return (
            f"{spec.backend}, {spec.num_replicas} "
            f"{'replica' if spec.num_replicas == 1 else 'replicas'}{devices} x "
            f"{spec.per_replica_batch_size}{revision}"
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Study:
    """All data of a report."""

    plan: models.Plan
    # All planned trials in planned order, then those not planned, by id.
    entries: tuple[Entry, ...]
    problems: tuple[errors.CorruptRecordError, ...]  # Records that cannot be read.
    # Whether N replicas match one, by backend and size, in planned order.
    matches: tuple[Match, ...] = ()

    @property
    def metrics(self) -> dict[str, models.MetricFacts]:
        """What its metrics mean, by name."""
        return {facts.name: facts for facts in self.plan.metrics}

    @property
    def program(self) -> models.Program | None:
        """The program of the user's that was measured, if it is a study of one."""
        if not self.plan.program_code:  # those of peers are the project's own
            return None
        return self.planned[0].spec.program if self.planned else None

    @functools.cached_property
    def planned(self) -> tuple[Entry, ...]:
        """The planned trials."""
        return tuple(entry for entry in self.entries if entry.modes)

    @functools.cached_property
    def environments(self) -> list[models.Environment]:
        """The machines that planned trials were started on."""
        return [entry.env for entry in self.planned if entry.env is not None]

    @functools.cached_property
    def cases(self) -> tuple[Case, ...]:
        """The planned cases of this tree, without quality runs and controls."""
        return self._group(entry for entry in self._timed if not entry.spec.revision)

    @functools.cached_property
    def other_revisions(self) -> tuple[Case, ...]:
        """The planned cases whose code is that of another revision, in order."""
        return self._group(entry for entry in self._timed if entry.spec.revision)

    @property
    def _timed(self) -> Iterator[Entry]:
        return (
            entry
            for entry in self.planned
            if not entry.spec.budget and entry.spec.control is models.Control.NONE
        )

    @functools.cached_property
    def controls(self) -> tuple[Case, ...]:
        """The planned cases that only explain others, in planned order."""
        return self._group(
            entry
            for entry in self.planned
            if entry.spec.control is not models.Control.NONE
        )

    @functools.cached_property
    def quality_runs(self) -> tuple[Case, ...]:
        """The planned cases that train to a budget, in planned order."""
        return self._group(entry for entry in self.planned if entry.spec.budget)

    def _group(self, entries: Iterable[Entry]) -> tuple[Case, ...]:
        groups: dict[str, list[Entry]] = {}
        for entry in entries:
            groups.setdefault(entry.case_id, []).append(entry)
        return tuple(
            Case(
                case_id=case_id,
                modes=group[0].modes,
                entries=tuple(group),
                is_stopped_on_width=self.plan.measuring.is_stopped_on_width,
            )
            for case_id, group in groups.items()
        )

    @functools.cached_property
    def backends(self) -> tuple[str, ...]:
        """The planned backends, in planned order; not those of controls only."""
        return tuple(
            dict.fromkeys(
                entry.spec.backend
                for entry in self.planned
                if entry.spec.control is models.Control.NONE
            )
        )

    @functools.cached_property
    def modes(self) -> tuple[models.ScalingMode, ...]:
        """The planned scaling modes, in planned order."""
        return tuple(
            dict.fromkeys(mode for entry in self.planned for mode in entry.modes)
        )

    @functools.cached_property
    def example_unit(self) -> str:
        """Plural unit of an example, ``examples`` while nothing was measured."""
        units = {
            entry.result.example_unit for entry in self.planned if entry.is_measured
        }
        return units.pop() if len(units) == 1 else "examples"


def entry_of(
    source: models.PlannedTrial | Trial, trial: Trial | None, corrupt: Mapping[str, str]
) -> Entry:
    """Returns a trial, as planned or as found, with its state."""
    trial_id, spec = source.trial_id, source.spec
    state, reason = models.TrialStatus.OK.value, ""
    if trial_id in corrupt:
        state, reason = CORRUPT, corrupt[trial_id]
    elif trial is None:
        state, reason = MISSING, "not started"
    elif trial.status is None:
        state = UNFINISHED
        reason = "started, but has no status: interrupted, or still running"
    elif trial.status.status is not models.TrialStatus.OK:
        state, reason = trial.status.status.value, trial.status.reason
    planned = source if isinstance(source, models.PlannedTrial) else None
    return Entry(
        trial_id=trial_id,
        case_id=planned.case_id if planned else identity.case_id(spec),
        modes=planned.modes if planned else (),
        spec=spec,
        trial=trial,
        state=state,
        reason=reason,
    )


def load_study(store: Store) -> Study:
    """Reads a whole study once; corrupt trials are in ``problems``.

    Raises MissingRecordError or CorruptRecordError of the plan, NewerSchemaError, and
    UnavailableRecordError where the file system does not say what a record holds.
    """
    plan = store.read_plan()
    reading, matched = store.read(), store.equivalence.read()
    trials = {trial.trial_id: trial for trial in reading.trials}
    corrupt = {
        problem.path.parent.name: f"{problem.path.name}: {problem.reason}"
        for problem in reading.problems
    }
    entries = []
    for planned in plan.trials:
        trial = trials.pop(planned.trial_id, None)
        entry = entry_of(planned, trial, corrupt)
        result = None if trial is None else trial.result
        # A gate judges: what was measured beside load is none of its evidence.
        is_shown = (
            plan.measuring.gate is None
            and entry.state == models.TrialStatus.DISCARDED.value
        )
        if is_shown and result is not None and result.rates_beside_load:
            entry = dataclasses.replace(entry, is_disturbed=True)
        entries.append(entry)
    for _, trial in sorted(trials.items()):  # not planned
        entry = entry_of(trial, trial, corrupt)
        reason = entry.reason or "not in the plan"
        entries.append(dataclasses.replace(entry, reason=reason))
    matches = planned_matches(plan, {trial.trial_id: trial for trial in matched.trials})
    differs = {
        (match.backend, match.num_replicas): match.reason
        for match in matches
        if match.outcome is Outcome.DIFFERS
    }
    for index, entry in enumerate(entries):
        reason = differs.get((entry.spec.backend, entry.spec.num_replicas), "")
        if reason and entry.is_measured and is_judged(entry.spec):
            entries[index] = dataclasses.replace(
                entry, state=UNMATCHED, reason=reason, is_disturbed=False
            )
    return Study(
        plan=plan,
        entries=tuple(entries),
        problems=(*reading.problems, *matched.problems),
        matches=matches,
    )


def equivalence_entries(store: Store) -> list[Entry]:
    """Returns the trials that match N replicas with one, of ``Store.matching``."""
    return [entry_of(trial, trial, {}) for trial in store.read().trials]


def check_mode(case: Case, baseline: Case, mode: models.ScalingMode) -> None:
    """Checks that a case keeps what its scaling mode keeps fixed."""
    name = {
        models.ScalingMode.WEAK: "per_replica_batch_size",
        models.ScalingMode.STRONG: "global_batch_size",
    }[mode]
    here, there = getattr(case.spec, name), getattr(baseline.spec, name)
    if here != there:
        raise errors.ResultsError(
            f"case {case.label!r} is planned as {mode.value} scaling with {name} "
            f"{here}, its baseline {baseline.label!r} has {there}; {mode.value} "
            f"scaling keeps {name} fixed: plan the sweep again"
        )


def by_mode_and_size(study: Study) -> dict[tuple[str, models.ScalingMode, int], Case]:
    """Returns every case by backend, scaling mode and number of replicas."""
    index: dict[tuple[str, models.ScalingMode, int], Case] = {}
    for case in study.cases:
        for mode in case.modes:
            key = (case.spec.backend, mode, case.spec.num_replicas)
            if key in index:
                raise errors.ResultsError(
                    f"the plan of study {study.plan.study!r} has two cases for backend "
                    f"{key[0]!r}, {mode.value} scaling, {key[2]} replicas; a study "
                    "varies backends, modes and replicas only: use one per setting"
                )
            index[key] = case
    return index
