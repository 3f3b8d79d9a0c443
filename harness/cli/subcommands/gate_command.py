"""The subcommand ``gate``: measures this tree beside a baseline, and judges it."""

from __future__ import annotations

import contextlib
import math
import statistics
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import click

import reports
from harness import SOURCE_ROOT, catalog
from harness.cli import commands, running
from harness.cli.exit_codes import ExitCode
from harness.cli.subcommands.sweep_command import RunRequest
from harness.errors import Interrupted, PlanError, StudyError
from harness.judging import revisions
from harness.options import kinds
from harness.options.kinds import NAMES, PERCENTAGE
from harness.options.option import option
from harness.planning import defaults, design
from harness.planning import plan as plan_module
from harness.planning.request import (
    OWN,
    Count,
    judged_metric,
    resolved,
)
from harness.run.sweep import stop_signals
from harness.sources import code_digest
from reports.words import judgement
from results.figures import trial_metrics
from results.judging import gate as gate_module
from results.judging import gate_metrics
from results.judging.gate_metrics import Rule
from results.records import measuring
from results.records.measuring import GateDesign
from results.records.models import Order, Plan
from results.statistics import group_sequential
from results.store import untrusted, writing
from results.store.study_store import PLAN_NAME, Store
from results.study import case_pairs

if TYPE_CHECKING:
    from collections.abc import Mapping

    from results.study.cases import Study


_PLUGINS = ", ".join(f"`{name}`" for name in trial_metrics.names())
_LEARNABLE = "; ".join(
    f"{', '.join(f'`{of}`' for of in catalog.judged_metrics(info))} ({name})"
    for name, info in catalog.WORKLOADS.items()
)
JUDGING: Final = "How it is judged"
DEFAULT_ALPHA: Final = 0.05
_LOOKS = ", ".join(map(str, group_sequential.planned_looks(DEFAULT_ALPHA)))
_FEWEST = group_sequential.fewest_to_pass(DEFAULT_ALPHA)


class GateRequest(RunRequest):
    not_options = frozenset(
        {
            *("controls", "efficiency_target", "target", "quality_repeats", "is_json"),
            *("launcher", "replicas_per_worker", "launcher_options", "retry", "vary"),
        }
    )

    retry: Literal["failed"] | None = "failed"
    backends: tuple[str, ...] = option(
        ("in_graph",),
        "Comma-separated names; no peer is measured unless it is named.",
        kind=NAMES,
    )
    repeats: Count | None = option(
        None,
        f"Exactly so many runs, analysed once; a pass needs {_FEWEST}, at another"
        " `--alpha` others.",
        shown=f"analysed after {_LOOKS}, until a verdict is clear; {_FEWEST} in"
        " sequence",
    )
    is_equal_measured: bool = option(
        False,
        "Measure equal code too, to see how often the gate errs.",
        JUDGING,
        name="measure-equal",
    )
    baseline_name: str | None = option(
        None,
        "A study, or a git revision, in this order.",
        name="baseline",
        metavar="REV|STUDY",
        shown="required",
    )
    delta: float | None = option(
        None,
        "The slowdown, or loss, that matters.",
        kind=PERCENTAGE,
        shown="5%, or what the workload declares for the metric",
    )
    alpha: float = option(
        DEFAULT_ALPHA,
        "Accepted probability of passing a slowdown of exactly `--delta`, below 50 %.",
        kind=PERCENTAGE,
    )
    metric: str = option(
        gate_metrics.THROUGHPUT.name,
        "`throughput`, `efficiency` (beside a revision),"
        " `time_to_first_step`, `peak_memory`"
        + f", {_PLUGINS} (plugins)"
        * bool(_PLUGINS)
        + "; or quality:"
        f" {_LEARNABLE}. With `--command`: `NAME=PATTERN`, as in"
        " `sweep`.",
        JUDGING,
        metavar="NAME",
    )
    counts: tuple[str, ...] = option(
        (),
        "A count of a step in which a rise is a regression:"
        f" {', '.join(f'`{name}`' for name in measuring.UNITS)}; others are only"
        " shown. With `--command`: `NAME=PATTERN`, as in `sweep`. Can be repeated.",
        JUDGING,
        name="count",
        kind=kinds.TEXTS,
        metavar="NAME",
        shown="none",
    )
    setup: str | None = option(
        None, "Shell command that prepares each revision, once, such as `uv sync`.", OWN
    )
    num_seeds: Count | None = option(
        None,
        "Quality runs of each case, for a metric of quality.",
        JUDGING,
        name="quality-repeats",
        is_setting=True,
        shown=f"{defaults.QUALITY_REPEATS_OF_GATE}",
    )
    is_different_allowed: bool = option(
        False,
        "Compare other machines, workload versions or placements, too; never a pass.",
        name="allow-different",
    )
    form: Literal["text", "junit", "github", "markdown", "json"] = option(
        "text",
        "How the result is written to stdout; `github`: annotations.",
        name="format",
    )
    files: tuple[str, ...] = option(
        (),
        "Also write a file, in a format of `--format`; can be repeated.",
        name="write",
        kind=kinds.TEXTS,
        metavar="FORMAT=FILE",
        shown="none",
    )


