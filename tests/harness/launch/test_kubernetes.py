"""Sweeps and gangs on Kubernetes: a real kubectl, a stand-in for its server."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import kubernetes_api
import pytest
import yaml
from command_lines import smoke_sweep
from damaging import until

from harness import ExitCode, LaunchError, PlanError
from harness.launch import launchers
from harness.launch.gang import Gang
from harness.launch.launchers import HOSTS_VARIABLE, Job
from results import Store, TrialStatus

ASKED = ("--launcher=kubernetes", "--set=pod-template=pod.yaml")
PROGRAM = """
import sys, time
print("cells/s: 1.0", flush=True)
for step in range(8):
    print("cells/s:", 100 + step + int(sys.argv[1]), flush=True)
    time.sleep(float(sys.argv[2]))
"""
# In pods: a page takes longer than the trials.
WITHOUT_PAGES = """
import reports
reports.write_report = lambda *_: None
"""
needs_kubectl = pytest.mark.skipif(
    shutil.which("kubectl") is None,
    reason="needs kubectl (a package of that name, or kubernetes-client)",
)


@pytest.fixture
def server(tmp_path, tmp_path_factory, monkeypatch):
    folder = tmp_path / "server"
    folder.mkdir()
    claims = {"studies": ["ReadWriteMany"], "alone": ["ReadWriteOnce"]}
    own = tmp_path_factory.mktemp("without-pages")
    (own / "sitecustomize.py").write_text(WITHOUT_PAGES)
    paths = (own, Path(__file__).resolve().parents[3])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, paths)))
    with kubernetes_api.running(folder, claims) as made:
        monkeypatch.setenv("KUBECONFIG", str(made.kubeconfig))
        yield made


@pytest.fixture
def harness(harness, monkeypatch):
    def run(*words, **options):
        monkeypatch.setattr("sys.argv", ["harness", *words])
        return harness(*words, **options)

    return run


def write_template(folder, **fields):
    content = json.dumps(kubernetes_api.template(**fields))
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


KUBERNETES = launchers.info("kubernetes")


def options_of(nodes=None, **fields):
    template = kubernetes_api.template(**fields)
    return KUBERNETES.options(pod_template=template, nodes=nodes)


# Keeps what is created last, and finds a claim that all pods can write to.
KUBECTL = """#!/bin/sh
case $2 in
create) cat > {made}; echo '{{"metadata": {{"name": "s-1"}}}}' ;;
get) echo '{{"spec": {{"accessModes": ["ReadWriteMany"]}}}}' ;;
esac
"""


@pytest.fixture
def job_of(tmp_path_factory, monkeypatch):
    """Returns a function that gives what a sweep would submit."""
    folder = tmp_path_factory.mktemp("kubectl")
    made = folder / "made.json"

    def submit(options, **fields):
        (folder / "kubectl").write_text(KUBECTL.format(made=made))
        (folder / "kubectl").chmod(0o755)
        command = (sys.executable, "-m", "harness", "sweep")
        with monkeypatch.context() as patch:
            patch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
            job = Job(name="s", command=command, **fields)
            assert "s-1" == KUBERNETES.submit(job, options, Path("runs")).number
        found = json.loads(made.read_text())
        assert [] == kubernetes_api.problems("jobs", found)
        return found["spec"], found["spec"]["template"]["spec"]

    return submit


def test_a_job_has_the_claim_the_secret_and_the_gpus(job_of):
    options = options_of(claim="studies", secret="hub", account="sweeper")
    job, pod = job_of(options, gpus_per_worker=8)
    (container,) = pod["containers"]

    assert {"nvidia.com/gpu": "8"} == container["resources"]["limits"]
    assert [{"secretRef": {"name": "hub"}}] == container["envFrom"]
    assert ["/srv/harness/runs", "/dev/shm"] == [
        mount["mountPath"] for mount in container["volumeMounts"]
    ]
    claim = pod["volumes"][0]["persistentVolumeClaim"]
    assert {"claimName": "studies"} == claim
    assert "sweeper" == pod["serviceAccountName"]
    assert ["python", "-m", "harness", "sweep"] == container["command"]
    assert 24 * 3600 == job["activeDeadlineSeconds"]
    options.pod_template["spec"]["activeDeadlineSeconds"] = 600
    job, pod = job_of(options)
    assert 600 == job["activeDeadlineSeconds"]
    assert "activeDeadlineSeconds" not in pod


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
    (tmp_path / "bench.py").write_text("raise SystemExit(3)")
    job = harness(*sweep)[1].strip()
    until(lambda: conditions_of(server, job), "the end of the job")

    assert ["Failed"] == conditions_of(server, job)
    (pod,) = server.pods
    assert ExitCode.NOTHING_MEASURED == pod.process.poll(), pod.log.read_text()


ON_TWO_PODS = smoke_sweep(
    "--replicas=2 --backends=multi_worker --mode=weak --repeats=1 --order=sequential "
    "--no-match --budget=none"
)
NOT_THERE = [
    ({"claim": "other"}, (), r"its claim 'other' is not in namespace 'team'; known"),
    (
        {"claim": "alone"},
        ("--set=nodes=2",),
        r"its claim 'alone' has the access modes \['ReadWriteOnce'\], but the",
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
    if "--set=nodes=2" in options:
        given = (*ON_TWO_PODS, *ASKED)
    err = refuse(*given, *options)

    assert [] == [line for line in server.asked if line.startswith("POST")]
    assert re.search(message, err), err


@pytest.mark.parametrize(
    ("left_out", "message"),
    [
        ("file", "kubernetes requires --set pod-template=FILE with an image: "),
        ("containers", "kubernetes requires --set pod-template=FILE with an image"),
        (
            "volumes",
            "requires --set pod-template=FILE with a volume 'runs' for a sweep",
        ),
    ],
)
def test_what_a_pod_needs_is_asked_for(harness, sweep, tmp_path, left_out, message):
    if left_out == "file":
        sweep = tuple(
            word for word in sweep if not word.startswith("--set=pod-template")
        )
    else:
        content = kubernetes_api.template(claim="studies")
        del content["spec"][left_out]
        (tmp_path / "pod.yaml").write_text(json.dumps(content))
    code, _, err = harness(*sweep)

    assert ExitCode.USAGE == code
    assert message in err


def test_without_kubectl_the_message_says_so(refuse, sweep, monkeypatch, tmp_path):
    (tmp_path / "bin").mkdir()
    for program in ("git", "python3"):
        (tmp_path / "bin" / program).symlink_to(str(shutil.which(program)))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    err = refuse(*sweep)

    assert "'kubectl' is not in PATH; run the command where it is" in err


def test_gangs_start_in_the_pod_of_a_sweep_only_and_a_pod_runs_one_process(make_spec):
    options = KUBERNETES.options(nodes=2)
    with pytest.raises(PlanError, match=r"this process is in no pod of a sweep .*REPL"):
        KUBERNETES.start(options)
    spec = make_spec(
        backend="multi_worker",
        num_replicas=4,
        global_batch_size=16,
        variables={HOSTS_VARIABLE: "2"},
    )
    with pytest.raises(
        PlanError, match=r"has 4 processes, and a pod runs one; use --set n"
    ):
        KUBERNETES.plan(options).check([spec])


@pytest.fixture
def in_pod(server, tmp_path, monkeypatch):
    for name, value in {
        "POD": "s-1",
        "POD_UID": "0000-1",
        "NAMESPACE": "team",
        "POD_ADDRESS": "127.0.0.1",
        "CLAIM_AT": str(tmp_path),
    }.items():
        monkeypatch.setenv(f"REPLICATOR_HARNESS_{name}", value)
    monkeypatch.setenv("A_TOKEN", "not-for-everybody")


OPTIONS = options_of(claim="studies", nodes=2)


@needs_kubectl
@pytest.mark.processes
@pytest.mark.usefixtures("in_pod")
def test_a_trial_is_a_jobset_of_two_pods(server, harness, overrides, tmp_path):
    write_template(tmp_path, claim="studies")
    options = (*ASKED, "--set=nodes=2", "--study=s")
    code, _, err = harness(*ON_TWO_PODS, *options, overrides=overrides)
    assert ExitCode.OK == code, err
    (found,) = Store.open(tmp_path / "runs" / "s").trials()

    assert TrialStatus.OK is found.status.status, found.status.failure
    assert 2 + 2 == len(server.pods)  # the first have looked for the folder only
    assert {"persistentvolumeclaims"} == {kind for kind, _ in server.objects}
    assert [] == [pod.name for pod in server.pods if pod.process.poll() is None]


def gang_of(folder, *command, **variables):
    return Gang(
        trial_dir=folder,
        members=(("worker", 0), ("worker", 1)),
        members_per_host=1,
        command=command,
        variables={**variables, "REPLICATOR_HARNESS_GANG": "host:4711"},
    )


@needs_kubectl
@pytest.mark.processes
@pytest.mark.usefixtures("in_pod")
def test_variables_of_a_gang_are_in_a_secret(server, tmp_path):
    program = "print('said'); raise SystemExit(3)"
    gang = gang_of(tmp_path, sys.executable, "-c", program, **os.environ)
    engine = KUBERNETES.start(OPTIONS).engine(gang)
    made = {kind: one for (kind, _), one in server.objects.items()}
    secret = made["secrets"]["stringData"]

    assert "not-for-everybody" not in json.dumps(made["jobsets"])
    assert "not-for-everybody" == secret["A_TOKEN"]
    assert "127.0.0.1:4711" == secret["REPLICATOR_HARNESS_GANG"]
    for kind in ("jobsets", "secrets"):
        (owner,) = made[kind]["metadata"]["ownerReferences"]
        assert ("Pod", "s-1", "0000-1") == (owner["kind"], owner["name"], owner["uid"])
    until(lambda: engine.poll() is not None, "the end of the gang")
    assert 1 == engine.poll()
    assert "said" in engine.output()
    engine.cancel()
    engine.cancel()
    assert {"persistentvolumeclaims"} == {kind for kind, _ in server.objects}


@needs_kubectl
@pytest.mark.usefixtures("in_pod")
def test_a_refused_gang_leaves_no_secret(server, tmp_path, monkeypatch):
    monkeypatch.delitem(kubernetes_api.KINDS, "jobsets")

    with pytest.raises(LaunchError, match=r"kubectl create is refused: .*NotFound"):
        KUBERNETES.start(OPTIONS).engine(gang_of(tmp_path, "true"))
    assert {"persistentvolumeclaims"} == {kind for kind, _ in server.objects}


@needs_kubectl
def test_the_documented_template_is_one(server, harness, tmp_path, job_of):
    page = Path(__file__).resolve().parents[3] / "docs" / "clusters.md"
    (template,) = re.findall("```yaml\n(.*?)```", page.read_text(), re.DOTALL)
    (tmp_path / "pod.yaml").write_text(template)
    gang = ("--launcher=jobset", "--set=pod-template=pod.yaml", "--workers=4")
    gang += ("--name=g",)
    code, out, err = harness("launch", "render", *gang, "--", "python", "train.py")
    assert 0 == code, err
    made = yaml.safe_load((tmp_path / out.strip()).read_text())
    path = "/apis/jobset.x-k8s.io/v1alpha2/namespaces/team/jobsets"
    words = ("--raw", f"{path}?fieldValidation=Strict&dryRun=All", "--filename=-")
    created = subprocess.run(
        ["kubectl", "create", *words],
        input=json.dumps(made),
        capture_output=True,
        text=True,
        check=True,
    )

    assert "g" == json.loads(created.stdout)["metadata"]["name"]
    assert job_of(KUBERNETES.options(pod_template=yaml.safe_load(template)))
