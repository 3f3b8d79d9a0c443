"""``gate --bisect GOOD BAD``: finds the first bad commit by gates beside the good one.

Every step is an ordinary gate, with a study of its own. What it found is written
before the next begins, so the same command continues after whatever ended it.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from harness.cli import exit_codes
from harness.cli.verbs import beside
from harness.cli.verbs.gate_design import of_gate
from harness.cli.verbs.gate_request import files_of, make_rule
from harness.errors import Interrupted, PlanError, RevisionError
from harness.judging import bisect_file, commit_range
from harness.judging.revisions import SHOWN_DIGITS
from harness.planning import study as study_module
from harness.planning.program_request import judged_metric, resolved
from reports.words.judging import bisection as words
from results.judging.bisection import suspects
from results.records import identity
from results.records.bisect_record import BisectRecord, BisectStep, CommitVerdict
from results.records.limits import MAX_LINE
from results.store import atomic

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from harness.cli.verb import Call
    from harness.cli.verbs.gate_request import GateRequest
    from harness.command.repository import Repository
    from harness.judging.commit_range import CommitRange
    from results.judging.gate import Gate
    from results.judging.gate_metrics import Rule
    from results.store.study_store import Store
    from results.study.cases import Study

NAME_PREFIX: Final = "bisect-"
_WRITE: Final[dict[str, Callable[[BisectRecord, str], str]]] = {
    "text": words.as_text,
    "markdown": words.as_markdown,
    "json": words.as_json,
}
_OF_CODE: Final = {
    exit_codes.OK: CommitVerdict.GOOD,
    exit_codes.REGRESSION: CommitVerdict.BAD,
    exit_codes.INCONCLUSIVE: CommitVerdict.UNDECIDED,
    exit_codes.UNFIT: CommitVerdict.UNFIT,
}
_SHOWN_ONLY: Final = {
    "bisect",
    "files",
    "form",
    "program",
    "retry",
    "runs_dir",
    "study",
}
"""Fields that do not change what is measured, or that are there in other words."""
_DIGITS: Final = 8


class _StoppedError(Exception):
    """No further commit can be judged: one of both ends cannot be measured."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def run(request: GateRequest, call: Call) -> int:
    """Finds the first bad commit, prints it, and returns the exit code.

    Raises:
      HarnessError: The request cannot be carried out, or one of its ends cannot.
      ResultsError: What was judged before cannot be read.
    """
    _check(request)
    assert request.bisect is not None
    good, bad = request.bisect
    source = commit_range.source_of(Path.cwd(), request.runs_dir)
    history = commit_range.read(source, good, bad)
    request = resolved(request, Path.cwd())
    rule = _rule(request, request.alpha)
    asked = request.model_dump(mode="json", exclude=_SHOWN_ONLY)
    digest = identity.digest(
        {**asked, "good": history.good, "bad": history.commits[-1]}
    )[:_DIGITS]
    new = BisectRecord(
        request=digest,
        metric=rule.metric.name,
        worse=rule.metric.worse,
        delta=rule.delta,
        alpha=rule.alpha,
        good=history.good,
        commits=history.commits,
    )
    name = request.study or f"{NAME_PREFIX}{request.workload}-{digest}"
    path = bisect_file.path_of(request.runs_dir, study_module.check_name(name))
    record = bisect_file.begin_or_continue(path, new)
    bisection = _Bisection(request, call, source, history, record, path, name)
    try:
        bisection.run()
    except Interrupted as error:
        _note(f"interrupted ({error.signal_name}); the same command continues")
        return exit_codes.INTERRUPTED
    except _StoppedError as error:
        return error.code
    return _tell(bisection.record, source, request)


def _tell(record: BisectRecord, source: Repository, request: GateRequest) -> int:
    left = suspects(record.commits, record.steps, record.alpha)
    subject = ""
    if left.is_found:
        subject = commit_range.subject(source, left.commits[0])
    for path, form in files_of(request, _WRITE).items():
        atomic.write_text(path, _WRITE[form](record, subject) + "\n")
    click.echo(_WRITE[request.form](record, subject))
    if left.is_bad_good:
        return exit_codes.OK
    if record.steps[-1].outcome is CommitVerdict.UNFIT:
        _note("the machine was unfit for a verdict; the same command tries again")
        return exit_codes.UNFIT
    return exit_codes.REGRESSION if left.is_found else exit_codes.INCONCLUSIVE


def _note(text: str) -> None:
    click.echo(text, err=True)


def _rule(request: GateRequest, alpha: float) -> Rule:
    return make_rule(
        workload="",
        metric=judged_metric(request.metric, request.command),
        delta=request.delta,
        alpha=alpha,
    )


