"""What a gate measures, from what was requested: repetitions, order, looks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness import catalog
from harness.errors import PlanError
from harness.planning import defaults, design, settings
from results.judging import gate_metrics, quality_gate
from results.records.measuring import GateDesign
from results.records.models import Order
from results.statistics import group_sequential

if TYPE_CHECKING:
    from harness.cli.verbs.gate_request import GateRequest
    from results.judging.gate_metrics import Rule

NUM_STRETCHES = 4
"""Sustained stretches of each case and generation."""


def of_gate(request: GateRequest, rule: Rule) -> GateRequest:
    """Returns what a gate measures: quality only, or none and more generations."""
    if request.program is None:
        warmup = request.num_warmup_steps
        settings.check_counts(request.counts, request.backends, warmup)
    if rule.metric.is_quality:
        return _of_quality_gate(request, rule)
    learned = ["throughput"]
    if request.program is None:
        learned = catalog.judged_metrics(catalog.workload(request.workload))
    for name, value in (
        ("--budget", None if request.program else request.budget),
        ("--quality-repeats", request.num_seeds),
    ):
        if value is not None:
            raise PlanError(
                f"{name} {value} has no effect with --metric {rule.metric.name}: such a"
                " gate has no quality runs; leave it out, or use --metric"
                f" {'|'.join(learned)}"
            )
    if (
        request.repeats is not None
        and request.repeats < group_sequential.FEWEST_GENERATIONS
    ):
        raise PlanError(
            f"--repeats {request.repeats} gives no verdict: one generation says nothing"
            " about the spread between processes; use"
            f" {group_sequential.FEWEST_GENERATIONS} or more"
        )
    request = request.model_copy(update={"budget": "none"})
    takes_turns = request.program is None or request.program.record.is_client
    if rule.metric is gate_metrics.EFFICIENCY:
        _check_efficiency(request)
    if rule.metric in gate_metrics.OF_TURNS and takes_turns:
        return _with_repeats(request, rule)
    # These exist once per process, and are measured best where it is alone.
    if request.order is Order.RELAY and rule.metric.name == gate_metrics.FIRST_STEP:
        raise PlanError(
            f"--order relay with --metric {rule.metric.name}: the processes of a relay"
            " start side by side, so none has the machine to itself until its first"
            " step; leave --order out"
        )
    order = request.order or Order.SEQUENTIAL
    repeats = request.repeats or group_sequential.fewest_to_pass(rule.alpha)
    return request.model_copy(update={"order": order, "repeats": repeats})


def _check_efficiency(request: GateRequest) -> None:
    """Checks that there is an efficiency, of cases that take turns."""
    if request.replicas is not None and len(set(request.replicas)) == 1:
        raise PlanError(
            f"--metric efficiency with --replicas {request.replicas[0]} has no baseline"
            " to scale from; give two numbers or more, such as --replicas 1,2"
        )
    if design.choose_order(request) is not Order.RELAY:
        raise PlanError(
            "--metric efficiency needs cases that take turns (--order relay), and these"
            " run one after another; leave --order and --device out"
        )


def _with_repeats(request: GateRequest, rule: Rule) -> GateRequest:
    """Returns a gate on throughput; one that is measured in sequence does not look."""
    is_relay = design.choose_order(request) is Order.RELAY
    fewest = group_sequential.fewest_to_pass(rule.alpha)
    repeats = request.repeats or (None if is_relay else fewest)
    return request.model_copy(update={"repeats": repeats})


def design_of(request: GateRequest, rule: Rule, baseline: str) -> GateDesign:
    """Returns the record of what a gate judges, and when it looks."""
    is_relay = rule.metric in gate_metrics.OF_TURNS and (
        design.choose_order(request) is Order.RELAY
    )
    return GateDesign(
        metric=rule.metric.name,
        baseline=baseline,
        delta=rule.delta,
        alpha=rule.alpha,
        looks=group_sequential.planned_looks(rule.alpha)
        if is_relay and request.repeats is None
        else (),
        num_stretches=NUM_STRETCHES if is_relay else 0,
        counts=request.counts if request.program is None else (),
    )


def _of_quality_gate(request: GateRequest, rule: Rule) -> GateRequest:
    """Returns a request of quality runs only, with several seeds."""
    name = rule.metric.name
    if request.repeats is not None or request.order is not None:
        option, value = (
            ("--repeats", request.repeats)
            if request.repeats is not None
            else ("--order", request.order.value if request.order else "")
        )
        raise PlanError(
            f"{option} {value} has no effect with --metric {name}: quality runs are not"
            " timed, and run one after the other; use --quality-repeats for the number"
            " of seeds"
        )
    fewest = quality_gate.fewest_seeds(rule.alpha)
    repeats = (
        max(defaults.QUALITY_REPEATS_OF_GATE, fewest)
        if request.num_seeds is None
        else request.num_seeds
    )
    if repeats < fewest:
        raise PlanError(
            f"--quality-repeats {repeats} gives no verdict: so few seeds say too little"
            f" about the spread between runs; use {fewest} or more"
        )
    return request.model_copy(
        update={
            "order": Order.SEQUENTIAL,
            "quality_repeats": repeats,
            "is_quality_only": True,
        }
    )
