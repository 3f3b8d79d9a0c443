"""Sweeps and gangs on Kubernetes: a real kubectl, a stand-in for its server."""

import dataclasses
import json
import os
import re
import shutil
import sys
from pathlib import Path

import kubernetes_api
import kubernetes_rules
import pytest
import synthetic_trial
from hung import until

from harness.cli import exit_codes
from harness.errors import LaunchError, PlanError
from harness.launch import catalog, kubernetes
from harness.launch.gang import Gang
from harness.launch.kubernetes import KubernetesOptions
from harness.launch.launcher import HOSTS_VARIABLE, Job
from harness.run.trial_runner import run_trial
from results.records.models import TrialStatus
from results.store.study_store import Store

ASKED = ("--launcher=kubernetes", "--pod-template=pod.yaml")
PROGRAM = """
import sys, time
print("cells/s: 1.0", flush=True)
for step in range(8):
    print("cells/s:", 100 + step + int(sys.argv[1]), flush=True)
    time.sleep(float(sys.argv[2]))
"""
needs_kubectl = pytest.mark.skipif(
    shutil.which(kubernetes.PROGRAM) is None,
    reason="needs kubectl (a package of that name, or kubernetes-client)",
)


@pytest.fixture
def server(tmp_path, monkeypatch):
    folder = tmp_path / "server"
    folder.mkdir()
    claims = {"studies": ["ReadWriteMany"], "alone": ["ReadWriteOnce"]}
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).resolve().parents[3]))
    with kubernetes_api.running(folder, claims) as made:
        monkeypatch.setenv("KUBECONFIG", str(made.kubeconfig))
        yield made


@pytest.fixture
def harness(harness, monkeypatch):
    def run(*words):
        monkeypatch.setattr("sys.argv", ["harness", *words])
        return harness(*words)

    return run


def write_template(folder, **fields):
    """Writes the template that ``ASKED`` names; JSON is YAML."""
    content = json.dumps(kubernetes_rules.template(**fields))
    (folder / "pod.yaml").write_text(content)


@pytest.fixture
def sweep(tmp_path):
    program = tmp_path / "bench.py"
    program.write_text(PROGRAM)
    write_template(tmp_path, claim="studies")
    return (
        "sweep", f"--command=python3 {program} {{replicas}} 0.05",
        "--metric=throughput=cells/s: ([0-9.]+)", "--unit=cells", "--replicas=1",
        "--mode=weak", "--repeats=2", "--order=sequential", "--study=s",
        "--per-replica-batch-size=8", *ASKED,
    )  # fmt: skip


def conditions_of(server, job):
    status = server.objects["jobs", job].get("status", {})
    return [one["type"] for one in status.get("conditions", ())]


def options_of(nodes=None, **fields):
    template = kubernetes_rules.template(**fields)
    return KubernetesOptions(pod_template=template, nodes=nodes)


def job_of(options, **fields):
    job = Job(name="s", command=(sys.executable, "-m", "harness", "sweep"), **fields)
    made = kubernetes.of_sweep(job, options, "runs")
    assert [] == kubernetes_rules.problems("jobs", made)
    return made