def _check(request: GateRequest) -> None:
    """Raises if an option has no effect on a bisection."""
    if request.command is None:
        raise PlanError(
            "--bisect without --command: it searches the history of a program of"
            " yours; add the command, or judge one revision of this project by"
            " --baseline"
        )
    for spelling, value in (
        ("--baseline", request.baseline_name),
        ("--allow-different", request.is_different_allowed or None),
        ("--measure-equal", request.is_equal_measured or None),
    ):
        if value is not None:
            raise PlanError(
                f"{spelling} has no effect with --bisect, which judges every commit"
                " beside GOOD; leave it out"
            )
    if request.form not in _WRITE:
        raise PlanError(
            f"--format {request.form} with --bisect: its answer is a commit, not a list"
            f" of tests; use one of {', '.join(_WRITE)}"
        )
    files_of(request, _WRITE)


@dataclasses.dataclass
class _Bisection:
    """One bisection, from what was judged before to its end."""

    request: GateRequest
    call: Call
    source: Repository
    history: CommitRange
    record: BisectRecord
    path: Path
    name: str

    def run(self) -> None:
        """Judges commits until no other one narrows the suspects.

        Raises:
          _StoppedError: One of both ends cannot be measured.
          HarnessError: Nothing can be measured.
        """
        record = self.record
        while True:
            left = suspects(record.commits, record.steps, record.alpha)
            if not left.following or left.is_found:
                return
            step = self._step(left.following, left.level)
            record = self.record = record.model_copy(
                update={"steps": (*record.steps, step)}
            )
            bisect_file.write(self.path, record)
            _note(words.step_text(step))
            if step.outcome is CommitVerdict.UNFIT:
                return

    def _step(self, commit: str, level: float) -> BisectStep:
        """Judges one commit, or says why it is not judged."""
        known = self._same_files(commit)
        if known is not None:
            return known
        is_end = commit == self.history.commits[-1]
        number = len(self.record.steps) + 1
        study = f"{self.name}-{number:02}-{commit[:SHOWN_DIGITS]}"
        rule = _rule(self.request, level)
        request = of_gate(
            self.request.model_copy(update={"study": study, "alpha": level}), rule
        )
        found: dict[str, Any] = {}

        def conclude(gate: Gate, store: Store | None, of: Study | None) -> int:
            if store is not None and of is not None:
                found["cases"] = beside.keep(store, gate).cases
                found["why"] = _why_not_measured(of)
                found["why_unfit"] = gate.why_unfit
            return beside.code_of(gate)

        try:
            code = beside.measure(
                request,
                self.call,
                rule,
                name=commit_range.GOOD,
                commit=self.history.good,
                source=dataclasses.replace(self.source, commit=commit),
                conclude=conclude,
                name_here=f"commit {commit[:SHOWN_DIGITS]}",
            )
        except RevisionError as error:
            if is_end:  # or the good one, which no step can do without
                raise
            return _skipped(commit, str(error))
        if code == exit_codes.INTERRUPTED:
            raise _StoppedError(code)
        if code not in _OF_CODE:
            of_good, of_commit = found["why"]
            if of_good or is_end:
                _note(f"cannot be measured: {of_good or of_commit}")
                raise _StoppedError(code)
            return _skipped(commit, of_commit).model_copy(update={"level": level})
        return BisectStep(
            commit=commit,
            outcome=_OF_CODE[code],
            level=level,
            study=study,
            cases=found.get("cases", ()),
            reason=found.get("why_unfit", "")[:MAX_LINE],
        )

    def _same_files(self, commit: str) -> BisectStep | None:
        """Returns the step of a commit whose files are those of one that is known."""
        trees = self.history.trees
        if trees[commit] == trees[self.history.good]:
            return BisectStep(
                commit=commit,
                outcome=CommitVerdict.GOOD,
                level=0.0,
                reason="its files are those of the good commit",
            )
        for step in self.record.steps:
            if (
                trees[step.commit] == trees[commit]
                and step.outcome is not CommitVerdict.UNFIT
            ):
                return BisectStep(
                    commit=commit,
                    outcome=step.outcome,
                    level=0.0,
                    reason=f"its files are those of {step.commit[:SHOWN_DIGITS]}",
                )
        return None


def _skipped(commit: str, reason: str) -> BisectStep:
    return BisectStep(
        commit=commit,
        outcome=CommitVerdict.SKIPPED,
        level=0.0,
        reason=reason[:MAX_LINE],
    )


def _why_not_measured(study: Study) -> tuple[str, str]:
    """Returns the first failure of the good side, and of the commit; empty for none."""
    found = {True: "", False: ""}
    for entry in study.planned:
        side = bool(entry.spec.revision)
        if not entry.is_ok and entry.trial is not None and not found[side]:
            found[side] = f"{entry.state}: {entry.reason}"
    return found[True], found[False]
