"""The manifest of a JobSet: valid by its published schema, with what was requested."""

import contextlib
import io
import json
import tempfile
from pathlib import Path

import yaml
from command_lines import overridden
from hypothesis import example, given, settings
from hypothesis import strategies as st
from jsonschema.validators import validator_for
from kubernetes_api import expanded

from harness import ExitCode, main
from replicator.cluster import environment

SCHEMA = json.loads(
    (Path(__file__).parent / "data" / "jobset-v0.9.1.schema.json").read_text()
)
# Made once: the schema itself takes a tenth of a second to check.
VALIDATOR = validator_for(SCHEMA)(SCHEMA)
IMAGE = "registry.example.com:5000/team/replicator:1.0"


def pod_of_one(image=IMAGE, **fields):
    return {"spec": {"containers": [{"name": "harness", "image": image}], **fields}}


def rendered(*words, command=("python", "train.py"), pod_template=None):
    """What ``launch render`` returns and prints, and the manifest, which is valid."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "pod.yaml"
        path.write_text(json.dumps(pod_template or pod_of_one()))  # JSON is YAML
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            code = main(
                (
                    *("launch", "render", "--launcher=jobset", "--name=study"),
                    *(f"--set=pod-template={path}", f"--output={folder}"),
                    *overridden(("--workers=4", "--gpus-per-worker=2"), *words),
                    *("--", *command),
                )
            )
        found = (Path(folder) / "study.jobset.yaml").read_text() if code == 0 else "{}"
    manifest = yaml.safe_load(found)
    if code == 0:
        VALIDATOR.validate(manifest)
    return code, printed.getvalue(), manifest


def parsed(*words, **options):
    code, printed, manifest = rendered(*words, **options)
    assert ExitCode.OK == code, printed
    return manifest


def job_of(manifest):
    (replicated,) = manifest["spec"]["replicatedJobs"]
    return replicated["template"]["spec"]


def container_of(manifest):
    (container,) = job_of(manifest)["template"]["spec"]["containers"]
    return container


def test_every_worker_has_a_pod_its_gpus_and_one_start():
    own = pod_of_one(activeDeadlineSeconds=600)
    own["spec"]["containers"][0]["resources"] = {"limits": {"memory": "64Gi"}}
    manifest = parsed(
        "--directory=/opt/project", "--set=cores-per-worker=8", pod_template=own
    )
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


@settings(max_examples=40, deadline=None)
@given(
    command=st.lists(
        st.text(st.characters(codec="utf-8", exclude_categories=["Cc"]), min_size=1),
        min_size=1,
        max_size=4,
    )
)
@example(["$(HOME)", "$$", "$$(HOME)", "a$", "$é", "$(", "$1 $$2", "cost: 5$"])
def test_commands_arrive_as_they_were_given(command):
    container = container_of(parsed(command=command))

    assert list(command) == [
        expanded(word, {"HOME": "/root"}) for word in container["command"]
    ]


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
def test_a_template_adds_and_takes_nothing_away(image, labels, tolerations, variables):
    own = pod_of_one(image, tolerations=tolerations) | {"metadata": {"labels": labels}}
    env = [{"name": name, "value": value} for name, value in variables.items()]
    own["spec"]["containers"][0]["env"] = env
    made = parsed(pod_template=own)
    own["spec"]["containers"][0]["name"] = "worker"
    usual = parsed(pod_template=pod_of_one(image))

    assert all_in(usual, made)
    assert all_in(own, job_of(made)["template"])