def make_rule(*, workload: str, metric: str, delta: float | None, alpha: float) -> Rule:
    declared = catalog.metrics(catalog.workload(workload)) if workload else ()
    judged = gate_metrics.metric_of_gate(metric, declared)
    return Rule(
        metric=judged, delta=judged.tolerance if delta is None else delta, alpha=alpha
    )


NUM_STRETCHES = 4  # Sustained stretches of each case and repetition.


def measured_request(request: GateRequest, rule: Rule) -> GateRequest:
    """Returns what a gate measures: quality only, or none and more repetitions."""
    if request.program is None:
        _check_counts(request)
    if rule.metric.is_quality:
        return _quality_request(request, rule)
    learned = ["throughput"]
    if request.program is None:
        learned = catalog.judged_metrics(catalog.workload(request.workload))
    budget = None if request.program else request.budget
    given = {"--budget ": budget, "--set quality-repeats=": request.num_seeds}
    why = "such a gate has no quality runs; leave it out, or use --metric"
    _refuse(given, rule, f"{why} {'|'.join(learned)}")
    fewest = group_sequential.FEWEST_REPETITIONS
    if request.repeats is not None and request.repeats < fewest:
        raise PlanError(
            f"--repeats {request.repeats} gives no verdict: one run says nothing"
            f" about the spread between processes; use {fewest} or more"
        )
    request = request.model_copy(update={"budget": "none"})
    if rule.metric is gate_metrics.EFFICIENCY:
        _check_efficiency(request)
    takes_turns = request.program is None or request.program.record.is_client
    if takes_turns and _is_interleaved(request, rule):
        return request
    # Others exist once per process, and are measured best where it is alone.
    if (
        request.order is Order.INTERLEAVED
        and rule.metric.name == gate_metrics.FIRST_STEP
    ):
        raise PlanError(
            f"--order interleaved with --metric {rule.metric.name}: the processes of "
            "an interleaved measurement start side by side, so none has the machine to "
            "itself until its first step; leave --order out"
        )
    repeats = request.repeats or group_sequential.fewest_to_pass(rule.alpha)
    order = request.order or Order.SEQUENTIAL
    return request.model_copy(update={"order": order, "repeats": repeats})


def _refuse(given: Mapping[str, object], rule: Rule, why: str) -> None:
    """Refuses options that are given and have no effect on what is judged."""
    for name, value in given.items():
        if value is not None:
            raise PlanError(
                f"{name}{value} has no effect with --metric {rule.metric.name}: {why}"
            )


