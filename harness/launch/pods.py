"""What launchers on Kubernetes have in common: options, commands, claims, resources."""

from __future__ import annotations

import itertools
import math
import posixpath
import re
from typing import TYPE_CHECKING, Annotated, Any, Final

from harness.errors import ParseError, PlanError
from harness.launch.options import A_DAY, TimeLimit
from harness.machine import cuda_cache
from harness.options import kinds
from harness.options.option import Option, Options

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from harness.launch.job import Job

FOLDER: Final = "/srv/harness"
"""The current folder of this project's images."""
RUNS: Final = "runs"
GROUP: Final = 1000
"""May write to the claim: that of the user of this project's images."""
_VERBS_THAT_WRITE = {"sweep", "gate"}
_MEMORY = re.compile(r"[1-9]\d{0,11}(Ki|Mi|Gi|Ti|k|M|G|T)?")
# [registry[:port]/]path[:tag][@digest]
_IMAGE = re.compile(
    r"[a-z0-9]([-._a-z0-9]*[a-z0-9])?(:\d{1,5})?(/[a-z0-9][-._a-z0-9]*)*"
    r"(:[A-Za-z0-9_][-.A-Za-z0-9_]{0,127})?(@sha256:[0-9a-f]{64})?"
)
_OBJECT = re.compile(r"[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?")


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


def parse_object(text: str, *, what: str) -> str:
    """Returns the name of an object in a namespace.

    Raises:
      ParseError: Kubernetes would not take it.
    """
    if not _OBJECT.fullmatch(text):
        raise ParseError(
            f"{what} {text!r} is not the name of an object of Kubernetes; allowed are"
            " lower-case letters, digits, '-' and '.', starting and ending with a"
            " letter or digit"
        )
    return text


ObjectName = kinds.parsed(parse_object, metavar="NAME")


class PodOptions(Options):
    """What a pod is made of."""

    image: Annotated[
        str | None,
        Option(
            help="Container image that has this package; required.",
            kind=kinds.parsed(parse_image),
        ),
    ] = None
    claim: Annotated[
        str | None,
        Option(
            help="PersistentVolumeClaim for the studies: what is written elsewhere ends"
            " with its pod. Required by a sweep.",
            kind=ObjectName,
        ),
    ] = None
    secret: Annotated[
        str | None,
        Option(
            help="Secret whose keys are environment variables of the pods.",
            kind=ObjectName,
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

    @property
    def time_limit_sec(self) -> int:
        """The time limit, in whole seconds."""
        return math.ceil(self.time_limit)


def check(job: Job, options: PodOptions, launcher: str) -> None:
    """Checks what a pod needs.

    Raises:
      PlanError: The message says what is missing.
    """
    if options.image is None:
        raise PlanError(
            f"--launcher {launcher} requires --image: pods run in a container; name an"
            " image that has this package, such as"
            " registry.example.com/team/replicator:1.0"
        )
    if options.claim is None and _is_measuring(job.command):
        raise PlanError(
            f"--launcher {launcher} requires --claim for a sweep, whose records would"
            " end with its pod; name a PersistentVolumeClaim ('kubectl get pvc' lists"
            " them)"
        )
    if job.directory != "." and not posixpath.isabs(job.directory):
        raise PlanError(
            f"--directory {job.directory!r} is relative, and a pod has no folder that"
            " it could start from; write a path that begins with '/', or leave it out:"
            " then it is that of the image"
        )


def _is_measuring(command: Sequence[str]) -> bool:
    """Whether a command writes studies: ``python -m harness sweep ...``."""
    return any(
        program.rpartition("/")[2] in {"harness", "replicator-harness"}
        and verb in _VERBS_THAT_WRITE
        for program, verb in itertools.pairwise(command)
    )


def runs_folder(directory: str, runs_dir: str = RUNS) -> str:
    """Returns where the claim is mounted: the folder of the studies, absolute."""
    start = FOLDER if directory == "." else directory
    return posixpath.normpath(posixpath.join(start, runs_dir))


def kept_code(runs: str, gpus: int) -> dict[str, str]:
    """Returns the variables that keep on the claim what a driver compiles for GPUs.

    Args:
      runs: Where the claim is mounted.
      gpus: Those of the pod; nothing is to be kept without.
    """
    if not gpus:
        return {}
    return {
        cuda_cache.PATH: f"{runs}/.cuda-cache",
        cuda_cache.SIZE: str(cuda_cache.LARGEST),
    }


def literal(words: Iterable[str]) -> list[str]:
    """Returns a command that arrives in the container as it is.

    Kubernetes replaces ``$(NAME)`` in it by a variable, and ``$$`` by ``$``.
    """
    return [word.replace("$", "$$") for word in words]


def limits(
    job: Job, memory: str | None, *, gpus: int | None = None
) -> dict[str, int | str]:
    """Returns the resources of a container; GPUs are never shared, so all are limits.

    Args:
      job: What runs in it.
      memory: Its memory, if it is limited.
      gpus: Its GPUs; by default those of a worker.
    """
    wanted: dict[str, Any] = {
        "nvidia.com/gpu": job.gpus_per_worker if gpus is None else gpus,
        "cpu": job.cores_per_worker,
        "memory": memory,
    }
    return {name: amount for name, amount in wanted.items() if amount}
