"""Pods of Kubernetes, and the launcher ``jobset``: a JobSet with a pod per worker.

Kubernetes numbers the pods, and the service of the JobSet gives them names;
``replicator.cluster.environment`` reads both in every pod, which has its own machine.
"""

from __future__ import annotations

import copy
import itertools
import json
import os
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Final

from harness.errors import ParseError, PlanError
from harness.launch.launchers import Job, Launcher
from harness.machine.gpus import CACHE_PATH, CACHE_SIZE, LARGEST_CACHE
from harness.options import kinds
from harness.options.option import Option, Options
from results.store import untrusted

FOLDER: Final = "/srv/harness"
"""The current folder of this project's images."""
RUNS: Final = "runs"
"""The volume of a template on which studies are, and their folder."""
CONTAINER: Final = "harness"
TEMPLATE_VARIABLE: Final = "REPLICATOR_HARNESS_POD_TEMPLATE"
"""Set in the pod of a sweep: the content of the file that it was given."""
DEADLINE: Final = "activeDeadlineSeconds"
A_DAY: Final = 24 * 3600
"""Its default."""
_GROUP: Final = 1000
"""May write to the studies: that of the user of this project's images."""
_SUBCOMMANDS_THAT_WRITE = {"sweep", "gate"}
# [registry[:port]/]path[:tag][@digest]
_IMAGE = re.compile(
    r"[a-z0-9]([-._a-z0-9]*[a-z0-9])?(:\d{1,5})?(/[a-z0-9][-._a-z0-9]*)*"
    r"(:[A-Za-z0-9_][-.A-Za-z0-9_]{0,127})?(@sha256:[0-9a-f]{64})?"
)
_EXAMPLE = "registry.example.com/team/replicator:1.0"
_OBJECT = re.compile(r"[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?")


def parse_template(text: str, what: str) -> dict[str, Any]:
    """Returns a PodTemplateSpec; in the pod of a sweep, what the sweep was given."""
    import yaml  # --help needs none

    try:
        path = Path(os.path.realpath(text))  # a link of the user's own is followed
        own = os.environ.get(TEMPLATE_VARIABLE) or untrusted.read_text(path)
        if own is None:
            raise ParseError(f"{what} {text!r} does not exist; see docs/clusters.md")
        # As JSON, which is what a manifest is.
        template = untrusted.parsed(json.dumps(yaml.safe_load(own), allow_nan=False))
        problem = next(_problems(template), "")
    except (
        *(untrusted.DamagedFileError, OSError, ValueError, TypeError, RecursionError),
        yaml.YAMLError,
    ) as error:
        problem = " ".join(str(error).split())
    if problem:
        raise ParseError(
            f"{what} {text!r} is no pod template: {problem}; docs/clusters.md has one"
        )
    return dict(template)


def _problems(template: Any) -> Iterator[str]:  # noqa: C901 (one rule after another)
    is_known = isinstance(template, dict) and template.keys() <= {"metadata", "spec"}
    if not is_known or not template:
        yield "the keys at its top are 'metadata' and 'spec'"
    for key, value in template.items():
        if not isinstance(value, dict):
            yield f"{key} is no mapping"
    namespace = template.get("metadata", {}).get("namespace", "default")
    if not isinstance(namespace, str) or not _OBJECT.fullmatch(namespace):
        yield f"metadata.namespace {namespace!r} is not the name of a namespace"
    spec = template.get("spec", {})
    for key in ("volumes", "initContainers", "containers"):
        value = spec.get(key, [])
        if not _is_of_mappings(value) or not all("name" in one for one in value):
            yield f"spec.{key} is no list of mappings that each have a name"
    names = [one["name"] for one in spec.get("containers", [])]
    if names not in ([], [CONTAINER]):
        yield (
            f"its containers are {names}, and there is one, {CONTAINER!r}: a trial"
            " would wait for others; let initContainers do what comes before it"
        )
    container = {"image": _EXAMPLE, **(spec.get("containers") or [{}])[0]}
    if "args" in container:
        yield f"{CONTAINER!r} has args, and its command is what is measured"
    image = container["image"]
    if not isinstance(image, str) or not _IMAGE.fullmatch(image):
        yield (
            f"its image {image!r} is not the name of an image; write"
            f" [registry/]path[:tag], in lower case, such as {_EXAMPLE}"
        )
    deadline = spec.get(DEADLINE, A_DAY)
    if isinstance(deadline, bool) or not isinstance(deadline, int) or deadline < 1:
        yield f"spec.{DEADLINE} {deadline!r} is not a whole number of seconds above 0"


