"""The launcher ``jobset``: a JobSet of Kubernetes, with a pod per worker.

Kubernetes numbers the pods, and the service of the JobSet gives them names;
``KubernetesEnvironment`` reads both in every pod. Each pod has a machine of its own. If
one fails, all are ended: the others could only wait for it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from harness.errors import PlanError
from harness.launch import pods
from harness.launch.engine import render_template
from harness.launch.info import LauncherInfo

if TYPE_CHECKING:
    from harness.launch.info import Job

WORKERS = "worker"
"""The name of the replicated job."""
PORT = 2222
_LONGEST_HOST_NAME = 63
_TEMPLATE = Path(__file__).with_name("jobset.yaml.j2")


class JobSet(LauncherInfo):
    """A gang of pods, each on a machine of its own."""

    name = "jobset"
    summary = "pods of Kubernetes, by a manifest for kubectl"
    file_options = pods.PodOptions

    def render(self, job: Job, options: pods.PodOptions) -> dict[str, str]:
        """Returns the manifest, in YAML, by its file name."""
        pods.check(job, options, self.name)
        runs = pods.runs_folder(job.directory)
        return {f"{job.name}.jobset.yaml": manifest(job, options, runs)}


def manifest(job: Job, options: pods.PodOptions, runs: str, *, secret: str = "") -> str:
    """Returns a JobSet, in YAML."""
    import yaml

    _check_name(job)
    has_runs = options.studies is not None
    text = render_template(
        _TEMPLATE,
        job=job,
        options=options,
        secret=secret,
        has_runs=has_runs,
        runs=runs,
        kept_code=pods.kept_code(runs, job.gpus_per_worker) if has_runs else {},
        group=pods.GROUP,
        limits=pods.limits(job),
        workers=WORKERS,
        port=PORT,
        command=pods.literal(job.command),
    )
    assert options.pod_template is not None
    made = yaml.safe_load(text)
    if options.namespace:
        made["metadata"]["namespace"] = options.namespace
    spec = made["spec"]["replicatedJobs"][0]["template"]["spec"]
    spec["template"] = pods.with_template(options.pod_template, spec["template"])
    comments = "".join(text.splitlines(keepends=True)[:2])
    return comments + str(yaml.safe_dump(made, sort_keys=False))


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