def _is_interleaved(request: GateRequest, rule: Rule) -> bool:
    is_of_blocks = rule.metric in gate_metrics.OF_BLOCKS
    return is_of_blocks and design.choose_order(request) is Order.INTERLEAVED


def _check_counts(request: GateRequest) -> None:
    for index, name in enumerate(request.counts):
        word, equals, _ = name.partition("=")
        if equals and word in measuring.UNITS:
            raise PlanError(
                f"--count {name!r} has a pattern, and a workload prints nothing that"
                f" is read; write --count {word}, or give --command"
            )
        if name not in measuring.UNITS:
            raise PlanError(
                f"--count {name!r} is not counted in a step; use one of"
                f" {', '.join(measuring.UNITS)}"
            )
        if name in request.counts[:index]:
            raise PlanError(f"--count {name!r} is given twice; give it once")
        for backend in request.backends:
            known = _counted_on(backend)
            if name not in known:
                allowed = f"one of {', '.join(known)}" if known else "other backends"
                raise PlanError(
                    f"--count {name!r} is not known of backend {backend!r}; use"
                    f" {allowed}"
                )
    if request.counts and request.steps[0] == 1:
        raise PlanError(
            f"--count {request.counts[0]!r} with --steps 1+: the first step traces, so"
            f" another one is counted; use --steps {measuring.FEWEST_WARMUP_STEPS}+ or"
            " more"
        )


def _counted_on(backend: str) -> list[str]:
    info = catalog.backend(backend)
    if backend in catalog.PEERS:
        return []
    if info.processes == catalog.PARAMETER_SERVERS:
        return [measuring.RETRACES]
    left_out = measuring.OF_PLANS if "explained_plan" in info.lacks else ()
    return [unit for unit in measuring.UNITS if unit not in left_out]


def _check_efficiency(request: GateRequest) -> None:
    if request.replicas is not None and len(set(request.replicas)) == 1:
        raise PlanError(
            f"--metric efficiency with --replicas {request.replicas[0]} has no baseline"
            " to scale from; give two numbers or more, such as --replicas 1,2"
        )
    if design.choose_order(request) is not Order.INTERLEAVED:
        raise PlanError(
            "--metric efficiency needs cases that take turns (--order interleaved), "
            "and these run one after another; leave --order and --device out"
        )


def design_of(
    request: GateRequest, rule: Rule, baseline: str, *, is_study: bool = False
) -> GateDesign:
    is_interleaved = not is_study and _is_interleaved(request, rule)
    has_looks = is_interleaved and request.repeats is None
    return GateDesign(
        metric=rule.metric.name,
        baseline=baseline,
        delta=rule.delta,
        alpha=rule.alpha,
        looks=group_sequential.planned_looks(rule.alpha) if has_looks else (),
        num_stretches=NUM_STRETCHES if is_interleaved else 0,
        counts=request.counts if request.program is None else (),
    )


def _quality_request(request: GateRequest, rule: Rule) -> GateRequest:
    order = None if request.order is None else request.order.label
    why = (
        "quality runs are not timed, and run one after the other; use"
        " --set quality-repeats=N for the number of seeds"
    )
    _refuse({"--repeats ": request.repeats, "--order ": order}, rule, why)
    fewest = gate_module.fewest_seeds(rule.alpha)
    usual = max(defaults.QUALITY_REPEATS_OF_GATE, fewest)
    repeats = request.num_seeds or usual
    if repeats < fewest:
        raise PlanError(
            f"--set quality-repeats={repeats} gives no verdict: so few seeds say too"
            f" little about the spread between runs; use {fewest} or more"
        )
    update = {"order": Order.SEQUENTIAL, "quality_repeats": repeats}
    return request.model_copy(update={**update, "is_quality_only": True})


class _EqualCodeError(Exception):
    """Both sides have the same code, of these digests."""


