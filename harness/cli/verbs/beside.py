"""Measures one revision beside another, and judges it."""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING, Any

import click

from harness.cli import commands
from harness.cli.verbs.gate_design import design_of
from harness.judging import program_revisions, revisions
from harness.run.sweep import stop_signals
from harness.sources import code_digest
from reports.words.judging import judgement
from results.judging import gate as gate_module
from results.judging import gate_logs
from results.statistics import group_sequential

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from harness.cli.verb import Call
    from harness.cli.verbs.gate_request import GateRequest
    from harness.command.identity import Repository
    from harness.planning.plan import PlannedSweep
    from results.judging.gate import Gate
    from results.judging.gate_metrics import Rule
    from results.store.study_store import Store
    from results.study.cases import Study

    # Receives a gate with its store, or none where the code of both sides is the same;
    # returns the exit code.
    Conclude = Callable[[Gate, "Store | None"], int]

NAME_PREFIX = "gate-"
QUALITY_NAME_PREFIX = "gate-quality-"
"""Of the study of a gate whose name is derived: on speed and memory, or on quality."""


class _EqualCodeError(Exception):
    """Both sides have the same code, so that nothing has to be measured."""

    def __init__(self, digests: tuple[str, ...]) -> None:
        super().__init__(*digests)
        self.digests = digests


def measure(
    request: GateRequest,
    call: Call,
    rule: Rule,
    *,
    name: str,
    commit: str,
    source: Repository | None,
    conclude: Conclude,
) -> int:
    """Measures two revisions beside each other; returns what ``conclude`` does."""
    baseline = f"revision {name} ({commit[: revisions.SHOWN_DIGITS]})"

    def judge_revisions(store: Store, study: Study, _trials: object) -> int:
        found = gate_module.of_revisions(study, rule, baseline=baseline)
        return conclude(found, store)

    def check(update: dict[str, Any], planned: PlannedSweep) -> None:
        equal = code_digest.equal_digests(planned.trials)
        if equal and not request.is_equal_measured:
            raise _EqualCodeError(equal)
        if source is None:
            tree, spec = update["baseline"], planned.trials[-1].spec
            revisions.check_runs(name, tree, spec)

    sides = _sides(request, source, name, commit)
    design = design_of(request, rule, baseline)
    try:
        with stop_signals(), sides as update:
            fewest = group_sequential.fewest_to_pass(rule.alpha)
            if request.repeats is not None and request.repeats < fewest:
                click.echo(
                    f"--repeats {request.repeats} can show a regression, and cannot"
                    f" pass: that takes {fewest} at --alpha {rule.alpha:.1%}",
                    err=True,
                )
            return commands.sweep(
                request.model_copy(update={**update, "gate": design}),
                call,
                conclude=judge_revisions,
                name_prefix=name_prefix(rule),
                check=functools.partial(check, update),
            )
    except _EqualCodeError as error:
        found = gate_module.of_equal_code(rule, error.digests, baseline=baseline)
        return conclude(found, None)


@contextlib.contextmanager
def _sides(
    request: GateRequest,
    source: Repository | None,
    name: str,
    commit: str,
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


def name_prefix(rule: Rule) -> str:
    """Returns that of the study of a gate whose name is derived."""
    return QUALITY_NAME_PREFIX if rule.metric.is_quality else NAME_PREFIX


def keep(store: Store, found: Gate) -> None:
    """Writes what a gate concluded, and the page of its study."""
    from reports.page import build

    gate_logs.write_gate(store, judgement.record_of(found))
    build.write_report(store, store.report_path)