def _merged(own: Any, made: Any, path: str, *, is_equal: bool = False) -> Any:
    if isinstance(own, dict) and isinstance(made, dict) and not is_equal:
        both = {
            key: _merged(own[key], made[key], f"{path}.{key}".lstrip("."))
            for key in own.keys() & made.keys()
        }
        return {**own, **made, **both}
    if isinstance(own, list) and _is_of_mappings(own) and _is_of_mappings(made):
        known = {one["name"]: one for one in own if "name" in one}
        names = {one["name"] for one in made if "name" in one}
        is_equal = path != "spec.containers"  # half of a variable would be no variable
        return [one for one in own if one.get("name") not in names] + [
            _merged(known[name], one, f"{path}.{name}", is_equal=is_equal)
            if (name := one.get("name")) in known
            else one
            for one in made
        ]
    if own != made:
        raise PlanError(
            f"pod-template contradicts the harness: its {path} is {own!r}, and"
            f" {made!r} is set; leave it out"
        )
    return made


def _is_of_mappings(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(one, dict) and isinstance(one.get("name", ""), str) for one in value
    )


class PodOptions(Options):
    pod_template: Annotated[
        dict[str, Any] | None,
        Option(
            help="YAML of a `PodTemplateSpec` (docs/clusters.md), with the image and,"
            " for a sweep, a volume `runs`. Required.",
            kind=kinds.Kind(parse_template, metavar="FILE"),
        ),
    ] = None

    @property
    def image(self) -> str:
        containers = self._spec.get("containers", ())
        return next((str(one.get("image", "")) for one in containers), "")

    @property
    def deadline_sec(self) -> int:
        return int(self._spec.get(DEADLINE, A_DAY))

    @property
    def namespace(self) -> str:
        """Empty for that of ``kubectl``."""
        template = self.pod_template or {}
        return str(template.get("metadata", {}).get("namespace", ""))

    @property
    def studies(self) -> dict[str, Any] | None:
        volumes = self._spec.get("volumes", ())
        return next((each for each in volumes if each["name"] == RUNS), None)

    @property
    def _spec(self) -> dict[str, Any]:
        return dict((self.pod_template or {}).get("spec", {}))


def check(job: Job, options: PodOptions, launcher: str) -> None:
    if not options.image:
        raise PlanError(
            f"--launcher {launcher} requires --set pod-template=FILE with an image:"
            f" pods run in a container; give the container {CONTAINER!r} in it an image"
            f" that has this package, such as {_EXAMPLE}"
        )
    is_measuring = any(  # python -m harness sweep ...
        program.rpartition("/")[2] in {"harness", "replicator-harness"}
        and subcommand in _SUBCOMMANDS_THAT_WRITE
        for program, subcommand in itertools.pairwise(job.command)
    )
    if options.studies is None and is_measuring:
        raise PlanError(
            f"--launcher {launcher} requires --set pod-template=FILE with a volume"
            f" {RUNS!r} for a sweep, whose records would end with its pod; name a"
            " PersistentVolumeClaim in it ('kubectl get pvc' lists them)"
        )
    if job.directory != "." and not posixpath.isabs(job.directory):
        raise PlanError(
            f"--directory {job.directory!r} is relative, and a pod has no folder that"
            " it could start from; write a path that begins with '/', or leave it out:"
            " then it is that of the image"
        )


def runs_folder(directory: str, runs_dir: str = RUNS) -> str:
    """Returns where the studies are mounted: the folder of the runs, absolute."""
    start = FOLDER if directory == "." else directory
    return posixpath.normpath(posixpath.join(start, runs_dir))


def literal(word: str) -> str:
    """Quotes a word: Kubernetes replaces ``$(NAME)`` by a variable, ``$$`` by ``$``."""
    return word.replace("$", "$$")