def _beside_revision(request: GateRequest, name: str, rule: Rule) -> int:
    source, own = None, request.overrides.get("source_root", SOURCE_ROOT)
    if request.program is not None:
        source = revisions.source_of(Path.cwd(), name, request.runs_dir)
    commit = revisions.find_commit(name, own, source)
    baseline = f"revision {name} ({commit[: revisions.SHOWN_DIGITS]})"

    def conclude(store: Store, study: Study, _trials: object) -> int:
        gate = gate_module.judge_revisions(study, rule, baseline=baseline)
        return _conclude(store, gate, request)

    def check(planned: Plan) -> None:
        equal = code_digest.equal_digests(planned.trials)
        if equal and not request.is_equal_measured:
            raise _EqualCodeError(*equal)
        if source is None:
            revisions.check_runs(name, update["baseline"], planned.trials[-1].spec)

    update: dict[str, Any] = {"gate": design_of(request, rule, baseline)}
    fewest = group_sequential.fewest_to_pass(rule.alpha)
    try:
        with stop_signals(), contextlib.ExitStack() as stack:
            if request.program is None or source is None:
                tree = revisions.checked_out(
                    own, name, commit, running.note, request.device
                )
                update["baseline"] = stack.enter_context(tree)
            else:
                sides = revisions.side_by_side(
                    request.program, source, name, commit, running.note
                )
                update |= stack.enter_context(sides)
            if request.repeats is not None and request.repeats < fewest:
                running.note(
                    f"--repeats {request.repeats} can show a regression, and cannot"
                    f" pass: that takes {fewest} at --alpha {rule.alpha:.1%}"
                )
            request = request.model_copy(update=update)
            return commands.sweep(request, conclude, check)
    except _EqualCodeError as error:
        gate = gate_module.judge_equal_code(rule, error.args, baseline=baseline)
        return _conclude(None, gate, request)
    except Interrupted as error:
        running.note(f"interrupted ({error.signal_name})")
        return ExitCode.INTERRUPTED


def _beside_study(request: GateRequest, stored: Study, name: str, rule: Rule) -> int:
    def conclude(store: Store, study: Study, _trials: object) -> int:
        gate = gate_module.judge_studies(study, stored, rule, baseline=name)
        # Seen only now: placement and machine are recorded with the trials.
        is_allowed = request.is_different_allowed
        commands.check_comparable(str(store.root), name, gate.differences, is_allowed)
        return _conclude(store, gate, request)

    def check(planned: Plan) -> None:
        differences = case_pairs.planned_differences(
            planned.trials,
            stored,
            revisions.fingerprint(
                planned.trials[0].spec, commands.topology_of(request)
            ),
            are_quality_runs=rule.metric.is_quality,
        )
        commands.check_comparable(
            "this tree", name, differences, request.is_different_allowed
        )

    gate_design = design_of(request, rule, name, is_study=True)
    request = request.model_copy(update={"gate": gate_design})
    return commands.sweep(request, conclude, check)


def _conclude(store: Store | None, gate: gate_module.Gate, request: GateRequest) -> int:
    record = judgement.gate_record(gate)
    if store is not None:
        gate_module.write_gate(store, record)
        reports.write_report(store, store.report_path)
    for path, form in _files_of(request).items():
        writing.write_text(path, judgement.GATE_FORMATS[form](record) + "\n")
    click.echo(judgement.GATE_FORMATS[request.form](record))
    if store is not None:
        running.note(f"report of this tree: {store.report_path}")
    return gate.exit_code


USUAL_SPREAD: Final = 0.03
"""Standard deviation of a log ratio between repetitions, as on two shared cores."""


