"""The verb ``gate``: measures this tree beside a baseline, and judges it."""

from __future__ import annotations

import contextlib
import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from harness.cli import commands, exit_codes
from harness.cli.verbs.compare_verb import check_comparable
from harness.cli.verbs.gate_request import (
    GateRequest,
    design_of,
    make_rule,
    of_gate,
)
from harness.errors import Interrupted, PlanError, StudyError
from harness.judging import (
    baselines,
    program_revisions,
    revisions,
    this_machine,
)
from harness.planning import same_code
from harness.planning import study as study_module
from harness.planning.program_request import pattern_of, resolved
from harness.run.sweep import stop_signals
from reports.words import judgement
from results.judging import gate as gate_module
from results.judging import gate_file
from results.statistics.judge import Verdict
from results.store import untrusted
from results.store.study_store import PLAN_NAME, Store
from results.study import case_pairs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from harness.cli.verb import Call
    from harness.command.repository import Repository
    from harness.planning.plan import PlannedSweep
    from results.judging.gate import Gate
    from results.judging.gate_metrics import Rule
    from results.study.cases import Study


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


class _EqualCodeError(Exception):
    """Both sides have the same code, so that nothing has to be measured."""

    def __init__(self, digests: tuple[str, ...]) -> None:
        super().__init__(*digests)
        self.digests = digests


def run(request: GateRequest, call: Call) -> int:
    """Measures this tree beside a baseline, prints the verdict, returns its exit code.

    Raises:
      HarnessError: The request cannot be carried out; nothing was measured.
      ResultsError: A study cannot be used.
    """
    if request.setup is not None and request.command is None:
        raise PlanError(
            f"--setup {request.setup!r} has no effect without --command: the harness"
            " prepares its own revisions; leave it out"
        )
    request = resolved(request, Path.cwd())
    rule = make_rule(
        workload="" if request.program else request.workload,
        metric=pattern_of(request.metric),
        delta=request.delta,
        alpha=request.alpha,
    )
    request = of_gate(request, rule)
    name, stored = _find_baseline(request.baseline_name, request.runs_dir)
    if stored is not None:
        return _against_study(request, call, stored, name, rule)
    source = None
    if request.program is None:
        commit = revisions.find_commit(name)
    else:
        source = program_revisions.source_of(Path.cwd(), name, request.runs_dir)
        commit = program_revisions.find_commit(source, name)

    baseline = f"revision {name} ({commit[: revisions.SHOWN_DIGITS]})"

    def judge_revisions(store: Store, study: Study, _trials: object) -> int:
        found = gate_module.of_revisions(study, rule, baseline=baseline)
        return _conclude(store, found, request.form)

    def check(update: dict[str, Any], planned: PlannedSweep) -> None:
        equal = same_code.equal_digests(planned.trials)
        if equal and not request.is_equal_measured:
            raise _EqualCodeError(equal)
        if source is None:
            tree, spec = update["baseline"], planned.trials[-1].spec
            revisions.check_runs(name, tree, spec)

    design = design_of(request, rule, baseline)
    try:
        with stop_signals(), _sides(request, source, name, commit) as update:
            return commands.sweep(
                request.model_copy(update={**update, "gate": design}),
                call,
                conclude=judge_revisions,
                name_prefix=_name_prefix(rule),
                check=functools.partial(check, update),
            )
    except _EqualCodeError as error:
        found = gate_module.of_equal_code(rule, error.digests, baseline=baseline)
        click.echo(_WRITE_GATE[request.form](found))
        return code_of(found)
    except Interrupted as error:
        click.echo(f"interrupted ({error.signal_name})", err=True)
        return exit_codes.INTERRUPTED


@contextlib.contextmanager
def _sides(
    request: GateRequest, source: Repository | None, name: str, commit: str
) -> Iterator[dict[str, Any]]:
    """Yields the fields of the request that say where both revisions are."""

    def note(text: str) -> None:
        click.echo(text, err=True)

    if request.program is None or source is None:
        with revisions.checked_out(name, commit, note, request.device) as tree:
            yield {"baseline": tree}
        return
    with program_revisions.side_by_side(
        request.program, source, name, commit, note
    ) as sides:
        yield {
            "baseline": sides.baseline,
            "program": sides.program,
            "folders": sides.folders,
        }


def _name_prefix(rule: Rule) -> str:
    return QUALITY_NAME_PREFIX if rule.metric.is_quality else NAME_PREFIX


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
    if untrusted.is_there(study_module.find_study(text, runs_dir) / PLAN_NAME):
        return f"study {text}", study_module.load(text, runs_dir)
    return text, None


def _against_study(
    request: GateRequest, call: Call, stored: Study, name: str, rule: Rule
) -> int:
    """Measures this tree alone, and judges it against a stored study."""

    def judge_studies(store: Store, study: Study, _trials: object) -> int:
        found = gate_module.of_studies(study, stored, rule, baseline=name)
        if found.differences and not request.is_different_allowed:
            # Seen only now: placement and machine are recorded with the trials.
            check_comparable(str(store.root), name, found.differences, False)
        return _conclude(store, found, request.form)

    def check(planned: PlannedSweep) -> None:
        differences = case_pairs.planned_differences(
            planned.trials,
            stored,
            this_machine.fingerprint(planned.trials[0].spec),
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
        name_prefix=_name_prefix(rule),
        check=check,
    )


def _conclude(store: Store, found: Gate, form: str) -> int:
    from reports.page import build

    record = gate_file.record_of(
        found,
        headline=judgement.headline(found),
        exit_code=code_of(found),
        notes=judgement.notes_of_looks(found),
    )
    gate_file.write(store, record)
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
    return exit_codes.INCONCLUSIVE if found.is_advice else _CODES[found.verdict]
