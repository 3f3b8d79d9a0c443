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

SCHEMA = json.loads(
    (pathlib.Path(__file__).parent / "data" / "jobset-v0.9.1.schema.json").read_text()
)
# Made once: the schema itself takes a tenth of a second to check.
VALIDATOR = validator_for(SCHEMA)(SCHEMA)
IMAGE = "registry.example.com:5000/team/replicator:1.0"


PLAIN = {"spec": {"containers": [{"name": "harness", "image": IMAGE}]}}
LIMITS = {"resources": {"limits": {"memory": "64Gi"}}}
LIMITED = {"spec": {"containers": [{"name": "harness", "image": IMAGE, **LIMITS}]}}


STUDIES = template(claim="studies")


def parsed(
    command=("python", "train.py"),
    workers=4,
    gpus=2,
    cores=None,
    directory="/opt/project",
    pod_template=PLAIN,
):
    """The manifest as Kubernetes reads it, after the check against the schema."""
    job = Job(
        name="study",
        command=command,
        workers=workers,
        gpus_per_worker=gpus,
        cores_per_worker=cores,
        directory=directory,
    )
    own = PodOptions(pod_template=pod_template)
    (text,) = catalog.info("jobset").render(job, own).values()
    manifest = yaml.safe_load(text)
    VALIDATOR.validate(manifest)
    return manifest


def pod_of(manifest):
    """The pod of the only replicated job."""
    (replicated,) = manifest["spec"]["replicatedJobs"]
    return replicated["template"]["spec"]["template"]["spec"]


def test_every_worker_has_a_pod_and_its_gpus():
    """W pods on W machines; GPUs are limits, since Kubernetes never shares them."""
    manifest = parsed(cores=8, pod_template=LIMITED)
    (replicated,) = manifest["spec"]["replicatedJobs"]
    spec = replicated["template"]["spec"]
    (container,) = pod_of(manifest)["containers"]

    assert (4, 4, "Indexed", 0) == (
        spec["completions"],
        spec["parallelism"],
        spec["completionMode"],
        spec["backoffLimit"],
    )
    assert {"nvidia.com/gpu": "2", "cpu": "8", "memory": "64Gi"} == container[
        "resources"
    ]["limits"]
    assert "/opt/project" == container["workingDir"]
    (rule,) = pod_of(manifest)["affinity"]["podAntiAffinity"][
        "requiredDuringSchedulingIgnoredDuringExecution"
    ]
    assert "kubernetes.io/hostname" == rule["topologyKey"]


LIMIT = {"activeDeadlineSeconds": 600}


def test_time_and_restarts_are_bounded():
    manifest = parsed(pod_template={"spec": {**PLAIN["spec"], **LIMIT}})
    (replicated,) = manifest["spec"]["replicatedJobs"]

    assert 600 == replicated["template"]["spec"]["activeDeadlineSeconds"]
    assert 0 == manifest["spec"]["failurePolicy"]["maxRestarts"]
    assert "Never" == pod_of(manifest)["restartPolicy"]


def test_pods_find_each_other():
    """The variables of the manifest and of Kubernetes describe the same cluster."""
    from replicator.cluster import environment

    manifest = parsed()
    (replicated,) = manifest["spec"]["replicatedJobs"]
    (container,) = pod_of(manifest)["containers"]
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
    pod = pod_of(parsed(gpus=gpus, workers=1))
    (container,) = pod["containers"]

    assert bool(gpus) == ("resources" in container)
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
    (container,) = pod_of(parsed(command=tuple(command)))["containers"]

    assert list(command) == [
        expanded(word, {"HOME": "/root"}) for word in container["command"]
    ]


@pytest.mark.parametrize(
    ("directory", "expected", "runs"),
    [
        ("/opt/project", "/opt/project", "/opt/project/runs"),
        (".", None, "/srv/harness/runs"),
    ],
)
def test_studies_are_on_a_claim(directory, expected, runs):
    """Records outlive the pod; the image's own folder is that of this project's."""
    pod = pod_of(parsed(directory=directory, pod_template=STUDIES, gpus=0))
    (container,) = pod["containers"]

    assert expected == container.get("workingDir")
    assert [{"name": "runs", "mountPath": runs}] == container["volumeMounts"]
    (volume,) = pod["volumes"]
    assert {"claimName": "studies"} == volume["persistentVolumeClaim"]
    assert {"fsGroup": 1000} == pod["securityContext"]


def test_secrets_are_named_and_not_written():
    own = template(claim="studies", secret="hub-token")
    (container,) = pod_of(parsed(pod_template=own))["containers"]

    assert [{"secretRef": {"name": "hub-token"}}] == container["envFrom"]


@pytest.mark.parametrize(
    "command",
    [
        ("python", "-m", "harness", "sweep", "--workload", "d4pg"),
        ("/opt/venv/bin/replicator-harness", "gate", "main"),
    ],
)
def test_a_sweep_without_a_claim_is_refused(command):
    """Its records would end with the pod."""
    with pytest.raises(
        PlanError, match=r"requires --pod-template with .* records would end .*pvc"
    ):
        parsed(command=command)
    assert parsed(command=command, pod_template=STUDIES)


@settings(max_examples=25, deadline=None)
@given(
    labels=st.dictionaries(st.text("abc"), st.text("xyz")),
    tolerations=st.lists(st.builds(lambda key: {"key": key}, st.text("abc"))),
    variables=st.dictionaries(st.text("ABC", min_size=1), st.text(), max_size=3),
)
def test_a_template_adds_and_takes_nothing_away(labels, tolerations, variables):
    """All that is set without it is there, and all of it besides."""

    def all_in(part, whole):
        if isinstance(part, dict):
            return all(
                name in whole and all_in(part[name], whole[name]) for name in part
            )
        if isinstance(part, list) and all(isinstance(one, dict) for one in part):
            return all(any(all_in(one, other) for other in whole) for one in part)
        return part == whole

    env = [{"name": name, "value": value} for name, value in variables.items()]
    own = {
        "metadata": {"labels": labels},
        "spec": {
            "tolerations": tolerations,
            "containers": [{"name": "harness", "image": IMAGE, "env": env}],
        },
    }
    made = parsed(pod_template=own)
    (replicated,) = made["spec"]["replicatedJobs"]
    own["spec"]["containers"][0]["name"] = "worker"

    assert all_in(parsed(), made)
    assert all_in(own, replicated["template"]["spec"]["template"])


@pytest.mark.parametrize(
    "image",
    [
        "replicator",
        "team/replicator:1.0",
        "ghcr.io/team/replicator@sha256:" + "0" * 64,
        IMAGE,
    ],
)
def test_names_of_images_are_accepted(image, tmp_path):
    content = {"spec": {"containers": [{"name": "harness", "image": image}]}}
    (tmp_path / "pod.yaml").write_text(json.dumps(content))
    found = parse_template(str(tmp_path / "pod.yaml"), what="--pod-template")

    assert image == PodOptions(pod_template=found).image
