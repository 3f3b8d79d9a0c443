"""What a gate measures: a sweep of two sides, and the rule that judges them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from harness import catalog
from harness.cli.host_options import HostRequest
from harness.cli.shared_options import (
    DEFAULT_ALPHA,
    DEFAULT_METRIC,
    JUDGING,
    Alpha,
    IsDifferentAllowed,
)
from harness.cli.verbs.sweep_verb import RunRequest
from harness.errors import PlanError
from harness.options import kinds
from harness.options.durations import duration
from harness.options.notation import NAMES, PERCENTAGE
from harness.options.option import Option
from harness.planning import defaults, design
from harness.planning.program_request import OWN
from harness.planning.request import DESIGN, MEASURED, STUDY, Count
from results.figures import trial_metrics
from results.judging import gate_metrics, quality_gate
from results.judging.gate_metrics import Rule
from results.records.measuring import GateDesign
from results.records.models import Order
from results.statistics import group_sequential, judge

if TYPE_CHECKING:
    from collections.abc import Collection

NUM_STRETCHES = 4
"""Sustained stretches of each case and generation."""


def make_rule(*, workload: str, metric: str, delta: float | None, alpha: float) -> Rule:
    """Returns a checked rule.

    Args:
      workload: Whose metrics are known, besides those of speed and memory; empty for a
        program of the user's.
      metric: The name of one of them.
      delta: The loss that matters; None for the tolerance of the metric.
      alpha: The accepted probability of passing it.

    Raises:
      PlanError: The workload is unknown.
      ResultsError: The metric is unknown, or a number is out of range.
    """
    declared = catalog.metrics(catalog.workload(workload)) if workload else ()
    of = gate_metrics.metric_of_gate(metric, declared)
    return Rule(metric=of, delta=of.tolerance if delta is None else delta, alpha=alpha)


def _of_plugins() -> str:
    """Says which metrics installed packages add; imports none."""
    names = trial_metrics.names()
    return f", {', '.join(f'`{name}`' for name in names)} (plugins)" if names else ""


def _learnable() -> str:
    """Says which metrics of quality a gate judges, by workload."""
    return "; ".join(
        f"{', '.join(f'`{of}`' for of in catalog.judged_metrics(info))} ({name})"
        for name, info in catalog.WORKLOADS.items()
    )


class GateRequest(RunRequest):
    """A sweep of two sides on this machine, and how they are judged."""

    not_options = frozenset(
        {
            "controls",
            "efficiency_target",
            "target",
            "is_evaluated",
            "quality_repeats",
            "is_json",
            "retry",
            "are_checkpoints_kept",
            "is_dry_run",
            "vary",
            *HostRequest.model_fields,
        }
    )

    retry: Literal["failed"] | None = "failed"
    backends: Annotated[
        tuple[str, ...],
        Option(
            group=MEASURED,
            kind=NAMES,
            help="Comma-separated names; no peer is measured unless it is named.",
        ),
    ] = defaults.BACKENDS_OF_GATE
    repeats: Annotated[
        Count | None,
        Option(
            group=DESIGN,
            help="Exactly so many generations, and one look at the end.",
            default="a relay looks after"
            f" {', '.join(map(str, group_sequential.LOOKS))}, and ends at the first"
            f" clear verdict; {defaults.GENERATIONS} in sequence",
        ),
    ] = None
    minutes: Annotated[
        float | None,
        Option(
            group=DESIGN,
            kind=duration("min", unit="min"),
            help="The most time for a relay, start-up included; a bare number is"
            " minutes.",
            default=f"`{defaults.MINUTES_OF_GATE:g}min`; `{defaults.MINUTES:g}min` with"
            " `--repeats`",
        ),
    ] = None
    is_equal_measured: Annotated[
        bool,
        Option(
            group=JUDGING,
            name="measure-equal",
            help="Measure also where the code of both sides is the same, to see how"
            " often the gate itself errs.",
        ),
    ] = False
    baseline_name: Annotated[
        str | None,
        Option(
            group=JUDGING,
            name="baseline",
            metavar="REV|STUDY",
            help="A named baseline, a study, or a git revision, in this order.",
            default="the baseline named `default`",
        ),
    ] = None
    bisect: Annotated[
        tuple[str, ...] | None,
        Option(
            group=JUDGING,
            kind=kinds.RANGE_OF_COMMITS,
            help="With `--command`, in place of `--baseline`: find the first commit"
            " after GOOD, up to BAD, that is worse than GOOD, at one error rate over"
            " all steps.",
        ),
    ] = None
    delta: Annotated[
        float | None,
        Option(
            group=JUDGING,
            kind=PERCENTAGE,
            help="The slowdown, or loss, that matters.",
            default="the tolerance of the metric: 5% unless its workload declares"
            " another",
        ),
    ] = None
    alpha: Alpha = DEFAULT_ALPHA
    metric: Annotated[
        str,
        Option(
            group=JUDGING,
            metavar="NAME",
            help=f"`throughput`, `efficiency` (beside a revision),"
            f" `time_to_first_step`, `peak_memory`{_of_plugins()}; or what is learned:"
            f" {_learnable()}. With `--command`: `NAME=PATTERN`, as in"
            " `sweep`.",
        ),
    ] = DEFAULT_METRIC
    setup: Annotated[
        str | None,
        Option(
            group=OWN,
            help="Shell command that prepares each of the two revisions of your"
            " repository, once, such as `uv sync`.",
        ),
    ] = None
    num_seeds: Annotated[
        Count | None,
        Option(
            group=JUDGING,
            name="quality-repeats",
            help="Quality runs of each case, with different seeds, for a metric of"
            " quality.",
            default=f"{defaults.QUALITY_REPEATS_OF_GATE}",
        ),
    ] = None
    is_different_allowed: IsDifferentAllowed = False
    form: Annotated[
        Literal["text", "junit", "github", "markdown", "json"],
        Option(
            group=JUDGING,
            name="format",
            help="How the result is written to stdout; `github`: annotations.",
        ),
    ] = "text"
    files: Annotated[
        tuple[str, ...],
        Option(
            group=JUDGING,
            name="write",
            kind=kinds.TEXTS,
            metavar="FORMAT=FILE",
            help="Also write the result into a file, in a format of `--format`; can be"
            " repeated.",
            default="none",
        ),
    ] = ()
    study: Annotated[
        str | None,
        Option(
            group=STUDY,
            metavar="NAME",
            help="Directory of the gate's study.",
            default="`gate-<workload>-<preset>-<digest>`",
        ),
    ] = None


def files_of(request: GateRequest, forms: Collection[str]) -> dict[Path, str]:
    """Returns the formats of the files that the result is written into.

    Args:
      request: As it was given.
      forms: All formats.

    Raises:
      PlanError: One is not FORMAT=FILE, or its folder does not exist.
    """
    found = {}
    for text in request.files:
        form, equals, name = text.partition("=")
        if form not in forms or not equals or not name:
            raise PlanError(
                f"--write {text!r} is not FORMAT=FILE; use one of {', '.join(forms)},"
                " such as --write junit=gate.xml"
            )
        path = Path(name)
        if not path.absolute().parent.is_dir() or path.is_dir():
            raise PlanError(
                f"--write {text!r}: {name!r} cannot be a file, since"
                + (" it is a folder" if path.is_dir() else " its folder does not exist")
                + "; choose another, or make the folder"
            )
        found[path] = form
    return found


def of_gate(request: GateRequest, rule: Rule) -> GateRequest:
    """Returns what a gate measures: quality only, or none and more generations.

    Raises:
      PlanError: There are too few generations, or an option has no effect.
    """
    if rule.metric.is_quality:
        return _of_quality_gate(request, rule)
    learned = ["throughput"]
    if request.program is None:
        learned = catalog.judged_metrics(catalog.workload(request.workload))
    for name, value in (
        ("--budget", None if request.program else request.budget),
        ("--evaluations", request.num_evaluations),
        ("--quality-repeats", request.num_seeds),
    ):
        if value is not None:
            raise PlanError(
                f"{name} {value} has no effect with --metric {rule.metric.name}: such a"
                " gate has no quality runs; leave it out, or use --metric"
                f" {'|'.join(learned)}"
            )
    if request.repeats is not None and request.repeats < judge.FEWEST_GENERATIONS:
        raise PlanError(
            f"--repeats {request.repeats} gives no verdict: one generation says nothing"
            f" about the spread between processes; use {judge.FEWEST_GENERATIONS} or"
            " more"
        )
    request = request.model_copy(update={"budget": "none", "is_evaluated": False})
    takes_turns = request.program is None or request.program.record.takes_turns
    if rule.metric is gate_metrics.EFFICIENCY:
        _check_efficiency(request)
    if rule.metric in gate_metrics.OF_TURNS and takes_turns:
        return _with_repeats(request)
    # These exist once per process, and are measured best where it is alone.
    if request.order is Order.RELAY and rule.metric.name == gate_metrics.FIRST_STEP:
        raise PlanError(
            f"--order relay with --metric {rule.metric.name}: the processes of a relay"
            " start side by side, so none has the machine to itself until its first"
            " step; leave --order out"
        )
    order = request.order or Order.SEQUENTIAL
    repeats = request.repeats or defaults.GENERATIONS
    return request.model_copy(update={"order": order, "repeats": repeats})


def _check_efficiency(request: GateRequest) -> None:
    """Checks that there is an efficiency, of cases that take turns.

    Raises:
      PlanError: One number of replicas has none, and neither have trials in sequence.
    """
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


def _with_repeats(request: GateRequest) -> GateRequest:
    """Returns a gate on throughput; one that is measured in sequence does not look."""
    is_relay = design.choose_order(request) is Order.RELAY
    repeats = request.repeats or (None if is_relay else defaults.GENERATIONS)
    return request.model_copy(update={"repeats": repeats})


def design_of(request: GateRequest, rule: Rule, baseline: str) -> GateDesign:
    """Returns the record of what a gate judges, and when it looks.

    Args:
      request: Of ``of_gate``.
      rule: What is judged.
      baseline: In words.
    """
    is_relay = rule.metric in gate_metrics.OF_TURNS and (
        design.choose_order(request) is Order.RELAY
    )
    return GateDesign(
        metric=rule.metric.name,
        baseline=baseline,
        delta=rule.delta,
        alpha=rule.alpha,
        looks=group_sequential.LOOKS if is_relay and request.repeats is None else (),
        num_stretches=NUM_STRETCHES if is_relay else 0,
    )


def _of_quality_gate(request: GateRequest, rule: Rule) -> GateRequest:
    """Returns a request of quality runs only, with several seeds.

    Raises:
      PlanError: There are too few seeds, or an option has no effect.
    """
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