def pod_of(made):
    pod = made["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    return pod, container


def test_a_job_has_the_claim_the_secret_and_the_gpus():
    options = options_of(claim="studies", secret="hub", account="sweeper")
    pod, container = pod_of(job_of(options, gpus_per_worker=8))

    assert {"nvidia.com/gpu": "8"} == container["resources"]["limits"]
    assert [{"secretRef": {"name": "hub"}}] == container["envFrom"]
    assert ["/srv/harness/runs", "/dev/shm"] == [
        mount["mountPath"] for mount in container["volumeMounts"]
    ]
    claim = pod["volumes"][0]["persistentVolumeClaim"]
    assert {"claimName": "studies"} == claim
    assert "sweeper" == pod["serviceAccountName"]
    assert ["python", "-m", "harness", "sweep"] == container["command"]


@needs_kubectl
@pytest.mark.processes
def test_a_sweep_runs_in_its_pod_and_survives_an_eviction(
    server, harness, sweep, tmp_path
):
    code, out, err = harness(*sweep)
    job = out.strip()
    study = tmp_path / "server" / "claims" / "studies" / "s"

    assert (0, True) == (code, job.startswith("s-")), err
    assert f"'kubectl logs --namespace=team --follow job/{job}'" in err
    tried, made = [line for line in server.asked if line.startswith("POST")]
    assert "dryRun=All" in tried
    assert "fieldValidation=Strict" in made
    assert "dryRun" not in made
    until(lambda: list(study.glob("trials/*/status.json")), "a trial")
    server.evict(server.pods[0])
    until(lambda: conditions_of(server, job), "the end of the job")
    first, second = (pod.log.read_text() for pod in server.pods)

    assert ["Complete"] == conditions_of(server, job), first + second
    assert "interrupted (SIGTERM); finished trials are kept" in first
    assert "study s: resumed" in second
    trials = Store.open(study).trials()
    assert [TrialStatus.OK] * 2 == [trial.status.status for trial in trials]


@needs_kubectl
@pytest.mark.processes
def test_a_sweep_that_fails_is_not_started_again(server, harness, sweep, tmp_path):
    """Its exit code is the answer, not a reason for another pod."""
    (tmp_path / "bench.py").write_text("raise SystemExit(3)")
    job = harness(*sweep)[1].strip()
    until(lambda: conditions_of(server, job), "the end of the job")

    assert ["Failed"] == conditions_of(server, job)
    (pod,) = server.pods
    assert exit_codes.NOTHING_MEASURED == pod.process.poll(), pod.log.read_text()


NOT_THERE = [
    ({"claim": "other"}, (), r"its claim 'other' is not in namespace 'team'; known"),
    (
        {"claim": "alone"},
        ("--nodes=2",),
        r"its claim 'alone' has the access modes \['ReadWriteOnce'\], but pods of",
    ),
    (
        {"claim": "studies", "namespace": "theirs"},
        (),
        r"kubectl get is refused: .*Forbidden.*can-i --list",
    ),
]


@needs_kubectl
@pytest.mark.parametrize(("fields", "options", "message"), NOT_THERE)
def test_what_kubernetes_does_not_have_is_refused_before_anything_is_made(
    server, refuse, sweep, tmp_path, fields, options, message
):
    given = sweep
    write_template(tmp_path, **fields)
    if "--nodes=2" in options:
        given = [
            "sweep", "--workload=resnet50", "--preset=smoke", "--replicas=2",
            "--backends=multi_worker", "--mode=weak", *ASKED,
        ]  # fmt: skip
    err = refuse(*given, *options)

    assert [] == [line for line in server.asked if line.startswith("POST")]
    assert re.search(message, err), err


@pytest.mark.parametrize(
    ("left_out", "message"),
    [
        ("file", "kubernetes requires --pod-template with an image: pods run in"),
        ("containers", "kubernetes requires --pod-template with an image: pods run"),
        ("volumes", "requires --pod-template with a volume 'runs' for a sweep"),
    ],
)
def test_what_a_pod_needs_is_asked_for(harness, sweep, tmp_path, left_out, message):
    if left_out == "file":
        sweep = tuple(word for word in sweep if not word.startswith("--pod-template"))
    else:
        content = kubernetes_rules.template(claim="studies")
        del content["spec"][left_out]
        (tmp_path / "pod.yaml").write_text(json.dumps(content))
    code, _, err = harness(*sweep)

    assert exit_codes.USAGE == code
    assert message in err


def test_the_time_limit_of_a_template_is_the_limit_of_the_job():
    """Of the pod it would be the end of one that is replaced; a day without any."""
    options = options_of(claim="studies")
    options.pod_template["spec"]["activeDeadlineSeconds"] = 600
    made = job_of(options)

    assert 600 == made["spec"]["activeDeadlineSeconds"]
    assert "activeDeadlineSeconds" not in pod_of(made)[0]
    usual = job_of(options_of(claim="studies"))
    assert 24 * 3600 == usual["spec"]["activeDeadlineSeconds"]


def test_without_kubectl_the_message_says_so(refuse, sweep, monkeypatch, tmp_path):
    (tmp_path / "bin").mkdir()
    for program in ("git", "python3"):
        (tmp_path / "bin" / program).symlink_to(str(shutil.which(program)))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    err = refuse(*sweep)

    assert "'kubectl' is not in PATH; run the command where it is" in err


def test_gangs_start_in_the_pod_of_a_sweep_only():
    """Elsewhere nothing could reach the harness."""
    with pytest.raises(PlanError, match=r"this process is in no pod of a sweep .*REPL"):
        catalog.info("kubernetes").start(KubernetesOptions(nodes=2))


def test_a_pod_runs_one_process(make_spec):
    launcher = kubernetes.KubernetesLauncher(KubernetesOptions(nodes=2))
    spec = make_spec(
        backend="multi_worker",
        num_replicas=4,
        global_batch_size=16,
        variables={HOSTS_VARIABLE: "2"},
    )

    with pytest.raises(
        PlanError, match=r"has 4 processes, and a pod runs one; use --n"
    ):
        launcher.check([spec])


@pytest.fixture
def in_pod(server, tmp_path, monkeypatch):
    for name, value in {
        kubernetes.POD_VARIABLE: "s-1",
        kubernetes.UID_VARIABLE: "0000-1",
        kubernetes.NAMESPACE_VARIABLE: "team",
        kubernetes.ADDRESS_VARIABLE: "127.0.0.1",
        kubernetes.RUNS_VARIABLE: str(tmp_path),
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("A_TOKEN", "not-for-everybody")


OPTIONS = options_of(claim="studies", nodes=2)


@needs_kubectl
@pytest.mark.processes
@pytest.mark.usefixtures("in_pod")
def test_a_trial_is_a_jobset_of_two_pods(server, store, make_spec, settings):
    spec = make_spec(backend="multi_worker", variables={HOSTS_VARIABLE: "2"})
    trial = synthetic_trial.planned(spec)
    launcher = kubernetes.KubernetesLauncher(OPTIONS)
    run_trial(store, trial, dataclasses.replace(settings, launcher=launcher))
    (found,) = store.trials()

    assert TrialStatus.OK is found.status.status, found.status.failure
    assert 2 == len(server.pods)
    assert {"persistentvolumeclaims"} == {kind for kind, _ in server.objects}
    assert [] == [pod.name for pod in server.pods if pod.process.poll() is None]


@needs_kubectl
@pytest.mark.processes
@pytest.mark.usefixtures("in_pod")
def test_variables_of_a_gang_are_in_a_secret(server, tmp_path):
    """Whoever may read pods sees its name only; it ends with the pod of the sweep."""
    gang = Gang(
        trial_dir=tmp_path,
        members=(("worker", 0), ("worker", 1)),
        members_per_host=1,
        command=(sys.executable, "-c", "print('said'); raise SystemExit(3)"),
        variables={**os.environ, "REPLICATOR_HARNESS_GANG": "host:4711"},
    )
    engine = kubernetes.GangSet(gang, OPTIONS, os.environ)
    (jobset,) = (
        made for (kind, _), made in server.objects.items() if kind == "jobsets"
    )
    (secret,) = (
        made for (kind, _), made in server.objects.items() if kind == "secrets"
    )

    assert "not-for-everybody" not in json.dumps(jobset)
    assert "not-for-everybody" == secret["stringData"]["A_TOKEN"]
    assert "127.0.0.1:4711" == secret["stringData"]["REPLICATOR_HARNESS_GANG"]
    for made in (jobset, secret):
        (owner,) = made["metadata"]["ownerReferences"]
        assert ("Pod", "s-1", "0000-1") == (owner["kind"], owner["name"], owner["uid"])
    until(lambda: engine.poll() is not None, "the end of the gang")
    assert 1 == engine.poll()
    assert "said" in engine.output()
    engine.cancel()
    engine.cancel()
    assert {"persistentvolumeclaims"} == {kind for kind, _ in server.objects}


def test_why_a_pod_waits_is_said():
    """No host has room; an image cannot be pulled."""
    status = {
        "conditions": [
            {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
        ],
        "containerStatuses": [{"state": {"waiting": {"reason": "ErrImagePull"}}}],
    }

    assert ["Unschedulable", "ErrImagePull"] == [
        one["reason"] for one in kubernetes._waiting(status)
    ]


@needs_kubectl
@pytest.mark.usefixtures("in_pod")
def test_a_refused_gang_leaves_no_secret(server, tmp_path, monkeypatch):
    """The JobSet is refused, for example since the cluster has none."""
    monkeypatch.delitem(kubernetes_rules.KINDS, "jobsets")
    gang = Gang(
        trial_dir=tmp_path,
        members=(("worker", 0),),
        members_per_host=1,
        command=("true",),
        variables={"REPLICATOR_HARNESS_GANG": "host:4711"},
    )

    with pytest.raises(LaunchError, match=r"kubectl create is refused: .*NotFound"):
        kubernetes.GangSet(gang, OPTIONS, os.environ)
    assert {"persistentvolumeclaims"} == {kind for kind, _ in server.objects}
