"""Ids of records from their content, and checks that records belong together.

An id is the BLAKE2b of canonical JSON, without ``schema_version``, which says how a
record is stored, and without fields of later versions at their defaults: trials keep
the ids that they had before.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

from results import errors
from results.records.measuring import StepSettings
from results.records.models import Order, TrialStatus

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Iterator

    from results.records.models import Plan, StatusRecord, TrialResult, TrialSpec

ID_LENGTH = 20
"""Hexadecimal characters of an id: 80 bits, no collision below about 10**12 trials."""

_NOT_IDENTITY = {"schema_version"}
_ADDED = (
    "budget",
    "order",
    "control",
    "allocator",
    "variables",
    "revision",
    "program",
    "plugins",
    *StepSettings.model_fields,
)
_ADDED_OF_PROGRAM = ("counts",)
_NOT_CASE = {"schema_version", "repetition_index", "seed"}


def canonical_json(value: Any) -> str:
    """Returns the canonical JSON of ``value``: sorted keys, compact, ASCII."""
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False
    )


def digest(value: Any) -> str:
    """Returns ``ID_LENGTH`` hexadecimal characters, a digest of ``value``."""
    text = canonical_json(value).encode("ascii")
    return hashlib.blake2b(text, digest_size=ID_LENGTH // 2).hexdigest()


def _content(spec: TrialSpec, exclude: set[str]) -> dict[str, Any]:
    fields = spec.model_dump(mode="json", exclude=exclude)
    defaults = type(spec).model_fields
    for name in _ADDED:
        if getattr(spec, name) == defaults[name].get_default(call_default_factory=True):
            del fields[name]
    for name in _ADDED_OF_PROGRAM:
        if spec.program is not None and not getattr(spec.program, name):
            del fields["program"][name]
    return fields


def ids(spec: TrialSpec) -> tuple[str, str]:
    """Returns the ids of a trial and of its case, serializing the spec once."""
    content = _content(spec, _NOT_IDENTITY)
    case = {key: value for key, value in content.items() if key not in _NOT_CASE}
    return digest(content), digest(case)


def trial_id(spec: TrialSpec) -> str:
    """Returns the id of one trial: the digest of its whole spec."""
    return digest(_content(spec, _NOT_IDENTITY))


def case_id(spec: TrialSpec) -> str:
    """Returns the id of a case: the digest of the spec without repetition and seed."""
    return digest(_content(spec, _NOT_CASE))


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
    for name, wrong in _complaints(folder.name, spec, status, result):
        raise errors.CorruptRecordError(folder / f"{name}.json", wrong)


def _complaints(
    own_id: str,
    spec: TrialSpec,
    status: StatusRecord | None,
    result: TrialResult | None,
) -> Iterator[tuple[str, str]]:
    """Yields which record is wrong, and why."""
    content_id = own_id if spec.is_abridged else trial_id(spec)
    if content_id != own_id:
        yield "spec", f"content has id {content_id!r}, the folder is named {own_id!r}"
    for name, record in (("status", status), ("result", result)):
        if record is not None and record.trial_id != own_id:
            yield name, f"belongs to trial {record.trial_id!r}, lies in {own_id!r}"
    is_ok = status is not None and status.status is TrialStatus.OK
    if result is None:
        if is_ok:
            yield "result", "missing, though the status is 'ok'"
        return
    for wrong in _complaints_of_result(spec, result):
        yield "result", wrong
    if is_ok and spec.budget is not None and not result.curve:
        yield (
            "result",
            "the curve is empty, though the trial is a quality run that is 'ok'",
        )


def _complaints_of_result(spec: TrialSpec, result: TrialResult) -> Iterator[str]:
    """Yields where the observations of a trial do not match its spec."""
    if spec.has_readings == (result.readings is None):
        yield "readings are there exactly if the trial is of a program that prints them"
    if result.readings is not None:
        count = sum(
            len(rank.warmup_step_time_sec) + len(rank.step_time_sec)
            for rank in result.ranks
        )
        if count != result.readings.num_readings:
            yield f"has {count} readings, and says {result.readings.num_readings}"
    num_steps = spec.num_measured_steps
    if spec.has_readings:  # a short output can have fewer than were asked for
        num_steps = result.num_measured_steps
    elif num_steps is None:
        num_steps = sum(block.num_steps for block in result.blocks)
    pairs = [
        ("global_batch_size", result.global_batch_size, spec.global_batch_size),
        ("num_measured_steps", result.num_measured_steps, num_steps),
    ]
    pairs += [
        (f"the number of measured steps of rank {rank.rank}", count, num_steps)
        for rank in result.ranks
        if (count := len(rank.step_time_sec)) != num_steps
    ]
    for name, count, wanted in pairs:
        if count != wanted:
            yield f"{name} is {count}, the spec of the trial has {wanted}"
    yield from _complaints_of_blocks(spec, result)


def _complaints_of_blocks(spec: TrialSpec, result: TrialResult) -> Iterator[str]:
    """Yields why blocks are not as they are interleaved, a round valid at most once."""
    if (spec.order is Order.INTERLEAVED) != bool(result.blocks):
        yield f"has {len(result.blocks)} blocks, the order is {spec.order.label!r}"
    seen: set[tuple[int, int]] = set()
    for block in result.blocks:
        if block.end_ns < block.start_ns:
            yield f"the block of round {block.round_index} ends before it starts"
        name = block.round_index, block.attempt
        if name in seen:
            yield f"attempt {block.attempt} of round {block.round_index} occurs twice"
        seen.add(name)
    rounds = [block.round_index for block in result.blocks if block.is_valid]
    if len(set(rounds)) < len(rounds):
        yield "a round has two valid blocks"
