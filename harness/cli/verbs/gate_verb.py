"""The verb ``gate``: measures this tree beside a baseline, and judges it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from harness.cli import commands, exit_codes
from harness.cli.arguments import check_comparable
from harness.cli.verbs import beside, gate_outlook
from harness.cli.verbs.gate_design import design_of, of_gate
from harness.cli.verbs.gate_request import GateRequest, files_of, make_rule
from harness.errors import Interrupted, PlanError, StudyError
from harness.judging import program_revisions, revisions
from harness.planning import study as study_module
from harness.planning.request import judged_metric, resolved
from reports.words.judging import judgement
from results.judging import gate as gate_module
from results.judging import gate_logs
from results.store import atomic, untrusted
from results.store.study_store import PLAN_NAME, Store
from results.study import case_pairs

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.cli.verb import Call
    from harness.planning.plan import PlannedSweep
    from results.judging.gate import Gate
    from results.judging.gate_metrics import Rule
    from results.study.cases import Study


_WRITE_GATE: dict[str, Callable[[Gate], str]] = {
    "text": judgement.gate_text,
    "junit": judgement.gate_junit,
    "github": judgement.gate_github,
    "markdown": judgement.gate_markdown,
    "json": judgement.gate_json,
}


def run(request: GateRequest, call: Call) -> int:
    """Measures this tree beside a baseline, prints the verdict, returns its code."""
    if request.setup is not None and request.command is None:
        raise PlanError(
            f"--setup {request.setup!r} has no effect without --command: the harness"
            " prepares its own revisions; leave it out"
        )
    files_of(request, _WRITE_GATE)  # before anything is measured
    request = resolved(request, Path.cwd())
    rule = make_rule(
        workload="" if request.program else request.workload,
        metric=judged_metric(request.metric, request.command),
        delta=request.delta,
        alpha=request.alpha,
    )
    request = of_gate(request, rule)
    name, stored = _find_baseline(request.baseline_name, request.runs_dir)
    if request.is_dry_run:
        return gate_outlook.show(request, call, rule, stored)
    if stored is not None:
        gate_module.check_stored(rule, name)  # before anything is measured
        return _against_study(request, call, stored, name, rule)
    source = None
    if request.program is None:
        commit = revisions.find_commit(name)
    else:
        source = program_revisions.source_of(Path.cwd(), name, request.runs_dir)
        commit = program_revisions.find_commit(source, name)

    def show(found: Gate, store: Store | None) -> int:
        return _conclude(store, found, request)

    try:
        return beside.measure(
            request, call, rule, name=name, commit=commit, source=source, conclude=show
        )
    except Interrupted as error:
        click.echo(f"interrupted ({error.signal_name})", err=True)
        return exit_codes.INTERRUPTED


def _find_baseline(text: str | None, runs_dir: Path) -> tuple[str, Study | None]:
    """Returns the name of a baseline, and its study; None if it is a revision."""
    if text is None or not text.strip():
        raise StudyError(
            "a gate needs a baseline: give --baseline with a git revision or a study"
        )
    if untrusted.is_there(study_module.find_study(text, runs_dir) / PLAN_NAME):
        return f"study {text}", study_module.load(text, runs_dir)
    return text, None


def _against_study(
    request: GateRequest,
    call: Call,
    stored: Study,
    name: str,
    rule: Rule,
) -> int:
    """Measures this tree alone, and judges it against a stored study."""

    def judge_studies(store: Store, study: Study, _trials: object) -> int:
        found = gate_module.of_studies(study, stored, rule, baseline=name)
        if found.differences and not request.is_different_allowed:
            # Seen only now: placement and machine are recorded with the trials.
            check_comparable(str(store.root), name, found.differences, False)
        return _conclude(store, found, request)

    def check(planned: PlannedSweep) -> None:
        differences = case_pairs.planned_differences(
            planned.trials,
            stored,
            revisions.fingerprint(planned.trials[0].spec),
            are_quality_runs=rule.metric.is_quality,
        )
        check_comparable("this tree", name, differences, request.is_different_allowed)

    design = design_of(request, rule, name).model_copy(
        update={"looks": (), "num_stretches": 0}
    )
    return commands.sweep(
        request.model_copy(update={"gate": design}),
        call,
        conclude=judge_studies,
        name_prefix=beside.name_prefix(rule),
        check=check,
    )


def _conclude(store: Store | None, found: Gate, request: GateRequest) -> int:
    if store is not None:
        beside.keep(store, found)
    for path, form in files_of(request, _WRITE_GATE).items():
        atomic.write_text(path, _WRITE_GATE[form](found) + "\n")
    click.echo(_WRITE_GATE[request.form](found))
    if store is not None:
        click.echo(f"report of this tree: {store.report_path}", err=True)
    return gate_logs.code_of(found)
