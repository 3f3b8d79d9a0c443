"""The Job of a sweep: one pod, which is replaced when Kubernetes takes its host away.

The same command continues a study, so a pod that was evicted is simply started again.
A pod that ended by itself is not: its exit code is that of the sweep.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any, Final

from harness.launch import kubernetes as names
from harness.launch import pods

if TYPE_CHECKING:
    from harness.launch.info import Job
    from harness.launch.kubernetes.launcher import KubernetesOptions

GRACE_SEC: Final = 60
"""Between the signal to stop and the end of a pod; a sweep needs a few seconds."""
CONTAINER: Final = "sweep"
_INTERRUPTED = 130
_MOST_INTERRUPTIONS = 6
"""Pods that somebody has ended by hand, before the Job gives up."""


def of_sweep(job: Job, options: KubernetesOptions, runs_dir: str) -> dict[str, Any]:
    """Returns the Job of a sweep."""
    runs = pods.runs_folder(".", runs_dir)
    on_one = -(-job.workers // (options.nodes or 1))
    gpus = on_one * job.gpus_per_worker
    volumes = []
    mounts = [{"name": pods.RUNS, "mountPath": runs}]
    if gpus > 1:  # as in the template of a JobSet
        volumes = [{"name": "shared-memory", "emptyDir": {"medium": "Memory"}}]
        mounts.append({"name": "shared-memory", "mountPath": "/dev/shm"})  # noqa: S108
    container: dict[str, Any] = {
        "name": CONTAINER,
        "image": options.image,
        "command": pods.literal(_in_image(job.command)),
        "workingDir": pods.FOLDER,
        "env": [
            _of_pod(names.POD_VARIABLE, "metadata.name"),
            _of_pod(names.UID_VARIABLE, "metadata.uid"),
            _of_pod(names.NAMESPACE_VARIABLE, "metadata.namespace"),
            _of_pod(names.ADDRESS_VARIABLE, "status.podIP"),
            {"name": names.RUNS_VARIABLE, "value": runs},
            {"name": names.GPUS_VARIABLE, "value": str(job.gpus_per_worker)},
            # The file is not in the pod, whose command names it; JSON is YAML.
            {
                "name": pods.TEMPLATE_VARIABLE,
                "value": pods.literal([json.dumps(options.pod_template)])[0],
            },
            *({"name": n, "value": v} for n, v in pods.kept_code(runs, gpus).items()),
        ],
        "volumeMounts": mounts,
    }
    if limits := pods.limits(job, gpus=gpus):
        container["resources"] = {"limits": {n: str(a) for n, a in limits.items()}}
    pod: dict[str, Any] = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": GRACE_SEC,
        "securityContext": {"fsGroup": pods.GROUP},
        "containers": [container],
        "volumes": volumes,
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"generateName": f"{job.name}-"},
        "spec": {
            "activeDeadlineSeconds": options.deadline_sec,
            "backoffLimit": _MOST_INTERRUPTIONS,
            # The next pod begins when the last one has ended: both write to one study.
            "podReplacementPolicy": "Failed",
            "podFailurePolicy": {
                "rules": [
                    {
                        "action": "Ignore",
                        "onPodConditions": [
                            {"type": "DisruptionTarget", "status": "True"}
                        ],
                    },
                    {
                        "action": "FailJob",
                        "onExitCodes": {
                            "containerName": CONTAINER,
                            "operator": "NotIn",
                            "values": [_INTERRUPTED],
                        },
                    },
                ]
            },
            "template": pods.with_template(options.pod_template, {"spec": pod}),
        },
    }


def _of_pod(name: str, field: str) -> dict[str, Any]:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": field}}}


def _in_image(command: tuple[str, ...]) -> tuple[str, ...]:
    """The interpreter of the image, not that of the host of the command line."""
    return ("python", *command[1:]) if command[0] == sys.executable else command
