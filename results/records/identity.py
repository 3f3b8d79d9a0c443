"""Ids of records from their content, and checks that records belong together.

An id is the BLAKE2b of canonical JSON, without ``schema_version``, which says how a
record is stored, and without fields of later versions at their defaults: trials keep
the ids that they had before.
"""

from __future__ import annotations

import collections
import hashlib
import json
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from results import errors
from results.records.models import Order, PlannedTrial, TrialStatus

if TYPE_CHECKING:
    import pathlib

    from results.records.models import (
        Plan,
        ScalingMode,
        StatusRecord,
        TrialResult,
        TrialSpec,
    )

ID_LENGTH = 20
"""Hexadecimal characters of an id: 80 bits, no collision below about 10**12 trials."""

_ADDED = (
    *("budget", "order", "control", "allocator", "variables", "revision", "program"),
    *("plugins", "steps_per_sync"),
)


def digest(value: Any) -> str:
    """Returns ``ID_LENGTH`` hexadecimal characters, a digest of canonical JSON."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    content = text.encode("ascii")
    return hashlib.blake2b(content, digest_size=ID_LENGTH // 2).hexdigest()


def ids(spec: TrialSpec) -> tuple[str, str]:
    """Returns the ids of a trial and of its case, without repetition and seed."""
    content = spec.model_dump(mode="json", exclude={"schema_version"})
    for name in _ADDED:
        field = type(spec).model_fields[name]
        if getattr(spec, name) == field.get_default(call_default_factory=True):
            del content[name]
    if spec.program is not None and not spec.program.counts:
        del content["program"]["counts"]
    of_trial = {name: content.pop(name) for name in ("repetition_index", "seed")}
    return digest(content | of_trial), digest(content)


def trial_id(spec: TrialSpec) -> str:
    """Returns the id of a trial, which its folder in a study has as its name."""
    return ids(spec)[0]


def case_id(spec: TrialSpec) -> str:
    """Returns the id of a trial's case: of its spec without repetition and seed."""
    return ids(spec)[1]


def planned_trial(spec: TrialSpec, modes: Iterable[ScalingMode]) -> PlannedTrial:
    """Returns the trial of a plan that runs a spec, with the ids of its content.

    ``modes`` are the scaling modes that its case serves.
    """
    own_id, of_case = ids(spec)
    return PlannedTrial(trial_id=own_id, case_id=of_case, modes=tuple(modes), spec=spec)


def check_plan(path: pathlib.Path, plan: Plan) -> None:
    """Checks that a plan's ids match the specs, and that each trial occurs once."""
    seen: set[str] = set()
    for number, trial in enumerate(plan.trials):
        named = trial.trial_id, trial.case_id
        content = named if trial.spec.is_abridged else ids(trial.spec)
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
    own_id = folder.name
    content_id = own_id if spec.is_abridged else trial_id(spec)
    is_ok = status is not None and status.status is TrialStatus.OK

    def complaints() -> Iterator[tuple[str, str]]:
        if content_id != own_id:
            named = f"the folder is named {own_id!r}"
            yield "spec", f"content has id {content_id!r}, {named}"
        for name, record in (("status", status), ("result", result)):
            if record is not None and record.trial_id != own_id:
                yield name, f"belongs to trial {record.trial_id!r}, lies in {own_id!r}"
        if result is not None:
            for wrong in _contradictions(spec, result, is_ok=is_ok):
                yield "result", wrong
        elif is_ok:
            yield "result", "missing, though the status is 'ok'"

    for name, wrong in complaints():
        raise errors.CorruptRecordError(folder / f"{name}.json", wrong)


def _contradictions(
    spec: TrialSpec, result: TrialResult, *, is_ok: bool
) -> Iterator[str]:
    """Yields where the observations of a trial do not match its spec, or each other."""
    readings, num_steps = result.readings, spec.num_measured_steps
    if spec.has_readings == (readings is None):
        yield "readings are there exactly if the trial is of a program that prints them"
    if readings is not None:
        ranks = ((*of.warmup_step_time_sec, *of.step_time_sec) for of in result.ranks)
        count = sum(map(len, ranks))
        if count != readings.num_readings:
            yield f"has {count} readings, and says {readings.num_readings}"
    if spec.has_readings:  # a short output can have fewer than were asked for
        num_steps = result.num_measured_steps
    elif num_steps is None:
        num_steps = sum(block.num_steps for block in result.blocks)
    counts = [
        ("global_batch_size", result.global_batch_size, spec.global_batch_size),
        ("num_measured_steps", result.num_measured_steps, num_steps),
    ]
    counts += [
        (f"the number of measured steps of rank {rank.rank}", count, num_steps)
        for rank in result.ranks
        if (count := len(rank.step_time_sec)) != num_steps
    ]
    for name, count, wanted in counts:
        if count != wanted:
            yield f"{name} is {count}, the spec of the trial has {wanted}"
    yield from _contradictions_of_blocks(spec, result)
    if is_ok and spec.budget is not None and not result.curve:
        yield "the curve is empty, though the trial is a quality run that is 'ok'"


def _contradictions_of_blocks(spec: TrialSpec, result: TrialResult) -> Iterator[str]:
    blocks = result.blocks
    if (spec.order is Order.INTERLEAVED) != bool(blocks):
        yield f"has {len(blocks)} blocks, the order is {spec.order.label!r}"
    attempts = collections.Counter((b.round_index, b.attempt) for b in blocks)
    for (number, attempt), count in attempts.items():
        if count > 1:
            yield f"attempt {attempt} of round {number} occurs twice"
    for block in blocks:
        if block.end_ns < block.start_ns:
            yield f"the block of round {block.round_index} ends before it starts"
    rounds = [block.round_index for block in blocks if block.is_valid]
    if len(set(rounds)) < len(rounds):
        yield "a round has two valid blocks"
