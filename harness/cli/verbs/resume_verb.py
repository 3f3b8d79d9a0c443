"""The verb ``resume``: runs the missing trials of a study."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from harness.cli import commands
from harness.cli.host_options import Launcher
from harness.cli.shared_options import (
    RUNS_DIR,
    AreCheckpointsKept,
    IsJson,
    Retry,
    RunsDir,
    StudyArgument,
)
from harness.launch import catalog
from harness.options.durations import duration
from harness.options.option import Option, Options

if TYPE_CHECKING:
    from harness.cli.verb import Call


class ResumeRequest(Options):
    """Which study is resumed, and what is changed."""

    study: StudyArgument
    runs_dir: RunsDir = RUNS_DIR
    retry: Retry = None
    are_checkpoints_kept: AreCheckpointsKept = False
    data_dir: Annotated[
        Path | None,
        Option(
            help="Directory of TFDS data sets, if they have moved.",
            default="the plan's",
        ),
    ] = None
    timeout_sec: Annotated[
        float | None,
        Option(
            name="timeout",
            kind=duration(),
            help="Time limit of one trial; a bare number is seconds.",
            default="the plan's",
        ),
    ] = None
    launcher: Launcher = catalog.DEFAULT
    is_json: IsJson = False


def run(request: ResumeRequest, call: Call) -> int:
    """Runs what is missing and reports."""
    return commands.resume(
        request.study,
        runs_dir=request.runs_dir,
        is_json=request.is_json,
        timeout_sec=request.timeout_sec,
        is_failed_retried=request.retry is not None,
        are_checkpoints_kept=request.are_checkpoints_kept,
        data_dir=request.data_dir,
        overrides=call.overrides,
        launcher_name=request.launcher,
    )
