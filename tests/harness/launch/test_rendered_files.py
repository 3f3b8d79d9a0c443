"""``launch render`` writes files, submits nothing, and refuses what cannot run."""

import json
import os
import re
import subprocess

import pytest
from command_words import overridden
from kubernetes_rules import template

PROGRAM = ("python", "train.py", "--text", "a b")
IMAGE = "--pod-template=../image.yaml"
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


@pytest.mark.parametrize(
    ("launcher", "options", "place"),
    [
        ("slurm", [], "$HOME/.nv/ComputeCache"),
        ("ray", [], "$HOME/.nv/ComputeCache"),
        ("jobset", ["--pod-template=pod.yaml"], "/srv/harness/runs/.cuda-cache"),
    ],
)
def test_what_a_driver_compiles_for_gpus_is_kept(
    harness, tmp_path, launcher, options, place
):
    (tmp_path / "pod.yaml").write_text(json.dumps(template(claim="studies")))
    for gpus in (0, 4):
        asked = (f"--name=of-{gpus}", "--workers=2", f"--gpus-per-worker={gpus}")
        code, out, err = render(harness, launcher, *asked, *options)
        assert 0 == code, err
        text = (tmp_path / out.strip()).read_text()
        for part in ("CUDA_CACHE_PATH", "CUDA_CACHE_MAXSIZE", "4294967296", place):
            assert bool(gpus) == (part in text)


CANNOT_RUN = [
    ("slurm", (), r"no command to run; write it after '--', for example"),
    ("slum", (), r"unknown launcher 'slum'; known are local, slurm.*did you mean"),
    ("local", (), r"--launcher local writes no files: its trials are started by"),
    ("slurm", ("--replicas=3",), r"makes 8 replicas, not --replicas 3; choose"),
    ("slurm", ("--nodes=5",), r"--nodes 5 is more than --workers 4: .*at most"),
    ("slurm", ("--name=A B",), r"job name 'A B' is not valid; allowed are up to"),
    ("slurm", ('--directory=/a"b',), r"cannot stand in a batch file; leave out line"),
    ("slurm", ("--partition=a",), r"no longer an option: give it to sbatch, or"),
    ("slurm", ("--workers=0",), r"--workers: '0' is not an integer from 1"),
    (
        "slurm",
        ("--pod-template=x",),
        r"template x has no effect with --launcher s",
    ),
    ("slurm", ("--time-limit=2h",), r"--launcher slurm; give --time to sbatch"),
    ("ray", ("--time-limit=02:00:00",), r"is not a duration; write 2h; allowed"),
    ("ray", ("--time-limit=x",), r"--time-limit: 'x' is not a duration; allowed"),
    ("ray", ("--image=x",), r"--image is no longer an option: name it in the --pod-t"),
    ("ray", ("--nodes=3",), r"--workers 4 is not divisible by --nodes 3"),
    ("jobset", (), r"--launcher jobset requires --pod-template with an image: pods"),
    ("jobset", ("--nodes=4",), r"--nodes 4 has no effect with --launcher jobset"),
    ("jobset", (IMAGE, "--directory=work"), r"--directory 'work' is relative, and a"),
    (
        "jobset",
        (IMAGE, "--name=1a"),
        r"job name '1a' cannot be the name of a service, which begins with a",
    ),
    (
        "jobset",
        (IMAGE, f"--name={'a' * 53}"),
        r"job name 'a+' is too long: .* 'a+-worker-0-3' of 64 .* at most 63; .* 52",
    ),
]


@pytest.mark.parametrize(("launcher", "options", "message"), CANNOT_RUN)
def test_what_cannot_run_is_refused_in_one_line(
    harness, written, launcher, options, message
):
    command = () if "no command" in message else PROGRAM
    gang = overridden(("--workers=4", "--gpus-per-worker=2"), *options)
    code, out, err = render(harness, launcher, *gang, command=command)

    assert (2, "") == (code, out)
    assert 1 == err.count("\n")
    assert re.search(message, err)
    assert [] == written()