def pod(
    job: Job,
    options: PodOptions,
    container: dict[str, Any],
    *,
    runs: str,
    gpus: int,
    **more: Any,
) -> dict[str, Any]:
    """Returns the user's template, with a container and fields of the pod over it."""
    # GPUs are never shared, so all are limits.
    wanted = {"nvidia.com/gpu": gpus, "cpu": job.cores_per_worker}
    limits = {name: str(amount) for name, amount in wanted.items() if amount}
    variables, mounts = dict(container["env"]), []
    spec: dict[str, Any] = {"restartPolicy": "Never", **more}
    if options.studies is not None:
        spec["securityContext"] = {"fsGroup": _GROUP}
        mounts.append({"name": RUNS, "mountPath": runs})
        if gpus:  # keeps what a driver compiles beside the studies
            variables[CACHE_PATH] = f"{runs}/.cuda-cache"
            variables[CACHE_SIZE] = str(LARGEST_CACHE)
    if gpus > 1:
        # NCCL exchanges data of GPUs of one machine through it; the default of 64 MiB
        # is too small.
        spec["volumes"] = [{"name": "shared-memory", "emptyDir": {"medium": "Memory"}}]
        mounts.append({"name": "shared-memory", "mountPath": "/dev/shm"})  # noqa: S108
    env = [
        {"name": name, "value" if isinstance(value, str) else "valueFrom": value}
        for name, value in variables.items()
    ]
    made = {
        "image": options.image,
        **container,
        "command": [literal(word) for word in container["command"]],
        "env": env,
        "resources": {"limits": limits} if limits else {},
        "volumeMounts": mounts,
    }
    spec["containers"] = [{name: value for name, value in made.items() if value}]
    own = copy.deepcopy(dict(options.pod_template or {}))
    own.get("metadata", {}).pop("namespace", None)
    own.get("spec", {}).pop(DEADLINE, None)  # of the Job: a pod would be replaced
    for each in own.get("spec", {}).get("containers", []):
        each["name"] = container["name"]
    merged: dict[str, Any] = _merged(own, {"spec": spec}, "")
    return merged


WORKERS = "worker"
"""The name of the replicated job."""
PORT = 2222
_LONGEST_HOST_NAME = 63


class JobSet(Launcher):
    name = "jobset"
    summary = "a manifest for kubectl"
    file_options = PodOptions

    def render(self, job: Job, options: PodOptions) -> dict[str, str]:
        check(job, options, self.name)
        import yaml

        made = manifest(job, options, runs_folder(job.directory))
        text = (
            f"# {job.workers} workers with {job.gpus_per_worker} GPUs each, one pod per"
            " machine.\n# kubectl apply -f FILE submits it, kubectl delete jobset"
            f" {job.name} ends it.\n{yaml.safe_dump(made, sort_keys=False)}"
        )
        return {f"{job.name}.jobset.yaml": text}


def manifest(
    job: Job, options: PodOptions, runs: str, *, secret: str = ""
) -> dict[str, Any]:
    """Returns a JobSet, whose pods have the variables of a secret, if there is one."""
    _check_name(job)
    container: dict[str, Any] = {
        "name": WORKERS,
        "command": job.command,
        "ports": [{"containerPort": PORT}],
        "env": {
            "REPLICATOR_NUM_WORKERS": str(job.workers),
            "REPLICATOR_SERVICE": job.name,
            "REPLICATOR_PORT": str(PORT),
        },
        "envFrom": [{"secretRef": {"name": secret}}] if secret else [],
        "workingDir": job.directory if job.directory != "." else "",
    }
    labels = {"matchLabels": {"jobset.sigs.k8s.io/jobset-name": job.name}}
    apart = {"topologyKey": "kubernetes.io/hostname", "labelSelector": labels}
    needed = {"requiredDuringSchedulingIgnoredDuringExecution": [apart]}
    affinity = {"affinity": {"podAntiAffinity": needed}} if job.workers > 1 else {}
    workers = {
        "completionMode": "Indexed",
        "completions": job.workers,
        "parallelism": job.workers,
        "backoffLimit": 0,
        DEADLINE: options.deadline_sec,
        "template": pod(
            job, options, container, runs=runs, gpus=job.gpus_per_worker, **affinity
        ),
    }
    namespace = {"namespace": options.namespace} if options.namespace else {}
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": job.name, **namespace},
        "spec": {
            "network": {
                "enableDNSHostnames": True,
                # Workers look each other up before any of them is ready.
                "publishNotReadyAddresses": True,
                "subdomain": job.name,
            },
            # A worker that fails ends the others: they could only wait for it.
            "failurePolicy": {"maxRestarts": 0},
            "replicatedJobs": [
                {"name": WORKERS, "replicas": 1, "template": {"spec": workers}}
            ],
        },
    }


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
