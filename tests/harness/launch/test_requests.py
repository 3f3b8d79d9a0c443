"""What launchers submit or render, and what is refused before that."""

import os
import re
import subprocess
import time

import pytest
import slurm_cluster
from command_lines import overridden, smoke_sweep
from fake_machine import install_ray

from harness import ExitCode, PlanError
from harness.launch import launchers
from harness.launch.launchers import HOSTS_VARIABLE


def test_trials_of_several_hosts_do_not_run_on_one(make_spec):
    spec = make_spec(variables={HOSTS_VARIABLE: "2"})

    with pytest.raises(
        PlanError,
        match=r"--launcher local: the trials are planned for 2 hosts, but 1 .*"
        r"allocation of 2",
    ):
        launchers.start("local").check([spec])


SWEEP = smoke_sweep("--backends=multi_worker --replicas=2 --mode=weak --repeats=3")
ON_SLURM = (*SWEEP, "--launcher=slurm")
ON_RAY = (*SWEEP, "--launcher=ray")


@pytest.fixture
def slurm(tmp_path_factory, monkeypatch):
    """Puts programs into PATH that answer as Slurm's; returns what was submitted."""
    return slurm_cluster.install_stand_ins(
        tmp_path_factory.mktemp("slurm"), monkeypatch
    )


def test_outside_of_an_allocation_a_job_is_submitted(harness, slurm, monkeypatch):
    argv = (*ON_SLURM, "--set=nodes=2", "--runs-dir=it's here")
    monkeypatch.setenv("SBATCH_PARTITION", "main,big")
    monkeypatch.setenv("SBATCH_TIMELIMIT", "1:00:00")
    monkeypatch.setattr("sys.argv", ["harness", *argv])
    code, out, err = harness(*argv)
    text = slurm.read_text()

    assert (0, "42\n") == (code, out)
    assert re.search(
        r"submitted job 42; follow it with 'squeue --jobs=42' and 'tail -F \S+-42"
        r"\.log'; its study is it's here/\S+; scancel 42 ends it, and the same",
        err,
    )
    for pattern in (
        r"-m harness sweep .*--launcher=slurm .*--study resnet50-smoke-",
        r'#SBATCH --nodes="2"',
        r'#SBATCH --signal="B:USR1@60"',  # it stops before the time limit
        r"#SBATCH --requeue",
        r"main,big 1:00:00$",  # what sbatch finds in its environment
    ):
        assert re.search(pattern, text)
    batch_file = text.rpartition("main,big")[0]
    options = {"input": batch_file, "capture_output": True, "text": True}
    assert "" == subprocess.run(["bash", "-n"], check=True, **options).stderr


NOT_SUBMITTED = [
    ("", "--set=nodes=3", r"nodes=3: partition 'main' has 2; use at most nodes=2"),
    ("", "--order=interleaved", r"--order interleaved on 2 hosts: blocks are judged"),
    # Of several, the largest has to have the nodes.
    ("big,main", "--set=nodes=9", r"partition 'big' has 8; use at most nodes=8, or se"),
]


@pytest.mark.parametrize(("partition", "option", "message"), NOT_SUBMITTED)
def test_nothing_is_submitted_that_cannot_run(
    refuse, slurm, monkeypatch, partition, option, message
):
    if partition:
        monkeypatch.setenv("SBATCH_PARTITION", partition)
    words = overridden((*ON_SLURM, "--set=nodes=2"), option)

    assert re.search(message, refuse(*words))
    assert not slurm.exists()


