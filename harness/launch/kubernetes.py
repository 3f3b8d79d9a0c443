"""Kubernetes: sweeps as Jobs, gangs as JobSets, by ``kubectl``."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import sys
import time
from typing import TYPE_CHECKING, Any, Final

from harness.errors import LaunchError, PlanError
from harness.launch import gang as gang_lib
from harness.launch import jobset
from harness.launch.gang import Engine
from harness.launch.launchers import Job, Nodes, RemoteLauncher, Submitted, ask
from harness.machine import allocation

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from harness.launch.gang import Gang
    from harness.launch.launchers import Launcher
    from results.records.models import TrialSpec


POD_VARIABLE: Final = "REPLICATOR_HARNESS_POD"
"""Set in the pod of a sweep: its name."""
UID_VARIABLE: Final = "REPLICATOR_HARNESS_POD_UID"
NAMESPACE_VARIABLE: Final = "REPLICATOR_HARNESS_NAMESPACE"
ADDRESS_VARIABLE: Final = "REPLICATOR_HARNESS_POD_ADDRESS"
RUNS_VARIABLE: Final = "REPLICATOR_HARNESS_CLAIM_AT"
"""Where the studies are mounted, in all pods."""
GPUS_VARIABLE: Final = "REPLICATOR_HARNESS_GPUS"
"""GPUs of each worker."""

PROGRAM: Final = "kubectl"
"""It knows the server and who asks; it gets raw paths, and nothing else."""
_API_OF: Final = {
    "jobs": "/apis/batch/v1",
    "jobsets": "/apis/jobset.x-k8s.io/v1alpha2",
    **dict.fromkeys(("secrets", "pods", "persistentvolumeclaims"), "/api/v1"),
}
"""By kind of object."""
_ANSWER_SEC = 30.0


class NotFoundError(LaunchError):
    """An object that the server does not have."""


def check_installed() -> None:
    if shutil.which(PROGRAM) is None:
        raise LaunchError(
            f"--launcher kubernetes: {PROGRAM!r} is not in PATH; run the command where"
            " it is (with nodes above 1, in the image, too), or leave --launcher out"
        )


class Server:
    """The objects of a namespace; by default of the one that ``kubectl`` uses."""

    def __init__(self, namespace: str = "") -> None:
        self.namespace = namespace or "default"
        if not namespace:
            words = ["config", "view", "--minify", "--output=jsonpath={..namespace}"]
            with contextlib.suppress(LaunchError):  # it may find the server without
                self.namespace = _run(words) or self.namespace

    def create(self, kind: str, made: dict[str, Any], *queries: str) -> dict[str, Any]:
        """Creates an object; returns what the server made of it."""
        raw = "&".join((f"{self.path(kind)}?fieldValidation=Strict", *queries))
        return _parsed(_run(["create", "--raw", raw, "--filename=-"], json.dumps(made)))

    def get(self, kind: str, rest: str = "") -> dict[str, Any]:
        return _parsed(_run(["get", "--raw", self.path(kind, rest)]))

    def delete(self, kind: str, name: str) -> None:
        """Deletes an object, in the background what it owns; harmless without it."""
        path = self.path(kind, f"/{name}?propagationPolicy=Background")
        with contextlib.suppress(NotFoundError):
            _run(["delete", "--raw", path])

    def path(self, kind: str, rest: str = "") -> str:
        return f"{_API_OF[kind]}/namespaces/{self.namespace}/{kind}{rest}"


def _parsed(text: str) -> dict[str, Any]:
    document = json.loads(text)
    if not isinstance(document, dict):
        raise LaunchError(f"{PROGRAM} answers no object: {text[:100]!r}")
    return document


def _run(words: list[str], text: str = "") -> str:
    command = [PROGRAM, f"--request-timeout={_ANSWER_SEC:g}s", *words]
    done = ask(command, text, check=f"{PROGRAM} version", answer_sec=2 * _ANSWER_SEC)
    if done.returncode:
        said = " ".join(done.stderr.split())[:300]
        kind = NotFoundError if "(NotFound)" in said else LaunchError
        raise kind(
            f"{PROGRAM} {words[0]} is refused: {said}; change what it names, or check"
            f" '{PROGRAM} auth can-i --list'"
        )
    return done.stdout


# A pod that was evicted is started again, and continues the study. One that ended by
# itself is not: its exit code is that of the sweep.

GRACE_SEC: Final = 60
"""Between the signal to stop and the end of a pod; a sweep needs a few seconds."""
CONTAINER: Final = "sweep"
_INTERRUPTED = 130
_MOST_INTERRUPTIONS = 6
"""Pods that somebody has ended by hand, before the Job gives up."""


def sweep_job(job: Job, options: KubernetesOptions, runs_dir: str) -> dict[str, Any]:
    runs = jobset.runs_folder(".", runs_dir)
    of_pod = {
        POD_VARIABLE: "metadata.name",
        UID_VARIABLE: "metadata.uid",
        NAMESPACE_VARIABLE: "metadata.namespace",
        ADDRESS_VARIABLE: "status.podIP",
    }
    command = job.command
    if command[0] == sys.executable:  # the interpreter of the image, not of this host
        command = ("python", *command[1:])
    template = jobset.pod(
        job,
        options,
        {
            "name": CONTAINER,
            "command": command,
            "workingDir": jobset.FOLDER,
            "env": {
                name: {"fieldRef": {"fieldPath": path}} for name, path in of_pod.items()
            }
            | {
                RUNS_VARIABLE: runs,
                GPUS_VARIABLE: str(job.gpus_per_worker),
                # The file is not in the pod, whose command names it; JSON is YAML.
                jobset.TEMPLATE_VARIABLE: jobset.literal(
                    json.dumps(options.pod_template)
                ),
            },
        },
        runs=runs,
        gpus=-(-job.workers // (options.nodes or 1)) * job.gpus_per_worker,
        terminationGracePeriodSeconds=GRACE_SEC,
    )
    evicted = [{"type": "DisruptionTarget", "status": "True"}]
    ended = {"containerName": CONTAINER, "operator": "NotIn", "values": [_INTERRUPTED]}
    rules = [
        {"action": "Ignore", "onPodConditions": evicted},
        {"action": "FailJob", "onExitCodes": ended},
    ]
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"generateName": f"{job.name}-"},
        "spec": {
            jobset.DEADLINE: options.deadline_sec,
            "backoffLimit": _MOST_INTERRUPTIONS,
            # The next pod begins when the last one has ended: both write to one study.
            "podReplacementPolicy": "Failed",
            "podFailurePolicy": {"rules": rules},
            "template": template,
        },
    }


_POLL_SEC = 2.0
_TAIL_LINES = 50
_OWN = ("HOSTNAME", "JOB_COMPLETION_INDEX")
"""Variables that every pod has for itself."""


class GangSet(Engine):
    """The JobSet of one gang, and the secret with its variables."""

    def __init__(
        self, gang: Gang, options: KubernetesOptions, environ: Mapping[str, str]
    ) -> None:
        self._name = f"gang-{secrets.token_hex(5)}"
        self._server = Server(environ[NAMESPACE_VARIABLE])
        self._polled = (0.0, None)  # type: tuple[float, int | None]
        job = Job(
            name=self._name,
            command=tuple(gang.command),
            workers=gang.num_members,
            gpus_per_worker=int(environ.get(GPUS_VARIABLE, "0")),
            directory=str(gang.trial_dir),
        )
        # The variables stand in a secret: whoever may read pods would see them.
        made = jobset.manifest(job, options, environ[RUNS_VARIABLE], secret=self._name)
        # Ends with the pod of the sweep, however that ends.
        owner = {"name": environ[POD_VARIABLE], "uid": environ[UID_VARIABLE]}
        owner |= {"apiVersion": "v1", "kind": "Pod"}
        made["metadata"]["ownerReferences"] = [owner]
        # With the address at which pods reach this one.
        to_here = gang_lib.ADDRESS_VARIABLE
        address = gang_lib.with_host(gang.variables[to_here], environ[ADDRESS_VARIABLE])
        secret = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": made["metadata"],
            "stringData": {
                name: value
                for name, value in {**gang.variables, to_here: address}.items()
                if name.isidentifier() and name.isascii() and name not in _OWN
            },
        }
        self._server.create("secrets", secret)
        try:
            self._server.create("jobsets", made)
        except LaunchError:
            self._server.delete("secrets", self._name)
            raise

    def poll(self) -> int | None:
        asked, code = self._polled
        if code is None and time.monotonic() - asked >= _POLL_SEC:
            self._polled = (time.monotonic(), code := self._ask())
        return code

    def _ask(self) -> int | None:
        try:
            answer = self._server.get("jobsets", f"/{self._name}")
        except NotFoundError:
            return 1
        except LaunchError:  # members say how they end, whether the server answers
            return None
        ended = {
            condition["type"]
            for condition in answer.get("status", {}).get("conditions", ())
            if condition.get("status") == "True"
        }
        return 1 if "Failed" in ended else 0 if "Completed" in ended else None

    def cancel(self) -> None:
        for kind in ("jobsets", "secrets"):
            self._server.delete(kind, self._name)

    def output(self) -> str:
        """What the pods printed, and why those that wait do."""
        label = f"jobset.sigs.k8s.io%2Fjobset-name%3D{self._name}"
        try:
            pods = self._server.get("pods", f"?labelSelector={label}").get("items", [])
            return "\n".join(text for pod in pods for text in self._texts(pod))
        except LaunchError as error:
            return str(error)

    def _texts(self, pod: dict[str, Any]) -> list[str]:
        name, status = pod["metadata"]["name"], pod.get("status", {})
        # Why it is not started: no host has room, its image cannot be pulled.
        waiting = [
            condition
            for condition in status.get("conditions", ())
            if condition["type"] == "PodScheduled" and condition["status"] == "False"
        ]
        states = (one.get("state", {}) for one in status.get("containerStatuses", ()))
        waiting += [state["waiting"] for state in states if "waiting" in state]
        reasons = [
            f"pod {name}: {one.get('reason', '')}: {one.get('message', '')}"
            for one in waiting
        ]
        if reasons:
            return reasons
        path = self._server.path("pods", f"/{name}/log?tailLines={_TAIL_LINES}")
        try:
            log = _run(["get", "--raw", path])
        except LaunchError as error:
            log = str(error)
        return [f"-- pod {name}:\n{log}"] if log.strip() else []


class KubernetesOptions(jobset.PodOptions):
    nodes: Nodes = None


def _check_claim(options: KubernetesOptions, server: Server) -> None:
    claim = (options.studies or {}).get("persistentVolumeClaim", {})
    if not (isinstance(claim, dict) and claim.get("claimName")):
        return  # another kind of volume, which the server knows
    name, kind = claim["claimName"], "persistentvolumeclaims"
    try:
        stored = server.get(kind, f"/{name}")
    except NotFoundError:
        items = server.get(kind).get("items", [])
        known = ", ".join(item["metadata"]["name"] for item in items) or "none"
        raise PlanError(
            f"pod-template: its claim {name!r} is not in namespace"
            f" {server.namespace!r}; known are {known}"
        ) from None
    modes = stored.get("spec", {}).get("accessModes", [])
    if (options.nodes or 1) > 1 and "ReadWriteMany" not in modes:
        raise PlanError(
            f"pod-template: its claim {name!r} has the access modes {modes}, but the"
            f" pods of {options.nodes} nodes write to it together; use one with"
            " ReadWriteMany, or nodes=1"
        )


class Kubernetes(RemoteLauncher):
    """A Job per sweep; in its pod, a JobSet for each trial of several hosts."""

    name = "kubernetes"
    summary = "a Job, whose pod starts a JobSet per trial of several hosts"
    options = KubernetesOptions

    def __init__(self, options: KubernetesOptions | None = None) -> None:
        self._options = options or KubernetesOptions()
        self.num_hosts = self._options.nodes or 1

    def is_submitted(self) -> bool:
        return not os.environ.get(POD_VARIABLE)

    def start(self, options: KubernetesOptions) -> Launcher:
        if self.is_submitted():
            raise PlanError(
                f"--launcher {self.name}: this process is in no pod of a sweep"
                f" ({POD_VARIABLE} is not set); use 'sweep --launcher {self.name}',"
                " which submits it"
            )
        if (options.nodes or 1) > 1:
            check_installed()
        return Kubernetes(options)

    def plan(self, options: KubernetesOptions) -> Launcher:
        return Kubernetes(options)

    def submit(self, job: Job, options: KubernetesOptions, runs_dir: Path) -> Submitted:
        """Submits a Job whose pod is replaced until the sweep is complete."""
        jobset.check(job, options, self.name)
        check_installed()
        server = Server(options.namespace)
        _check_claim(options, server)
        made = sweep_job(job, options, str(runs_dir))
        server.create("jobs", made, "dryRun=All")
        number = server.create("jobs", made)["metadata"]["name"]
        where = f"--namespace={server.namespace}"
        return Submitted(
            number=number,
            follow=f"'kubectl logs {where} --follow job/{number}'",
            end=f"'kubectl delete {where} job {number}'",
        )

    def check(self, specs: Iterable[TrialSpec]) -> None:
        specs = list(specs)
        super().check(specs)
        for spec in specs:
            number = len(allocation.processes_of_trial(spec).members)
            if self.num_hosts > 1 and number > self.num_hosts:
                raise PlanError(
                    f"--launcher {self.name}: a trial has {number} processes, and a pod"
                    f" runs one; use --set nodes={number}, or"
                    " replicas-per-worker"
                )

    def engine(self, gang: Gang) -> Engine:
        return GangSet(gang, self._options, os.environ)


LAUNCHER = Kubernetes()