def _show_outlook(request: GateRequest, rule: Rule, stored: Study | None) -> int:
    """Prints the trials of one side, and how often such a gate gives each verdict."""
    if rule.metric not in gate_metrics.OF_BLOCKS:
        raise PlanError(
            f"--dry-run with --metric {rule.metric.name}: only gates on throughput are"
            " simulated; leave --metric out"
        )
    planned: list[Plan] = []
    code = commands.sweep(request, check=planned.append)
    minutes_in_all = request.minutes or defaults.MINUTES_OF_GATE
    spread, source = USUAL_SPREAD, "usual on two shared cores"
    each = defaults.MINUTES / defaults.REPETITIONS
    if stored is not None:
        spread, source = _spread_of(stored)
        trials = [one.trial for one in stored.planned if not one.spec.budget]
        used = [one.status.duration_sec for one in trials if one and one.status]
        each = sum(used) / 60 / stored.plan.repeats or each
    number = request.repeats or math.floor(minutes_in_all / each + 1e-9)
    fewest = group_sequential.FEWEST_REPETITIONS
    if number < fewest:
        raise PlanError(
            f"--time-budget {minutes_in_all:g}min is time for {number} run(s) of"
            f" {each:.1f} min, but a verdict needs {fewest} or more; use --time-budget"
            f" {math.ceil(fewest * each)}min or more"
        )
    text = judgement.power_text(
        spread,
        group_sequential.planned_design(
            delta=rule.delta,
            alpha=rule.alpha,
            num_repetitions=request.repeats,
            most=number,
        ),
        source=source,
        num_cases=len({trial.case_id for trial in planned[0].trials}),
        minutes_per_repetition=each,
    )
    click.echo(text)
    return code


def _spread_of(study: Study) -> tuple[float, str]:
    """Returns the spread of the primary contrast, and its description."""
    name, primary = study.plan.study, study.plan.measuring.primary
    if primary is None:
        raise PlanError(
            f"study {name!r} has no primary contrast, so it has no spread between"
            " runs; measure two backends or replica counts"
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
    if len(logs) < group_sequential.FEWEST_REPETITIONS:
        raise PlanError(
            f"study {name!r} has {len(logs)} run(s) of {primary.text}, but a"
            f" spread needs {group_sequential.FEWEST_REPETITIONS} or more; measure more"
            " --repeats"
        )
    return statistics.stdev(logs), f"{primary.text}; {len(logs)} runs of {name}"


def _files_of(request: GateRequest) -> dict[Path, str]:
    forms = {}
    for text in request.files:
        form, equals, name = text.partition("=")
        if form not in judgement.GATE_FORMATS or not equals or not name:
            raise PlanError(
                f"--write {text!r} is not FORMAT=FILE; use one of"
                f" {', '.join(judgement.GATE_FORMATS)}, such as --write junit=gate.xml"
            )
        path = Path(name)
        if not path.absolute().parent.is_dir() or path.is_dir():
            raise PlanError(
                f"--write {text!r}: {name!r} cannot be a file, since"
                + (" it is a folder" if path.is_dir() else " its folder does not exist")
                + "; choose another, or make the folder"
            )
        forms[path] = form
    return forms


def run(request: GateRequest) -> int:
    if request.setup is not None and request.command is None:
        raise PlanError(
            f"--setup {request.setup!r} has no effect without --command: the harness"
            " prepares its own revisions; leave it out"
        )
    _files_of(request)  # before anything is measured
    request = resolved(request, Path.cwd())
    rule = make_rule(
        workload="" if request.program else request.workload,
        metric=judged_metric(request.metric, request.command),
        delta=request.delta,
        alpha=request.alpha,
    )
    request = measured_request(request, rule)
    name, stored = request.baseline_name, None
    if name is None or not name.strip():
        raise StudyError(
            "a gate needs a baseline: give --baseline with a git revision or a study"
        )
    root = plan_module.find_study(name, request.runs_dir)
    if untrusted.is_there(root / PLAN_NAME):
        stored = plan_module.load(name, request.runs_dir)
    if request.is_dry_run:
        return _show_outlook(request, rule, stored)
    if stored is None:
        return _beside_revision(request, name, rule)
    gate_module.check_stored(rule, f"study {name}")  # before anything is measured
    return _beside_study(request, stored, f"study {name}", rule)
