"""What the command line knows of the launcher ``kubernetes``."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from harness.errors import PlanError
from harness.launch import pods
from harness.launch.info import LauncherInfo, Nodes, Submitted
from harness.launch.kubernetes import POD_VARIABLE

if TYPE_CHECKING:
    from pathlib import Path

    from harness.launch.contract import Launcher
    from harness.launch.info import Job


class KubernetesOptions(pods.PodOptions):
    """What a sweep needs of Kubernetes."""

    nodes: Nodes = None


class Kubernetes(LauncherInfo):
    """A Job per sweep; in its pod, a JobSet for each trial of several hosts."""

    name = "kubernetes"
    summary = (
        "a Job of Kubernetes, whose pod starts a JobSet per trial of several hosts"
    )
    options = KubernetesOptions

    def is_submitted(self) -> bool:
        """Whether this process is in no pod of a sweep."""
        return not os.environ.get(POD_VARIABLE)

    def start(self, options: KubernetesOptions) -> Launcher:
        """Returns what starts gangs from the pod of a sweep."""
        from harness.launch.kubernetes import gang_set, programs

        if self.is_submitted():
            raise PlanError(
                f"--launcher {self.name}: this process is in no pod of a sweep"
                f" ({POD_VARIABLE} is not set); use 'sweep --launcher {self.name}',"
                " which submits it"
            )
        if (options.nodes or 1) > 1:
            programs.check_installed()
        return gang_set.KubernetesLauncher(options)

    def plan(self, options: KubernetesOptions) -> Launcher:
        """Returns what will start gangs from the pod of a sweep."""
        from harness.launch.kubernetes import gang_set

        return gang_set.KubernetesLauncher(options)

    def submit(self, job: Job, options: KubernetesOptions, runs_dir: Path) -> Submitted:
        """Submits a Job whose pod is replaced until the sweep is complete."""
        from harness.launch.kubernetes import programs, sweep_job

        pods.check(job, options, self.name)
        programs.check_installed()
        namespace = options.namespace or programs.namespace()
        self._check_claim(options, namespace)
        made = sweep_job.of_sweep(job, options, str(runs_dir))
        path = programs.JOBS.format(namespace)
        programs.create(path, made, "dryRun=All")
        number = programs.create(path, made)["metadata"]["name"]
        where = f"--namespace={namespace}"
        return Submitted(
            number=number,
            follow=f"'kubectl logs {where} --follow job/{number}'",
            end=f"'kubectl delete {where} job {number}'",
        )

    def _check_claim(self, options: KubernetesOptions, namespace: str) -> None:
        from harness.launch.kubernetes import programs

        path = programs.CLAIMS.format(namespace)
        claim = (options.studies or {}).get("persistentVolumeClaim", {})
        if not (isinstance(claim, dict) and claim.get("claimName")):
            return  # another kind of volume, which the server knows
        name = claim["claimName"]
        try:
            found = programs.get(f"{path}/{name}")
        except programs.NotFoundError:
            items = programs.get(path).get("items", [])
            known = ", ".join(item["metadata"]["name"] for item in items) or "none"
            raise PlanError(
                f"--pod-template: its claim {name!r} is not in namespace"
                f" {namespace!r}; known are {known}"
            ) from None
        modes = found.get("spec", {}).get("accessModes", [])
        if (options.nodes or 1) > 1 and "ReadWriteMany" not in modes:
            raise PlanError(
                f"--pod-template: its claim {name!r} has the access modes {modes}, but"
                f" pods of --nodes {options.nodes} write to it together; use one with"
                " ReadWriteMany, or --nodes 1"
            )


LAUNCHER = Kubernetes()
