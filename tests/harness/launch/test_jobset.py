"""The manifest of a JobSet: valid by its published schema, with what was requested."""

import json
import pathlib

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st
from jsonschema.validators import validator_for
from kubernetes_rules import expanded, template

from harness.errors import PlanError
from harness.launch import catalog
from harness.launch.jobset import PodOptions, parse_template
from harness.launch.launcher import Job
from replicator.cluster import environment

SCHEMA = json.loads(
    (pathlib.Path(__file__).parent / "data" / "jobset-v0.9.1.schema.json").read_text()
)
# Made once: the schema itself takes a tenth of a second to check.
VALIDATOR = validator_for(SCHEMA)(SCHEMA)
IMAGE = "registry.example.com:5000/team/replicator:1.0"
STUDIES = template(claim="studies", secret="hub-token")


def pod_of_one(image=IMAGE, **fields):
    return {"spec": {"containers": [{"name": "harness", "image": image}], **fields}}


def parsed(
    command=("python", "train.py"), *, directory=".", pod_template=None, **fields
):
    """The manifest as Kubernetes reads it, after the check against the schema."""
    job = Job(
        name="study",
        command=command,
        directory=directory,
        **{"workers": 4, "gpus_per_worker": 2} | fields,
    )
    own = PodOptions(pod_template=pod_template or pod_of_one())
    (text,) = catalog.info("jobset").render(job, own).values()
    manifest = yaml.safe_load(text)
    VALIDATOR.validate(manifest)
    return manifest


def job_of(manifest):
    (replicated,) = manifest["spec"]["replicatedJobs"]
    return replicated["template"]["spec"]


def container_of(manifest):
    (container,) = job_of(manifest)["template"]["spec"]["containers"]
    return container


def test_every_worker_has_a_pod_its_gpus_and_one_start():
    """W pods on W machines; GPUs are limits, since Kubernetes never shares them."""
    own = pod_of_one(activeDeadlineSeconds=600)
    own["spec"]["containers"][0]["resources"] = {"limits": {"memory": "64Gi"}}
    manifest = parsed(directory="/opt/project", cores_per_worker=8, pod_template=own)
    job = job_of(manifest)
    pod = job["template"]["spec"]
    (rule,) = pod["affinity"]["podAntiAffinity"][
        "requiredDuringSchedulingIgnoredDuringExecution"
    ]

    assert {
        "completions": 4,
        "parallelism": 4,
        "completionMode": "Indexed",
        "backoffLimit": 0,
        "activeDeadlineSeconds": 600,
    }.items() <= job.items()
    assert {"nvidia.com/gpu": "2", "cpu": "8", "memory": "64Gi"} == (
        container_of(manifest)["resources"]["limits"]
    )
    assert "/opt/project" == container_of(manifest)["workingDir"]
    assert "kubernetes.io/hostname" == rule["topologyKey"]
    assert 0 == manifest["spec"]["failurePolicy"]["maxRestarts"]
    assert "Never" == pod["restartPolicy"]


def test_pods_find_each_other():
    """The variables of the manifest and of Kubernetes describe the same cluster."""
    manifest = parsed()
    (replicated,) = manifest["spec"]["replicatedJobs"]
    container = container_of(manifest)
    configs = [
        environment.detect(
            {variable["name"]: variable["value"] for variable in container["env"]}
            | {
                "JOB_COMPLETION_INDEX": str(index),
                # As JobSet names jobs, and Kubernetes the pods of an Indexed Job.
                "HOSTNAME": f"study-{replicated['name']}-0-{index}",
            }
        ).config()
        for index in range(4)
    ]

    assert [0, 1, 2, 3] == [config.worker_id for config in configs]
    assert "study-worker-0-3.study:2222" == configs[0].address_of(3)
    assert container["ports"] == [{"containerPort": 2222}]
    assert "study" == manifest["spec"]["network"]["subdomain"]


