"""Checks that records match: a plan and its specs, a trial and its observations.

Each single record is checked by its model; figures are computed only after both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from results import errors
from results.records import identity
from results.records.models import Order, TrialStatus

if TYPE_CHECKING:
    import pathlib

    from results.records.models import Plan, StatusRecord, TrialResult, TrialSpec


def check_plan(path: pathlib.Path, plan: Plan) -> None:
    """Checks that a plan's ids match the specs, and that each trial occurs once."""
    seen: set[str] = set()
    for number, trial in enumerate(plan.trials):
        named = trial.trial_id, trial.case_id
        content = named if trial.spec.is_abridged else identity.ids(trial.spec)
        if named != content:
            raise errors.CorruptRecordError(
                path,
                f"trial {number} is named {named[0]!r} of case {named[1]!r}, its "
                f"content has the ids {content[0]!r} and {content[1]!r}",
            )
        if trial.trial_id in seen:
            raise errors.CorruptRecordError(
                path,
                f"the plan of study {plan.study!r} names trial {trial.trial_id!r} "
                "twice; every trial must differ in its spec",
            )
        seen.add(trial.trial_id)


def check_trial(
    folder: pathlib.Path,
    spec: TrialSpec,
    status: StatusRecord | None,
    result: TrialResult | None,
) -> None:
    """Checks that records belong to the trial of a folder, and to each other."""
    trial_id = folder.name
    content_id = trial_id if spec.is_abridged else identity.trial_id(spec)
    if content_id != trial_id:
        raise errors.CorruptRecordError(
            folder / "spec.json",
            f"content has id {content_id!r}, the folder is named {trial_id!r}",
        )
    for name, record in (("status", status), ("result", result)):
        if record is not None and record.trial_id != trial_id:
            raise errors.CorruptRecordError(
                folder / f"{name}.json",
                f"belongs to trial {record.trial_id!r}, lies in {trial_id!r}",
            )
    if status is not None and status.status is TrialStatus.OK and result is None:
        raise errors.CorruptRecordError(
            folder / "result.json", "missing, though the status is 'ok'"
        )
    if result is not None:
        _check_result(folder / "result.json", spec, result)
        if status is not None and status.status is TrialStatus.OK:
            _check_curve(folder / "result.json", spec, result)


def _check_result(path: pathlib.Path, spec: TrialSpec, result: TrialResult) -> None:
    """Checks that the observations of a trial match its spec."""
    num_steps = spec.num_measured_steps
    if num_steps is None:
        num_steps = sum(turn.num_steps for turn in result.turns)
    if spec.has_readings:  # a short output can have fewer than were asked for
        num_steps = result.num_measured_steps
    _check_readings(path, spec, result)
    pairs = [
        ("global_batch_size", result.global_batch_size, spec.global_batch_size),
        ("num_measured_steps", result.num_measured_steps, num_steps),
    ]
    pairs += [
        (f"the number of measured steps of rank {rank.rank}", found, num_steps)
        for rank in result.ranks
        if (found := len(rank.step_time_sec)) != num_steps
    ]
    for name, found, wanted in pairs:
        if found != wanted:
            raise errors.CorruptRecordError(
                path, f"{name} is {found}, the spec of the trial has {wanted}"
            )
    _check_turns(path, spec, result)


def _check_readings(path: pathlib.Path, spec: TrialSpec, result: TrialResult) -> None:
    """Checks that a program that prints numbers has readings, and nothing else has."""
    if spec.has_readings == (result.readings is None):
        raise errors.CorruptRecordError(
            path,
            "readings are there exactly if the trial is of a program that prints them",
        )
    if result.readings is None:
        return
    found = sum(
        len(rank.warmup_step_time_sec) + len(rank.step_time_sec)
        for rank in result.ranks
    )
    if found != result.readings.num_readings:
        raise errors.CorruptRecordError(
            path, f"has {found} readings, and says {result.readings.num_readings}"
        )


def _check_turns(path: pathlib.Path, spec: TrialSpec, result: TrialResult) -> None:
    """Checks that the turns are those of a relay, each round valid at most once."""
    is_relay = spec.order is Order.RELAY
    if is_relay != bool(result.turns):
        raise errors.CorruptRecordError(
            path, f"has {len(result.turns)} blocks, the order is {spec.order.label!r}"
        )
    seen: set[tuple[int, int]] = set()
    for turn in result.turns:
        if turn.end_ns < turn.start_ns:
            raise errors.CorruptRecordError(
                path, f"the block of round {turn.round_index} ends before it starts"
            )
        name = turn.round_index, turn.attempt
        if name in seen:
            raise errors.CorruptRecordError(
                path, f"attempt {name[1]} of round {name[0]} occurs twice"
            )
        seen.add(name)
    rounds = [turn.round_index for turn in result.turns if turn.is_valid]
    if len(set(rounds)) < len(rounds):
        raise errors.CorruptRecordError(path, "a round has two valid blocks")


def _check_curve(path: pathlib.Path, spec: TrialSpec, result: TrialResult) -> None:
    if spec.budget is not None and not result.curve:
        raise errors.CorruptRecordError(
            path, "the curve is empty, though the trial is a quality run that is 'ok'"
        )
