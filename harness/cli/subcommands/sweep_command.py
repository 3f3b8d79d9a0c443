"""The subcommand ``sweep``: what it requests, and what it does with it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import Field, InstanceOf

from harness.launch import launchers
from harness.options.kinds import Kind
from harness.options.option import NO_OPTIONS, Contributed, Options, option
from harness.planning.request import (
    MEASURED,
    RUNS_DIR,
    STUDY,
    Axis,
    IsJson,
    RunsDir,
    SweepRequest,
    parse_vary,
    resolved,
)
from results.records.record_base import Replicas

PROCESSES: Final = "Where the processes run"


LAUNCHER: Final = Kind(lambda text, _: launchers.info(text).name, metavar="NAME")


def describe_launchers(does: str) -> str:
    infos = map(launchers.info, launchers.LAUNCHERS)
    return "; ".join(
        f"`{launcher.name}`: {launcher.summary}"
        for launcher in infos
        if launcher.can(does)
    )


class RunRequest(SweepRequest):
    renamed = {"--minutes": ("--time-budget", "min")}  # noqa: RUF012
    former = {  # noqa: RUF012 - of the class, as pydantic has it
        "data-dir": "set TFDS_DATA_DIR, which TFDS reads too",
        "device-memory": "--dry-run prints what each level keeps; compare it with the"
        " memory of a device",
        "evaluate": "use --budget window, or --budget AMOUNT,window, for --evaluate,"
        " and --budget none for --no-evaluate",
        "file": "write the name of the study file without it: sweep study.toml",
        "gpus-per-worker": "use --set replicas-per-worker=N",
        "image": "name it in the pod-template, as the image of the container 'harness'",
        "num-measured-steps": "use --steps +MEASURED, or --steps WARMUP+MEASURED",
        "num-warmup-steps": "use --steps WARMUP+, or --steps WARMUP+MEASURED",
        "partition": "set SBATCH_PARTITION, which Slurm reads",
        "time-limit": "set SBATCH_TIMELIMIT for Slurm, or activeDeadlineSeconds in"
        " the spec of the pod-template for Kubernetes",
        "workers": "leave it out: there is one for each replicas-per-worker of the"
        " --replicas",
        "work": "use --mode strong for fixed work, --mode weak for work per replica",
    }

    launcher: str = option(
        launchers.DEFAULT,
        f"Starts the processes of a trial. {describe_launchers('start')}.",
        PROCESSES,
        kind=LAUNCHER,
    )
    replicas_per_worker: Replicas = option(
        1,
        "Replicas of each worker process, each on a GPU of its own with"
        " `--device gpu`.",
        is_setting=True,
    )
    launcher_options: Annotated[
        Options,
        Contributed(by="launcher", models=launchers.options, use=launchers.info),
    ] = NO_OPTIONS
    study: str | None = option(
        None,
        "Directory below `--runs-dir`.",
        STUDY,
        metavar="NAME",
        shown="`<workload>-<preset>-<digest>`, of a gate with `gate-` before;"
        " `sweep --study NAME` alone runs what a study lacks",
    )
    vary: InstanceOf[Axis] | None = option(
        None,
        "A study for each value of `data`, `global-batch-size`,"
        " `per-replica-batch-size` or an option of the workload, and a page of all:"
        " `--vary global-batch-size=256,512`.",
        MEASURED,
        kind=Kind(parse_vary, metavar="KEY=A,B,..."),
    )
    runs_dir: RunsDir = RUNS_DIR
    is_json: IsJson = False
    retry: Literal["failed"] | None = option(
        None, "Run trials with a recorded failure again."
    )
    is_dry_run: bool = option(
        False,
        "Only print the trials and a time estimate; of `transformer`, also the"
        " memory of a device at each level of `sharded_update`.",
        name="dry-run",
        is_key=False,
    )

    # The command, with all that a study file says.
    recorded_command: tuple[str, ...] = ()
    # Replaces fields of ``RunSettings``; for tests.
    overrides: Mapping[str, Any] = Field(default_factory=dict)

    @property
    def info(self) -> launchers.Launcher:
        return launchers.info(self.launcher)


def run(request: RunRequest) -> int:
    from harness.cli import commands

    if request.study and not request.workload and request.command is None:
        return commands.run_missing(request)
    request = resolved(request, Path.cwd())
    if request.vary is not None:
        return commands.sweep_varied(request)
    return commands.sweep(request)
