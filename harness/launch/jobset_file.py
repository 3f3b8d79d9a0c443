"""The target ``jobset``: a JobSet of Kubernetes, with a pod per worker.

Kubernetes numbers the pods, and the service of the JobSet gives them names;
``KubernetesEnvironment`` reads both in every pod. Each pod has a machine of its own. If
one fails, all are ended: the others could only wait for it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from harness.errors import PlanError
from harness.launch.amounts import seconds_of
from harness.launch.templating import render_template

if TYPE_CHECKING:
    from harness.launch.targets import Job

WORKERS = "worker"
"""The name of the replicated job."""
PORT = 2222
_LONGEST_HOST_NAME = 63
_MEMORY = re.compile(r"[1-9]\d{0,11}(Ki|Mi|Gi|Ti|k|M|G|T)?")
# [registry[:port]/]path[:tag][@digest]
_IMAGE = re.compile(
    r"[a-z0-9]([-._a-z0-9]*[a-z0-9])?(:\d{1,5})?(/[a-z0-9][-._a-z0-9]*)*"
    r"(:[A-Za-z0-9_][-.A-Za-z0-9_]{0,127})?(@sha256:[0-9a-f]{64})?"
)


def render(job: Job) -> dict[str, str]:
    """Returns the manifest, in YAML, by its file name.

    Raises:
      PlanError: There is no image, a name or an amount is not valid in Kubernetes, or
        the job has what Kubernetes does not.
    """
    _check_unused(job)
    text = render_template(
        "jobset.yaml.j2",
        job=job,
        image=_image(job),
        workers=WORKERS,
        port=PORT,
        timeout_sec=seconds_of(job.time_limit),
        # Kubernetes replaces $(NAME) in a command, and $$(NAME) by $(NAME).
        command=[argument.replace("$(", "$$(") for argument in job.command],
    )
    return {f"{job.name}.jobset.yaml": text}


def _check_unused(job: Job) -> None:
    for option, value in (("--array", job.array), ("--partition", job.partition)):
        if value is not None:
            raise PlanError(
                f"--target jobset has no {option}; leave it out, and choose machines by"
                " the image's cluster and namespace"
            )
    if job.nodes not in (None, job.workers):
        raise PlanError(
            f"--target jobset runs every worker on a machine of its own, so --nodes"
            f" {job.nodes} contradicts --workers {job.workers}; leave --nodes out"
        )
    if not job.name[0].isalpha():
        raise PlanError(
            f"job name {job.name!r} cannot be the name of a service, which begins with"
            " a letter; choose another --name"
        )
    # <jobset>-<replicated job>-<index of the job>-<index of the pod>
    longest = f"{job.name}-{WORKERS}-0-{job.workers - 1}"
    if len(longest) > _LONGEST_HOST_NAME:
        allowed = len(job.name) - len(longest) + _LONGEST_HOST_NAME
        raise PlanError(
            f"job name {job.name!r} is too long: the last pod would be {longest!r} of"
            f" {len(longest)} characters, and a host name has at most"
            f" {_LONGEST_HOST_NAME}; use at most {allowed} characters"
        )
    memory = job.memory_per_worker
    if memory is not None and not _MEMORY.fullmatch(memory):
        raise PlanError(
            f"--memory-per-worker {memory!r} is not an amount of memory; write an"
            " integer with Ki, Mi, Gi or Ti, such as 64Gi"
        )


def _image(job: Job) -> str:
    if job.image is None:
        raise PlanError(
            "--target jobset requires --image: pods run in a container; name an image"
            " that has this package, such as registry.example.com/team/replicator:1.0"
        )
    if not _IMAGE.fullmatch(job.image):
        raise PlanError(
            f"--image {job.image!r} is not the name of an image; write"
            " [registry/]path[:tag], in lower case, such as"
            " registry.example.com/team/replicator:1.0"
        )
    return job.image