@pytest.mark.parametrize("gpus", [0, 1, 8])
def test_any_number_of_gpus_is_valid(gpus):
    """Without GPUs nothing is requested; several share memory through /dev/shm."""
    manifest = parsed(gpus_per_worker=gpus, workers=1)
    pod = job_of(manifest)["template"]["spec"]

    assert bool(gpus) == ("resources" in container_of(manifest))
    assert (gpus > 1) == ("volumes" in pod)
    assert "affinity" not in pod


@given(
    command=st.lists(
        st.text(st.characters(codec="utf-8", exclude_categories=["Cc"]), min_size=1),
        min_size=1,
        max_size=4,
    )
)
@example(["$(HOME)", "$$", "$$(HOME)", "a$", "$é", "$(", "$1 $$2", "cost: 5$"])
def test_commands_arrive_as_they_were_given(command):
    """Whatever is in them: quotes, colons, line separators, variables of Kubernetes.

    Its own expansion would change most of the words of the example.
    """
    container = container_of(parsed(command=tuple(command)))

    assert list(command) == [
        expanded(word, {"HOME": "/root"}) for word in container["command"]
    ]


@pytest.mark.parametrize(
    ("directory", "folder", "runs"),
    [
        ("/opt/project", "/opt/project", "/opt/project/runs"),
        (".", None, "/srv/harness/runs"),
    ],
)
def test_studies_are_on_a_claim_and_secrets_are_named(directory, folder, runs):
    """Records outlive the pod; the image's own folder is that of this project's."""
    manifest = parsed(directory=directory, pod_template=STUDIES, gpus_per_worker=0)
    container, pod = container_of(manifest), job_of(manifest)["template"]["spec"]

    assert folder == container.get("workingDir")
    assert [{"name": "runs", "mountPath": runs}] == container["volumeMounts"]
    assert [{"secretRef": {"name": "hub-token"}}] == container["envFrom"]
    (volume,) = pod["volumes"]
    assert {"claimName": "studies"} == volume["persistentVolumeClaim"]
    assert {"fsGroup": 1000} == pod["securityContext"]


@pytest.mark.parametrize(
    "command",
    [
        ("python", "-m", "harness", "sweep", "--workload", "d4pg"),
        ("/opt/venv/bin/replicator-harness", "gate", "main"),
    ],
)
def test_a_sweep_without_a_claim_is_refused(command):
    with pytest.raises(
        PlanError, match=r"requires --pod-template with .* records would end .*pvc"
    ):
        parsed(command=command)
    assert parsed(command=command, pod_template=STUDIES)


def all_in(part, whole):
    if isinstance(part, dict):
        return all(name in whole and all_in(part[name], whole[name]) for name in part)
    if isinstance(part, list) and all(isinstance(one, dict) for one in part):
        return all(any(all_in(one, other) for other in whole) for one in part)
    return part == whole


@settings(max_examples=25, deadline=None)
@given(
    image=st.sampled_from(
        [IMAGE, "replicator", "team/replicator:1.0", f"ghcr.io/a@sha256:{'0' * 64}"]
    ),
    labels=st.dictionaries(st.text("abc"), st.text("xyz")),
    tolerations=st.lists(st.builds(lambda key: {"key": key}, st.text("abc"))),
    variables=st.dictionaries(st.text("ABC", min_size=1), st.text(), max_size=3),
)
def test_a_template_adds_and_takes_nothing_away(
    tmp_path_factory, image, labels, tolerations, variables
):
    """All that is set without it is there, and all of it besides."""
    own = pod_of_one(image, tolerations=tolerations) | {"metadata": {"labels": labels}}
    env = [{"name": name, "value": value} for name, value in variables.items()]
    own["spec"]["containers"][0]["env"] = env
    path = tmp_path_factory.mktemp("template") / "pod.yaml"
    path.write_text(json.dumps(own))
    made = parsed(pod_template=parse_template(str(path), what="--pod-template"))
    own["spec"]["containers"][0]["name"] = "worker"
    usual = parsed(pod_template=pod_of_one(image))

    assert all_in(usual, made)
    assert all_in(own, job_of(made)["template"])
