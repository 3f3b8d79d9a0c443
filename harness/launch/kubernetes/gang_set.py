"""Gangs from the pod of a sweep: a JobSet for each trial, with a pod per worker."""

from __future__ import annotations

import os
import secrets
import time
from typing import TYPE_CHECKING, Any

import yaml

from harness.errors import LaunchError, PlanError
from harness.launch import engine
from harness.launch import kubernetes as names
from harness.launch.engine import Engine
from harness.launch.info import Job
from harness.launch.jobset import launcher as jobset
from harness.launch.kubernetes import programs
from harness.launch.remote import RemoteLauncher
from harness.placement import processes

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from harness.launch.engine import Gang
    from harness.launch.kubernetes.launcher import KubernetesOptions
    from results.records.models import TrialSpec

_POLL_SEC = 2.0
_TAIL_LINES = 50
_OWN = ("HOSTNAME", "JOB_COMPLETION_INDEX")
"""Variables that every pod has for itself."""


class KubernetesLauncher(RemoteLauncher):
    """Starts each trial as a JobSet."""

    name = "kubernetes"

    def __init__(self, options: KubernetesOptions) -> None:
        self._options = options

    @property
    def num_hosts(self) -> int:
        """Pods of a trial, each on a host of its own."""
        return self._options.nodes or 1

    def check(self, specs: Iterable[TrialSpec]) -> None:
        """Checks that every worker has a host."""
        specs = list(specs)
        super().check(specs)
        for spec in specs:
            number = len(processes.processes_of_trial(spec).members)
            if self.num_hosts > 1 and number > self.num_hosts:
                raise PlanError(
                    f"--launcher {self.name}: a trial has {number} processes, and a pod"
                    f" runs one; use --nodes {number}, or --replicas-per-worker"
                )

    def start(self, gang: Gang) -> Engine:
        """Creates a JobSet, whose pods are the members."""
        return GangSet(gang, self._options, os.environ)


class GangSet(Engine):
    """The JobSet of one gang, and the secret with its variables."""

    def __init__(
        self, gang: Gang, options: KubernetesOptions, environ: Mapping[str, str]
    ) -> None:
        """Creates both."""
        self._name = f"gang-{secrets.token_hex(5)}"
        self._namespace = environ[names.NAMESPACE_VARIABLE]
        self._polled = (0.0, None)  # type: tuple[float, int | None]
        made = _jobset(self._name, gang, options, environ)
        secret = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": made["metadata"],
            "stringData": _variables(gang, environ),
        }
        programs.create(programs.SECRETS.format(self._namespace), secret)
        try:
            programs.create(programs.JOBSETS.format(self._namespace), made)
        except LaunchError:
            programs.delete(self._path(programs.SECRETS))
            raise

    def poll(self) -> int | None:
        """0 or 1 when the JobSet has ended or is gone; None while it runs."""
        asked, code = self._polled
        if code is None and time.monotonic() - asked >= _POLL_SEC:
            self._polled = (time.monotonic(), code := self._ask())
        return code

    def _ask(self) -> int | None:
        try:
            found = programs.get(self._path(programs.JOBSETS))
        except programs.NotFoundError:
            return 1
        except LaunchError:  # members say how they end, whether the server answers
            return None
        ended = {
            condition["type"]
            for condition in found.get("status", {}).get("conditions", ())
            if condition.get("status") == "True"
        }
        return 1 if "Failed" in ended else 0 if "Completed" in ended else None

    def cancel(self) -> None:
        """Deletes the JobSet, by which its pods end, and the secret."""
        for path in (programs.JOBSETS, programs.SECRETS):
            programs.delete(self._path(path))

    def output(self) -> str:
        """What the pods printed, and why those that wait do."""
        path = programs.PODS.format(self._namespace)
        label = f"jobset.sigs.k8s.io%2Fjobset-name%3D{self._name}"
        try:
            found = programs.get(f"{path}?labelSelector={label}").get("items", [])
            return "\n".join(text for pod in found for text in self._texts(path, pod))
        except LaunchError as error:
            return str(error)

    def _texts(self, path: str, pod: dict[str, Any]) -> list[str]:
        name, status = pod["metadata"]["name"], pod.get("status", {})
        reasons = [
            f"pod {name}: {one.get('reason', '')}: {one.get('message', '')}"
            for one in _waiting(status)
        ]
        if reasons:
            return reasons
        try:
            log = programs.get_text(f"{path}/{name}/log?tailLines={_TAIL_LINES}")
        except LaunchError as error:
            log = str(error)
        return [f"-- pod {name}:\n{log}"] if log.strip() else []

    def _path(self, path: str) -> str:
        return f"{path.format(self._namespace)}/{self._name}"


def _waiting(status: Mapping[str, Any]) -> list[dict[str, str]]:
    """Why a pod is not started: no host has room, its image cannot be pulled."""
    unscheduled = [
        condition
        for condition in status.get("conditions", ())
        if condition["type"] == "PodScheduled" and condition["status"] == "False"
    ]
    states = (one.get("state", {}) for one in status.get("containerStatuses", ()))
    return [*unscheduled, *(state["waiting"] for state in states if "waiting" in state)]


def _variables(gang: Gang, environ: Mapping[str, str]) -> dict[str, str]:
    """The variables of a gang, with the address at which pods reach this one."""
    port = gang.variables[engine.ADDRESS_VARIABLE].rpartition(":")[2]
    address = f"{environ[names.ADDRESS_VARIABLE]}:{port}"
    variables = {**gang.variables, engine.ADDRESS_VARIABLE: address}
    return {
        name: value
        for name, value in variables.items()
        if name.isidentifier() and name.isascii() and name not in _OWN
    }


def _jobset(
    name: str, gang: Gang, options: KubernetesOptions, environ: Mapping[str, str]
) -> dict[str, Any]:
    """Returns the manifest of ``launch render``, owned by the pod of the sweep."""
    job = Job(
        name=name,
        command=gang.command,
        workers=gang.num_members,
        gpus_per_worker=int(environ.get(names.GPUS_VARIABLE, "0")),
        directory=str(gang.trial_dir),
    )
    # The variables stand in a secret: whoever may read pods would see them.
    text = jobset.manifest(job, options, environ[names.RUNS_VARIABLE], secret=name)
    made: dict[str, Any] = yaml.safe_load(text)
    # Ends with the pod of the sweep, however that ends.
    made["metadata"]["ownerReferences"] = [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "name": environ[names.POD_VARIABLE],
            "uid": environ[names.UID_VARIABLE],
        }
    ]
    return made
