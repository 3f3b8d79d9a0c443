"""The verb ``gate``: measures this tree beside a baseline, and judges it."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import TYPE_CHECKING, Annotated, Any, Literal

import click

from harness import catalog
from harness.cli import commands, exit_codes
from harness.cli.compare_verb import check_comparable
from harness.cli.shared_options import (
    DEFAULT_ALPHA,
    DEFAULT_METRIC,
    RUNS_DIR,
    Alpha,
    IsDifferentAllowed,
    RunsDir,
)
from harness.errors import Interrupted, PlanError, StudyError
from harness.judging import baselines, revisions, this_machine
from harness.options.notation import PERCENTAGE
from harness.options.option import Option
from harness.planning import defaults
from harness.planning import study as study_module
from harness.planning.request import STUDY, Count, SweepRequest
from harness.run.sweep import stop_signals
from reports.words import judgement
from results.judging import gate as gate_module
from results.judging import gate_metrics, quality_gate
from results.records.models import Order
from results.statistics import judge
from results.statistics.judge import Verdict
from results.store.study_store import PLAN_NAME, Store
from results.study import case_pairs
from results.study.cases import load_study

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from harness.cli.verb import Call
    from harness.planning.plan import PlannedSweep
    from harness.planning.source_tree import SourceTree
    from results.judging.gate import Gate
    from results.judging.gate_metrics import Metric
    from results.records.models import PlannedTrial
    from results.study.cases import Study

JUDGING = "How it is judged"
NAME_PREFIX = "gate-"
QUALITY_NAME_PREFIX = "gate-quality-"
"""Of the study of a gate whose name is derived: on speed and memory, or on quality."""

_WRITE_GATE: dict[str, Callable[[Gate], str]] = {
    "text": judgement.gate_text,
    "junit": judgement.gate_junit,
    "github": judgement.gate_github,
    "markdown": judgement.gate_markdown,
    "json": judgement.gate_json,
}
_CODES = {
    Verdict.PASS: exit_codes.OK,
    Verdict.IMPROVE: exit_codes.OK,
    Verdict.REGRESS: exit_codes.REGRESSION,
    Verdict.INCONCLUSIVE: exit_codes.INCONCLUSIVE,
}


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """What is judged, and how strictly."""

    metric: Metric
    delta: float
    alpha: float


def make_rule(*, workload: str, metric: str, delta: float | None, alpha: float) -> Rule:
    """Returns a checked rule.

    Args:
      workload: Whose metrics are known, besides those of speed and memory.
      metric: The name of one of them.
      delta: The loss that matters; None for the tolerance of the metric.
      alpha: The accepted probability of passing it.

    Raises:
      PlanError: The workload is unknown.
      ResultsError: The metric is unknown, or a number is out of range.
    """
    declared = catalog.metrics(catalog.workload(workload))
    of = gate_metrics.metric_of_gate(metric, declared)
    delta = of.tolerance if delta is None else delta
    judge.check_delta(delta)
    judge.check_alpha(alpha)
    return Rule(metric=of, delta=delta, alpha=alpha)


def _learnable() -> str:
    """Says which metrics of quality a gate judges, by workload."""
    return "; ".join(
        f"{', '.join(f'`{of}`' for of in catalog.judged_metrics(info))} ({name})"
        for name, info in catalog.WORKLOADS.items()
    )


class GateRequest(SweepRequest):
    """A sweep of two sides, and how they are judged."""

    not_options = frozenset(
        {"controls", "efficiency_target", "is_evaluated", "quality_repeats"}
    )

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
    delta: Annotated[
        float | None,
        Option(
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
            help=f"`throughput`, `time_to_first_step`, `peak_memory`; or what is"
            f" learned: {_learnable()}.",
        ),
    ] = DEFAULT_METRIC
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
    study: Annotated[
        str | None,
        Option(
            group=STUDY,
            metavar="NAME",
            help="Directory of the gate's study.",
            default="`gate-<workload>-<preset>-<digest>`",
        ),
    ] = None
    runs_dir: RunsDir = RUNS_DIR


def run(request: GateRequest, call: Call) -> int:
    """Measures this tree beside a baseline, prints the verdict, returns its exit code.

    Raises:
      HarnessError: The request cannot be carried out; nothing was measured.
      ResultsError: A study cannot be used.
    """
    rule = make_rule(
        workload=request.workload,
        metric=request.metric,
        delta=request.delta,
        alpha=request.alpha,
    )
    return gate(
        request,
        baseline=request.baseline_name,
        rule=rule,
        quality_repeats=request.num_seeds,
        is_different_allowed=request.is_different_allowed,
        form=request.form,
        study=request.study,
        runs_dir=request.runs_dir,
        overrides=call.overrides,
    )


def gate(
    request: SweepRequest,
    *,
    baseline: str | None,
    rule: Rule,
    quality_repeats: int | None,
    is_different_allowed: bool,
    form: str,
    study: str | None,
    runs_dir: Path,
    overrides: Mapping[str, Any] | None = None,
) -> int:
    """Measures this tree beside a baseline, prints the verdict, returns its exit code.

    Args:
      request: What to measure.
      baseline: A named baseline, a study, or a git revision.
      rule: What is judged, and how strictly.
      quality_repeats: Seeds of each case, for a metric of quality; None for the
        default.
      is_different_allowed: Whether a study that is not comparable is shown.
      form: Of the output.
      study: Name of the gate's study; by default derived.
      runs_dir: Directory of the studies.
      overrides: Replaces fields of ``RunSettings``.

    Raises:
      HarnessError: The request cannot be carried out; nothing was measured.
      ResultsError: A study cannot be used.
    """
    request = _of_gate(request, rule, quality_repeats)
    name, stored = _find_baseline(baseline, runs_dir)
    if stored is not None:
        return _against_study(
            request,
            stored,
            name=name,
            rule=rule,
            is_different_allowed=is_different_allowed,
            form=form,
            study=study,
            runs_dir=runs_dir,
            overrides=overrides,
        )
    commit = revisions.find_commit(name)

    def judge_revisions(store: Store, _trials: Sequence[PlannedTrial]) -> int:
        found = gate_module.of_revisions(
            load_study(store),
            rule.metric,
            baseline=f"revision {name} ({commit[: revisions.SHOWN_DIGITS]})",
            delta=rule.delta,
            alpha=rule.alpha,
        )
        return _conclude(store, found, form)

    try:
        with stop_signals(), _tree(name, commit, request.device) as tree:
            return commands.sweep(
                request.model_copy(update={"baseline": tree}),
                study=study,
                runs_dir=runs_dir,
                is_json=False,
                is_dry_run=False,
                is_failed_retried=True,
                overrides=overrides,
                conclude=judge_revisions,
                name_prefix=_name_prefix(rule),
                check=lambda planned: revisions.check_runs(
                    name, tree, planned.trials[-1].spec
                ),
            )
    except Interrupted as error:
        click.echo(f"interrupted ({error.signal_name})", err=True)
        return exit_codes.INTERRUPTED


@contextlib.contextmanager
def _tree(name: str, commit: str, device: str) -> Iterator[SourceTree]:
    def note(text: str) -> None:
        click.echo(text, err=True)

    with revisions.checked_out(name, commit, note, device) as tree:
        yield tree


def _name_prefix(rule: Rule) -> str:
    return QUALITY_NAME_PREFIX if rule.metric.is_quality else NAME_PREFIX


def _of_gate(
    request: SweepRequest, rule: Rule, quality_repeats: int | None
) -> SweepRequest:
    """Returns what a gate measures: quality only, or none and more generations.

    Raises:
      PlanError: There are too few generations, or an option has no effect.
    """
    if rule.metric.is_quality:
        return _of_quality_gate(request, rule, quality_repeats)
    learned = catalog.judged_metrics(catalog.workload(request.workload))
    for name, value in (
        ("--budget", request.budget),
        ("--evaluations", request.num_evaluations),
        ("--quality-repeats", quality_repeats),
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
    if rule.metric is gate_metrics.THROUGHPUT:
        return request
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


def _of_quality_gate(
    request: SweepRequest, rule: Rule, quality_repeats: int | None
) -> SweepRequest:
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
    repeats = (
        defaults.QUALITY_REPEATS_OF_GATE if quality_repeats is None else quality_repeats
    )
    if repeats < quality_gate.FEWEST_SEEDS:
        raise PlanError(
            f"--quality-repeats {repeats} gives no verdict: so few seeds say too little"
            f" about the spread between runs; use {quality_gate.FEWEST_SEEDS} or more"
        )
    return request.model_copy(
        update={
            "order": Order.SEQUENTIAL,
            "quality_repeats": repeats,
            "is_quality_only": True,
        }
    )


def _find_baseline(text: str | None, runs_dir: Path) -> tuple[str, Study | None]:
    """Returns the name of a baseline, and its study; None if it is a revision.

    Raises:
      StudyError: No baseline was given, and none is named default.
    """
    known = baselines.read_baselines(runs_dir)
    if text is None:
        if baselines.DEFAULT_NAME not in known:
            raise StudyError(
                "a gate needs a baseline: give --baseline with a git revision or a"
                " study, or name one with 'baseline set STUDY'"
            )
        text = baselines.DEFAULT_NAME
    if not text.strip():
        raise StudyError(
            "--baseline is empty; give a git revision, a study, or a named baseline"
        )
    if text in known:
        of = known[text]
        return f"baseline {text} (study {of.study})", study_module.load(
            of.study, runs_dir
        )
    if (study_module.find_study(text, runs_dir) / PLAN_NAME).exists():
        return f"study {text}", study_module.load(text, runs_dir)
    return text, None


def _against_study(
    request: SweepRequest,
    stored: Study,
    *,
    name: str,
    rule: Rule,
    is_different_allowed: bool,
    form: str,
    study: str | None,
    runs_dir: Path,
    overrides: Mapping[str, Any] | None,
) -> int:
    """Measures this tree alone, and judges it against a stored study."""

    def judge_studies(store: Store, _trials: Sequence[PlannedTrial]) -> int:
        found = gate_module.of_studies(
            load_study(store),
            stored,
            rule.metric,
            baseline=name,
            delta=rule.delta,
            alpha=rule.alpha,
        )
        if found.differences and not is_different_allowed:
            # Seen only now: placement and machine are recorded with the trials.
            check_comparable(str(store.root), name, found.differences, False)
        return _conclude(store, found, form)

    def check(planned: PlannedSweep) -> None:
        differences = case_pairs.planned_differences(
            planned.trials,
            stored,
            this_machine.fingerprint(planned.trials[0].spec),
            are_quality_runs=rule.metric.is_quality,
        )
        check_comparable("this tree", name, differences, is_different_allowed)

    return commands.sweep(
        request,
        study=study,
        runs_dir=runs_dir,
        is_json=False,
        is_dry_run=False,
        is_failed_retried=True,
        overrides=overrides,
        conclude=judge_studies,
        name_prefix=_name_prefix(rule),
        check=check,
    )


def _conclude(store: Store, found: Gate, form: str) -> int:
    from reports.page import build

    build.write_report(store, store.report_path)
    click.echo(_WRITE_GATE[form](found))
    click.echo(f"report of this tree: {store.report_path}", err=True)
    return code_of(found)


def code_of(found: Gate) -> int:
    """Returns the exit code of a gate: trials that are not ok come before a verdict."""
    is_disturbed_only = all(": void: " in failure for failure in found.failures)
    if found.failures and not is_disturbed_only:
        return (
            exit_codes.SOME_TRIALS_FAILED
            if found.num_ok
            else exit_codes.NOTHING_MEASURED
        )
    if found.failures or found.why_unfit or found.verdict is None:
        return exit_codes.UNFIT
    return _CODES[found.verdict]