def test_a_job_on_gpus_gets_those_of_the_largest_number_of_replicas(
    harness, refuse, slurm
):
    without = [word for word in ON_SLURM if not word.startswith("--replicas")]
    err = refuse(*without, "--device=gpu")
    assert "the GPUs of the job are unknown before it starts; give --replicas" in err
    assert not slurm.exists()

    sizes = ("--replicas=2,4", "--set=replicas-per-worker=2", "--set=nodes=2")
    code, _, err = harness(*without, "--device=gpu", *sizes)

    assert ExitCode.OK == code, err
    text = slurm.read_text(encoding="utf-8")
    assert '#SBATCH --ntasks-per-node="1"' in text
    assert '#SBATCH --gpus-per-node="2"' in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (ON_SLURM, "'sbatch' is not in PATH, so there is no Slurm here; run the comma"),
        (
            ("sweep", "--study", "s", "--launcher=slurm"),
            "this process is in no allocation (SLURM_JOB_ID is not set)",
        ),
    ],
)
@pytest.mark.usefixtures("finished")
def test_what_slurm_has_to_have_is_named(refuse, monkeypatch, words, message):
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)

    assert message in refuse(*words)


def test_a_step_that_slurm_takes_for_running_does_not_hold_up_the_sweep(
    tmp_path, monkeypatch
):
    ran = tmp_path / "ran"
    for name, said in (("squeue", tmp_path.name), ("scancel", ""), ("srun", "")):
        noted = "" if said else f'echo {name} "$@" >> {ran}\n'
        stub = tmp_path / name
        stub.write_text(f"#!/bin/sh\n{noted}echo 42.0 other; echo 42.1 {said}\n")
        stub.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_JOB_ID", "42")
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "2")
    launcher, clock = launchers.start("slurm"), time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: 60 * clock())  # it waits for 6 s
    launcher.end(tmp_path)
    cancelled, ended = [line.split() for line in ran.read_text().splitlines()]

    assert ["scancel", "42.1"] == cancelled
    assert {"srun", "--nodes=2", "harness.trial.process_tree"} <= set(ended)
    assert str(tmp_path) == ended[-1]


def test_several_hosts_are_part_of_the_identity(succeed, tmp_path_factory, monkeypatch):
    """One host takes turns, as this machine does, and is not named."""
    folder, options = tmp_path_factory.mktemp("ray"), (*ON_RAY, "--dry-run", "--json")
    install_ray(folder, monkeypatch, (2, 0), (2, 0))
    there = succeed(*options, "--order=sequential")
    install_ray(folder, monkeypatch, (2, 0))
    here = succeed(*options, "--order=interleaved")

    assert '"REPLICATOR_HARNESS_HOSTS": "2"' in there
    assert "REPLICATOR_HARNESS_HOSTS" not in here


PROGRAM = ("python", "train.py", "--text", "a b")
IMAGE = "--set=pod-template=../image.yaml"
CHECK = "python -m harness.launch.ray 2"
SIZE = "--num-cpus=16 --num-gpus=4"


@pytest.fixture(autouse=True)
def _template(tmp_path):
    """Writes the template of ``IMAGE`` beside the current folder."""
    container = "{name: harness, image: example/replicator:1}"
    content = f"spec: {{containers: [{container}]}}"
    (tmp_path.parent / "image.yaml").write_text(content)


def render(harness, launcher, *options, command=PROGRAM):
    return harness(
        "launch", "render", f"--launcher={launcher}", *options, "--", *command
    )


@pytest.mark.parametrize(
    ("launcher", "options", "name", "text"),
    [
        ("jobset", [IMAGE], "study.jobset.yaml", "2 workers with 4 GPUs each"),
        ("ray", [], "study.ray.sh", "2 workers with 4 GPUs each"),
        ("slurm", [], "study.sbatch", "--gpus-per-task=4 python train.py --text 'a b'"),
    ],
)
def test_a_file_is_written_and_named(harness, tmp_path, launcher, options, name, text):
    asked = (launcher, "--name=study", "--workers=2", "--gpus-per-worker=4", *options)
    code, out, err = render(harness, *asked, "--output=files")

    assert (0, f"files/{name}\n", "") == (code, out, err)
    assert text in (tmp_path / "files" / name).read_text()
    (tmp_path / "files" / name).write_text("mine")
    code, _, err = render(harness, *asked, "--output=files")

    assert 2 == code
    assert "exists and is not overwritten; choose another --output or --name" in err
    assert "mine" == (tmp_path / "files" / name).read_text()


