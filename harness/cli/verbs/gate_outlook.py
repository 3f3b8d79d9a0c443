"""``gate --dry-run``: what a gate would find, in the time that it has."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import click

from harness.cli import commands, exit_codes
from harness.errors import PlanError
from harness.planning import defaults
from reports.words.judging import judgement
from results.judging import gate_metrics
from results.judging import power as power_module
from results.statistics import group_sequential

if TYPE_CHECKING:
    from harness.cli.verb import Call
    from harness.cli.verbs.gate_request import GateRequest
    from harness.planning.plan import PlannedSweep
    from results.judging.gate_metrics import Rule
    from results.study.cases import Study

USUAL_SPREAD: Final = 0.03
"""Standard deviation of a log ratio between generations, as on two shared cores."""


def show(request: GateRequest, call: Call, rule: Rule, stored: Study | None) -> int:
    """Prints the trials of one side, and how often such a gate gives each verdict."""
    if rule.metric not in gate_metrics.OF_TURNS:
        raise PlanError(
            f"--dry-run with --metric {rule.metric.name}: only gates on throughput are"
            " simulated; leave --metric out"
        )
    planned: list[PlannedSweep] = []
    code = commands.sweep(request, call, check=planned.append)
    minutes_in_all = (
        defaults.MINUTES_OF_GATE if request.minutes is None else request.minutes
    )
    spread, source = USUAL_SPREAD, "usual on two shared cores"
    each = defaults.MINUTES / defaults.GENERATIONS
    if stored is not None:
        spread, source = _spread_of(stored)
        each = _minutes_per_generation(stored) or each
    number = request.repeats or math.floor(minutes_in_all / each + 1e-9)
    if number < group_sequential.FEWEST_GENERATIONS:
        needed = group_sequential.FEWEST_GENERATIONS * each
        raise PlanError(
            f"--minutes {minutes_in_all:g} is time for {number} generation(s) of"
            f" {each:.1f} min, but a verdict needs"
            f" {group_sequential.FEWEST_GENERATIONS} or more;"
            f" use --minutes {math.ceil(needed)} or more"
        )
    table = judgement.calculate(
        spread,
        power_module.design(
            delta=rule.delta,
            alpha=rule.alpha,
            num_generations=request.repeats,
            most=number,
        ),
        source=source,
        num_cases=len({trial.case_id for trial in planned[0].trials}),
        minutes_per_generation=each,
    )
    click.echo(judgement.power_text(table))
    return code or exit_codes.OK


def _minutes_per_generation(study: Study) -> float:
    """Returns how long the timed trials of a generation took, on average."""
    used_sec = sum(
        entry.trial.status.duration_sec
        for entry in study.planned
        if not entry.spec.budget
        and entry.trial is not None
        and entry.trial.status is not None
    )
    return used_sec / 60 / study.plan.repeats


def _spread_of(study: Study) -> tuple[float, str]:
    """Returns the spread of the primary contrast, and its description."""
    name, primary = study.plan.study, study.plan.measuring.primary
    if primary is None:
        raise PlanError(
            f"study {name!r} has no primary contrast, so it has no spread between"
            " generations; measure two backends or replica counts"
        )
    cases = {case.case_id: case for case in (*study.cases, *study.other_revisions)}
    ids = (primary.first_case_id, primary.second_case_id)
    missing = [case_id for case_id in ids if case_id not in cases]
    if missing:
        raise PlanError(
            f"study {name!r} has no case {missing[0]!r}, which its primary contrast"
            " names: its plan is not its own; restore it from a copy"
        )
    first, second = (cases[case_id] for case_id in ids)
    logs = gate_metrics.log_ratios(first, second, gate_metrics.THROUGHPUT)
    if len(logs) < group_sequential.FEWEST_GENERATIONS:
        raise PlanError(
            f"study {name!r} has {len(logs)} generation(s) of {primary.text}, but a"
            f" spread needs {group_sequential.FEWEST_GENERATIONS} or more; measure more"
            " --repeats"
        )
    mean = math.fsum(logs) / len(logs)
    variance = math.fsum((log - mean) ** 2 for log in logs) / (len(logs) - 1)
    return math.sqrt(variance), f"{primary.text}; {len(logs)} generations of {name}"