def with_container(fields, more=""):
    return f"spec: {{{more}containers: [{{name: harness, {fields}}}]}}"


MOUNT = "volumeMounts: [{name: runs, mountPath: /a}]"
PORT = "env: [{name: REPLICATOR_PORT, valueFrom: {}}]"
NO_TEMPLATES = [
    (None, "does not exist"),
    ("", "the keys at its top are 'metadata' and 'spec'"),
    ("a: [", "while parsing a flow node"),
    ("kind: Pod\nspec: {}", "the keys at its top are 'metadata' and 'spec'"),
    ("spec: []", "spec is no mapping"),
    ("spec: {at: 2026-01-01}", "not JSON serializable"),
    ("spec: {volumes: [runs]}", "spec.volumes is no list of mappings that"),
    ("metadata: {namespace: A b}", "metadata.namespace 'A b' is not the name"),
    ("spec: {containers: [{name: other}]}", "its containers are ['other']"),
    (with_container("args: [a]"), "'harness' has args, and its command is what is me"),
    (with_container("image: A b"), "its image 'A b' is not "),
    (with_container("image: 'x:'"), "its image 'x:' is not"),
    (with_container("image: 1"), "its image 1 is not the na"),
    ("spec: {activeDeadlineSeconds: 1h}", "'1h' is not a whole number of seconds"),
    ("spec: {activeDeadlineSeconds: true}", "True is not a whole number of second"),
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
    code, out, err = render(harness, "jobset", "--pod-template=pod.yaml")

    assert (2, "", 1) == (code, out, err.count("\n"))
    assert message in err
    assert ["pod.yaml"] * (content is not None) == written()


ON_NODES = ('nodes="2"', 'ntasks-per-node="2"', 'gpus-per-node="4"')
ANYWHERE = ('ntasks="4"', 'gpus-per-task="2"')


@pytest.mark.parametrize(
    ("options", "lines"), [(["--nodes=2"], ON_NODES), ([], ANYWHERE)]
)
def test_a_batch_file_of_a_gang_is_one_step(harness, tmp_path, options, lines):
    size = ("--workers=4", "--gpus-per-worker=2", *options)
    render(harness, "slurm", *size, command=("sweep",))
    text = (tmp_path / "replicator.sbatch").read_text()

    for line in lines:
        assert f"#SBATCH --{line}\n" in text
    assert text.endswith("sweep\n")


@pytest.fixture
def run(harness, tmp_path, monkeypatch):
    """Renders a script and runs it with stubs of programs, which print their words."""
    for name in ("ray", "python", "timeout", "mpirun"):
        stub = tmp_path / name
        stub.write_text(f'#!/bin/sh\necho {name} "$@" at "$MASTER_ADDR"\n')
        stub.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    for name in ("PYTHON", "MASTER_ADDR", "MPIRUN_FLAGS"):
        monkeypatch.delenv(name, raising=False)

    def start(launcher, *options, words=(), **variables):
        render(harness, launcher, *options, command=("sweep", "it's $HOME"))
        return subprocess.run(
            ["sh", f"replicator.{launcher}.sh", *words],
            env={**os.environ, **variables},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )

    return start


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("head",), f"ray start --head --port=6379 --include-dashboard=false {SIZE}"),
        (("join", "a"), f"ray start --address=a:6379 {SIZE}"),
        (("stop",), "ray stop"),
        ((), ""),
        (
            ("run",),
            f"{CHECK} at \ntimeout --foreground --kill-after=60 86400 sweep it's $HOME",
        ),
    ],
)
def test_every_host_of_a_ray_cluster_has_its_part(run, words, expected):
    size = ("--workers=4", "--gpus-per-worker=2", "--cores-per-worker=8", "--nodes=2")
    done = run("ray", *size, words=words)

    if expected:
        assert (0, f"{expected} at \n") == (done.returncode, done.stdout), done.stderr
    else:  # the usage
        assert (2, "") == (done.returncode, done.stdout)
        assert "head | join FIRST_HOST | run | stop" in done.stderr
