"""What the command line knows of the launcher ``slurm``."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from harness.errors import PlanError
from harness.launch.info import LauncherInfo, Nodes, Submitted
from harness.launch.slurm import JOB_VARIABLE, PARTITION_VARIABLE
from harness.options.option import Options

if TYPE_CHECKING:
    from pathlib import Path

    from harness.launch.contract import Launcher
    from harness.launch.info import Job


class SlurmOptions(Options):
    """What a job needs of Slurm; ``sbatch`` reads the rest from ``SBATCH_*``."""

    nodes: Nodes = None


class Slurm(LauncherInfo):
    """Steps of ``srun`` in an allocation; outside of one, jobs of ``sbatch``."""

    name = "slurm"
    summary = "steps of srun in an allocation, a job of sbatch outside of one"
    options = file_options = SlurmOptions

    def is_submitted(self) -> bool:
        """Whether this process is in no allocation."""
        return not os.environ.get(JOB_VARIABLE)

    def start(self, options: SlurmOptions) -> Launcher:
        """Returns what starts steps on the nodes of the allocation."""
        from harness.launch.slurm import srun

        if self.is_submitted():
            raise PlanError(
                "--launcher slurm: this process is in no allocation (SLURM_JOB_ID is"
                " not set); run the command with sbatch or salloc, or use 'sweep"
                " --launcher slurm', which submits it"
            )
        launcher = srun.from_environment(os.environ)
        if (options.nodes or 1) > launcher.num_hosts:
            raise PlanError(
                f"--nodes {options.nodes}: the allocation of job"
                f" {os.environ[JOB_VARIABLE]} has {launcher.num_hosts}; ask for more"
                " nodes, or leave --nodes out"
            )
        return launcher

    def plan(self, options: SlurmOptions) -> Launcher:
        """Returns what will start steps in a job of so many nodes."""
        from harness.launch.slurm import srun

        return srun.SlurmLauncher(options.nodes or 1)

    def submit(self, job: Job, options: SlurmOptions, runs_dir: Path) -> Submitted:
        """Submits a job that requeues itself until the sweep is complete."""
        from harness.launch.slurm import sbatch

        nodes = options.nodes or 1
        sbatch.check(os.environ.get(PARTITION_VARIABLE), nodes)
        number = sbatch.submit(sbatch.of_sweep(job, nodes, str(runs_dir)))
        log = sbatch.log_of(job, number)
        return Submitted(
            number=number,
            follow=f"'squeue --jobs={number}' and 'tail -F {log}'",
            end=f"scancel {number}",
        )

    def render(self, job: Job, options: SlurmOptions) -> dict[str, str]:
        """Returns the batch file of a gang."""
        from harness.launch.slurm import sbatch

        if options.nodes is not None:
            job.check_nodes(options.nodes)
        return {f"{job.name}.sbatch": sbatch.of_gang(job, options.nodes)}


LAUNCHER = Slurm()