def with_container(fields, more=""):
    return f"spec: {{{more}containers: [{{name: harness, {fields}}}]}}"


MOUNT = "volumeMounts: [{name: runs, mountPath: /a}]"
PORT = "env: [{name: REPLICATOR_PORT, valueFrom: {}}]"
NO_TEMPLATES = [
    (None, "does not exist"),
    ("", "the keys at its top are 'metadata' and 'spec'"),
    ("metadata: {namespace: A b}", "metadata.namespace 'A b' is not the name"),
    ("spec: {containers: [{name: other}]}", "its containers are ['other']"),
    (with_container("args: [a]"), "'harness' has args, and its command is what is me"),
    (with_container("image: 'x:'"), "its image 'x:' is not"),
    ("spec: {activeDeadlineSeconds: 0}", "0 is not a whole number of seconds above"),
    (
        with_container("image: a", "restartPolicy: Always, "),
        "its spec.restartPolicy is 'Always', and 'N",
    ),
    (
        with_container(f"image: a, {MOUNT}", "volumes: [{name: runs}], "),
        "spec.containers.worker.volumeMounts.runs is {'name': 'runs', 'mountPath':",
    ),
    (
        with_container(f"image: a, {PORT}"),
        "env.REPLICATOR_PORT is {'name': 'REPLICATOR_PORT', 'valueFrom': {}}, and",
    ),
]


@pytest.mark.parametrize(("content", "message"), NO_TEMPLATES)
def test_what_is_no_template_or_contradicts_is_refused(
    harness, written, tmp_path, content, message
):
    if content is not None:
        (tmp_path / "pod.yaml").write_text(content)
    code, out, err = render(harness, "jobset", "--set=pod-template=pod.yaml")

    assert (2, "", 1) == (code, out, err.count("\n"))
    assert message in err
    assert ["pod.yaml"] * (content is not None) == written()


@pytest.mark.parametrize(
    ("options", "lines"),
    [
        (["--set=nodes=2"], ['nodes="2"', 'ntasks-per-node="2"', 'gpus-per-node="4"']),
        ([], ['ntasks="4"', 'gpus-per-task="2"']),
    ],
)
def test_a_batch_file_of_a_gang_is_one_step(harness, tmp_path, options, lines):
    size = ("--workers=4", "--gpus-per-worker=2", *options)
    render(harness, "slurm", *size, command=("sweep",))
    text = (tmp_path / "replicator.sbatch").read_text()

    assert all(f"#SBATCH --{line}\n" in text for line in lines)
    assert text.endswith("sweep\n")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("head",), f"ray start --head --port=6379 --include-dashboard=false {SIZE}"),
        (("join", "a"), f"ray start --address=a:6379 {SIZE}"),
        (("stop",), "ray stop"),
        ((), ""),
        (
            ("run",),
            f"{CHECK}\ntimeout --foreground --kill-after=60 86400 sweep it's $HOME",
        ),
    ],
)
def test_every_host_of_a_ray_cluster_has_its_part(
    harness, tmp_path, monkeypatch, words, expected
):
    for name in ("ray", "python", "timeout"):  # which print their words
        stub = tmp_path / name
        stub.write_text(f'#!/bin/sh\necho {name} "$@"\n')
        stub.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.delenv("PYTHON", raising=False)
    size = ("--workers=4", "--gpus-per-worker=2")
    size += ("--set=cores-per-worker=8", "--set=nodes=2")
    render(harness, "ray", *size, command=("sweep", "it's $HOME"))
    script = ["sh", "replicator.ray.sh", *words]
    done = subprocess.run(script, capture_output=True, text=True, check=False)

    if expected:
        assert (0, f"{expected}\n") == (done.returncode, done.stdout), done.stderr
    else:  # the usage
        assert (2, "") == (done.returncode, done.stdout)
        assert "head | join FIRST_HOST | run | stop" in done.stderr
