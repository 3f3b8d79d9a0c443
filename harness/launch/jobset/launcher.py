"""The launcher ``jobset``: a JobSet of Kubernetes, with a pod per worker.

Kubernetes numbers the pods, and the service of the JobSet gives them names;
``KubernetesEnvironment`` reads both in every pod. Each pod has a machine of its own. If
one fails, all are ended: the others could only wait for it.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from harness.errors import ParseError, PlanError
from harness.launch.info import LauncherInfo
from harness.launch.options import A_DAY, TimeLimit
from harness.launch.templating import render_template
from harness.options import kinds
from harness.options.option import Option, Options

if TYPE_CHECKING:
    from harness.launch.job import Job

WORKERS = "worker"
"""The name of the replicated job."""
PORT = 2222
_LONGEST_HOST_NAME = 63
_TEMPLATE = Path(__file__).with_name("jobset.yaml.j2")
_MEMORY = re.compile(r"[1-9]\d{0,11}(Ki|Mi|Gi|Ti|k|M|G|T)?")
# [registry[:port]/]path[:tag][@digest]
_IMAGE = re.compile(
    r"[a-z0-9]([-._a-z0-9]*[a-z0-9])?(:\d{1,5})?(/[a-z0-9][-._a-z0-9]*)*"
    r"(:[A-Za-z0-9_][-.A-Za-z0-9_]{0,127})?(@sha256:[0-9a-f]{64})?"
)


def parse_memory(text: str, *, what: str) -> str:
    """Returns an amount of memory.

    Raises:
      ParseError: Kubernetes would not take it.
    """
    if not _MEMORY.fullmatch(text):
        raise ParseError(
            f"{what} {text!r} is not an amount of memory; write an integer with Ki,"
            " Mi, Gi or Ti, such as 64Gi"
        )
    return text


def parse_image(text: str, *, what: str) -> str:
    """Returns the name of an image.

    Raises:
      ParseError: No registry would take it.
    """
    if not _IMAGE.fullmatch(text):
        raise ParseError(
            f"{what} {text!r} is not the name of an image; write [registry/]path[:tag],"
            " in lower case, such as registry.example.com/team/replicator:1.0"
        )
    return text


class JobSetFileOptions(Options):
    """Options of ``launch render --launcher jobset``."""

    image: Annotated[
        str | None,
        Option(
            help="Container image that has this package; required.",
            kind=kinds.parsed(parse_image),
        ),
    ] = None
    memory_per_worker: Annotated[
        str | None,
        Option(
            help="Memory of each worker, such as `64Gi`.",
            kind=kinds.parsed(parse_memory, metavar="AMOUNT"),
        ),
    ] = None
    time_limit: TimeLimit = A_DAY


class JobSet(LauncherInfo):
    """A gang of pods, each on a machine of its own."""

    name = "jobset"
    summary = "pods of Kubernetes, by a manifest for kubectl"
    file_options = JobSetFileOptions

    def render(self, job: Job, options: JobSetFileOptions) -> dict[str, str]:
        """Returns the manifest, in YAML, by its file name.

        Raises:
          PlanError: There is no image, or the name of a pod would be too long.
        """
        if options.image is None:
            raise PlanError(
                "--launcher jobset requires --image: pods run in a container; name an"
                " image that has this package, such as"
                " registry.example.com/team/replicator:1.0"
            )
        _check_name(job)
        text = render_template(
            _TEMPLATE,
            job=job,
            image=options.image,
            memory_per_worker=options.memory_per_worker,
            workers=WORKERS,
            port=PORT,
            timeout_sec=math.ceil(options.time_limit),
            # Kubernetes replaces $(NAME) in a command, and $$(NAME) by $(NAME).
            command=[argument.replace("$(", "$$(") for argument in job.command],
        )
        return {f"{job.name}.jobset.yaml": text}


def _check_name(job: Job) -> None:
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


LAUNCHER = JobSet()
