"""One plan from the plans of several stores of the same study."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from results.errors import MergeError
from results.records import identity
from results.records.models import Control, Matching, ScalingMode
from results.records.settings import StepSettings

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from results.records.models import Plan, PlannedTrial

# What trials of one study have in common; the others are what a study compares.
_SAME = (
    "workload",
    "workload_version",
    "preset",
    "data",
    "device",
    "cores_per_replica",
    "num_warmup_steps",
    *StepSettings.model_fields,
    "allocator",
    "variables",
    "options",
)
_SAME_OF_TIMED = ("num_measured_steps", "order", "is_evaluated")
_SHARD = re.compile(r"-shard-\d+-of-\d+$")  # as harness/planning/shards.py names them
_FIXED = {
    ScalingMode.WEAK: "per_replica_batch_size",
    ScalingMode.STRONG: "global_batch_size",
}


def merged(plans: Mapping[str, Plan]) -> Plan:
    """Returns the plan with the trials of all; the same for any order of them.

    What only describes the request, such as the command, is that of the plan that was
    made first. The baseline has the fewest replicas of any plan.

    Args:
      plans: By the name of the store, for messages.

    Raises:
      MergeError: They are not of one study; names two stores and what differs.
    """
    ordered = sorted(plans.items(), key=lambda item: _age(item[1]))
    first_store, first = ordered[0]
    for store, plan in ordered[1:]:
        _check_same(first_store, first, store, plan)
    trials: dict[str, PlannedTrial] = {}
    for _, plan in ordered:
        _add(trials, plan.trials)
    return first.model_copy(
        update={
            "study": base_name(first.study),
            "baseline_num_replicas": min(p.baseline_num_replicas for _, p in ordered),
            "repeats": max(_num_repetitions(trials.values()), *_repeats(ordered)),
            "timeout_sec": max(plan.timeout_sec for _, plan in ordered),
            "matching": _matching([plan for _, plan in ordered]),
            "trials": tuple(trials.values()),
        }
    )


def base_name(study: str) -> str:
    """Returns the name of a study without the part of it that a shard has.

    The jobs of an array measure shards, each in a study of its own.
    """
    return _SHARD.sub("", study)


def _age(plan: Plan) -> tuple[str, str]:
    return plan.created_at, identity.canonical_json(plan.model_dump(mode="json"))


def _repeats(plans: Iterable[tuple[str, Plan]]) -> list[int]:
    return [plan.repeats for _, plan in plans]


def _num_repetitions(trials: Iterable[PlannedTrial]) -> int:
    """Counts the repetitions of all plans together, of which a shard has only some."""
    return len({t.spec.repetition_index for t in trials if t.spec.budget is None})


def _add(trials: dict[str, PlannedTrial], more: Sequence[PlannedTrial]) -> None:
    for trial in more:
        known = trials.get(trial.trial_id)
        modes = trial.modes if known is None else (*known.modes, *trial.modes)
        ordered = tuple(mode for mode in ScalingMode if mode in modes)
        trials[trial.trial_id] = trial.model_copy(update={"modes": ordered})


def _matching(plans: Sequence[Plan]) -> Matching | None:
    found = [plan.matching for plan in plans if plan.matching is not None]
    if not found:
        return None
    trials: dict[str, PlannedTrial] = {}
    not_checked: dict[str, str] = {}
    remarks: dict[str, str] = {}
    for matching in reversed(found):  # the first plan has the last word
        not_checked.update(matching.not_checked)
        remarks.update(matching.remarks)
    for matching in found:
        _add(trials, matching.trials)
    matched = {trial.spec.backend for trial in trials.values()}
    return Matching(
        trials=tuple(trials.values()),
        not_checked={k: v for k, v in not_checked.items() if k not in matched},
        remarks=remarks,
    )


def _check_same(first_store: str, first: Plan, store: str, plan: Plan) -> None:
    """Checks that two plans are parts of one study.

    Raises:
      MergeError: Names the first setting that differs.
    """
    if base_name(first.study) != base_name(plan.study):
        raise MergeError(
            f"{first_store!r} is of study {first.study!r}, {store!r} is of study"
            f" {plan.study!r}: only stores of one study are merged; compare studies"
            " with 'compare' or 'report'"
        )
    mine, others = _settings(first), _settings(plan)
    for name in sorted(set(mine) & set(others)):
        if mine[name] != others[name]:
            raise MergeError(
                f"study {plan.study!r} has {name} {mine[name]} in {first_store!r},"
                f" {others[name]} in {store!r}: these are two studies under one name;"
                " measure both parts with the same settings and the same code"
            )


def _settings(plan: Plan) -> dict[str, Any]:
    """What is the same in all trials of a study, as far as this part of it has it."""
    found: dict[str, Any] = {
        "seed": plan.seed,
        "the primary contrast": plan.measuring.primary and plan.measuring.primary.text,
    }
    for trial in plan.trials:
        spec = trial.spec
        found.update({name: _shown(getattr(spec, name)) for name in _SAME})
        code = f"the code of {spec.backend}"
        if spec.revision:
            code += f" at revision {spec.revision}"
        found[code] = spec.code_digest
        if spec.budget is not None:
            found["budget"] = str(spec.budget)
            continue
        if spec.control is Control.MATCH:
            continue
        found.update({name: _shown(getattr(spec, name)) for name in _SAME_OF_TIMED})
        for mode in trial.modes:
            field = _FIXED[mode]
            found[f"{field} of {mode.value} scaling"] = getattr(spec, field)
    return found


def _shown(value: Any) -> str:
    return repr(getattr(value, "value", value))
