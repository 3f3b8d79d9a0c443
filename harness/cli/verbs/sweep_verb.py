"""The verb ``sweep``: what it requests, and what it does with it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import InstanceOf

from harness.cli.host_options import HostRequest
from harness.cli.shared_options import (
    RUNS_DIR,
    IsJson,
    Retry,
    RunsDir,
)
from harness.options.option import Option
from harness.planning.request import MEASURED, STUDY, SweepRequest, resolved
from harness.planning.study import VARY, Axis

if TYPE_CHECKING:
    from harness.cli.verb import Call


class RunRequest(HostRequest, SweepRequest):
    """A sweep to run: what is measured, where it runs, and its study."""

    former = {  # noqa: RUF012 - of the class, as pydantic has it
        "data-dir": "set TFDS_DATA_DIR, which TFDS reads too",
        "device-memory": "--dry-run prints what each level keeps; compare it with the"
        " memory of a device",
        "evaluate": "use --budget window, or --budget AMOUNT,window, for --evaluate,"
        " and --budget none for --no-evaluate",
        "image": "name it in the --pod-template, as the image of the container"
        " 'harness'",
        "partition": "set SBATCH_PARTITION, which Slurm reads",
        "time-limit": "set SBATCH_TIMELIMIT for Slurm, or activeDeadlineSeconds in"
        " the spec of the --pod-template for Kubernetes",
        "work": "use --mode strong for fixed work, --mode weak for work per replica",
    }

    study: Annotated[
        str | None,
        Option(
            group=STUDY,
            metavar="NAME",
            help="Directory below `--runs-dir`.",
            default="`<workload>-<preset>-<digest>`, so that the same command resumes"
            " it; alone, `--study NAME` runs what a study lacks",
        ),
    ] = None
    vary: Annotated[
        InstanceOf[Axis] | None,
        Option(
            group=MEASURED,
            kind=VARY,
            help="A study for each value of `data`, `global-batch-size`,"
            " `per-replica-batch-size`, or an option of the workload, one after the"
            " other, with a page of all: `--vary global-batch-size=256,512`.",
        ),
    ] = None
    runs_dir: RunsDir = RUNS_DIR
    is_json: IsJson = False
    retry: Retry = None
    is_dry_run: Annotated[
        bool,
        Option(
            group=STUDY,
            name="dry-run",
            is_key=False,
            help="Only print the trials and a time estimate, and, of a workload that"
            " counts its variables (`transformer`), what they take of a device at each"
            " level of `sharded_update`; run and write nothing.",
        ),
    ] = False


def run(request: RunRequest, call: Call) -> int:
    """Runs a sweep and writes the report, or prints its plan."""
    from harness.cli import commands, continuing

    if continuing.is_continued(request):
        return continuing.run(request, call)
    request = resolved(request, Path.cwd())
    if request.vary is not None:
        from harness.cli import varied

        return varied.sweep(request, call)
    return commands.sweep(request, call)
