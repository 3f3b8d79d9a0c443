"""The verbs ``sweep`` and ``plan``: what they request, and what they do with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from harness.cli.host_options import HostRequest
from harness.cli.shared_options import (
    RUNS_DIR,
    AreCheckpointsKept,
    IsJson,
    Retry,
    RunsDir,
)
from harness.options.option import Option
from harness.planning.request import STUDY, SweepRequest

if TYPE_CHECKING:
    from harness.cli.verb import Call


class PlanRequest(HostRequest, SweepRequest):
    """A sweep, where it runs, and its study."""

    study: Annotated[
        str | None,
        Option(
            group=STUDY,
            metavar="NAME",
            help="Directory below `--runs-dir`.",
            default="`<workload>-<preset>-<digest>`, so that the same command resumes"
            " it",
        ),
    ] = None
    runs_dir: RunsDir = RUNS_DIR
    is_json: IsJson = False


class RunRequest(PlanRequest):
    """A sweep to run."""

    retry: Retry = None
    are_checkpoints_kept: AreCheckpointsKept = False
    is_dry_run: Annotated[
        bool,
        Option(
            group=STUDY,
            name="dry-run",
            is_key=False,
            help="Only print the trials and a time estimate; run and write nothing.",
        ),
    ] = False


def run(request: RunRequest, call: Call) -> int:
    """Runs a sweep and writes the report, or prints its plan."""
    from harness.cli import commands

    return commands.sweep(
        request,
        study=request.study,
        runs_dir=request.runs_dir,
        is_json=request.is_json,
        is_dry_run=request.is_dry_run,
        on_hosts=request,
        is_failed_retried=request.retry is not None,
        are_checkpoints_kept=request.are_checkpoints_kept,
        overrides=call.overrides,
        command=call.command,
    )


def plan(request: PlanRequest, call: Call) -> int:
    """Prints the trials of a sweep and a time estimate."""
    from harness.cli import commands

    return commands.sweep(
        request,
        study=request.study,
        runs_dir=request.runs_dir,
        is_json=request.is_json,
        is_dry_run=True,
        on_hosts=request,
        command=call.command,
    )
