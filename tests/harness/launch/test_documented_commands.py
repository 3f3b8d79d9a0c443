"""Every command of ``docs/clusters.md`` is run as it stands there.

Engines that this machine does not have are stand-ins: programs that note their words
and check what they are given, and a server of Kubernetes that checks schemas.
``mpirun`` is real where it is installed; ``tests/cluster_engines`` runs the commands of
Ray on a real one. A new command in the document fails here until somebody says how it
is run.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import kubernetes_api
import pytest
import yaml

from harness.cli import exit_codes
from harness.launch import kubernetes, ray_cluster
from harness.launch.ray_cluster import RayHost

ROOT = Path(__file__).resolve().parents[3]
DOCUMENT = ROOT / "docs" / "clusters.md"
PROGRAMS = (
    "python", "srun", "sbatch", "scancel", "salloc", "kubectl", "sh", "ray", "mpirun",
)  # fmt: skip
HARNESS = "python -m harness "
# Notes its words, and answers as the real one would.
STAND_IN = """#!/bin/sh
printf '%s' "${0##*/}" >> "$NOTED"
for word in "$@"; do printf ' %s' "$word" >> "$NOTED"; done
printf '\\n' >> "$NOTED"
case "${0##*/}" in
  sinfo) echo "main* 8" ;;
  sbatch) if [ "$#" = 1 ] && [ -f "$1" ]; then bash -n "$1"; else bash -n /dev/stdin; fi
    echo 4711 ;;
esac
"""
TRAIN = """
import json, os
from replicator.cluster import environment
config = environment.detect().config()
name = f"said-{config.worker_id}-of-{config.num_workers}"
open(os.path.join(os.environ["SAID"], name), "x").close()
"""
SRUN = f"""#!{sys.executable}
import os, subprocess, sys
words = [word for word in sys.argv[1:]]
given = dict(word[2:].split("=") for word in words if word.startswith("--"))
command = [word for word in words if not word.startswith("--")]
nodes, tasks = int(given["nodes"]), int(given["ntasks"])
running = []
for rank in range(tasks):
    place = rank * nodes // tasks
    running.append(subprocess.Popen(command, env={{
        **os.environ, "SLURM_PROCID": str(rank), "SLURM_JOB_ID": "7",
        "SLURM_STEP_ID": "0", "SLURM_NODEID": str(place), "SLURM_LOCALID": "0",
        "SLURM_STEP_NODELIST": "node[1-%d]" % nodes,
        "SLURM_STEP_TASKS_PER_NODE": "%d(x%d)" % (tasks // nodes, nodes)}}))
sys.exit(max(one.wait() for one in running))
"""


def documented():
    """Returns the commands of the page: of its blocks, and those named in its text."""
    text = re.sub("```.*?```", "", DOCUMENT.read_text("utf-8"), flags=re.DOTALL)
    blocks = re.findall(r"^ {4}(\S.*)$", text, re.MULTILINE)
    found = [line.partition(" #")[0].strip() for line in blocks]
    prose = re.sub(r"^ {4}.*$", "", text, flags=re.MULTILINE)
    quoted = (code for code in re.findall(r"`([^`\n]+)`", prose))
    found += [code for code in quoted if " " in code and code.split()[0] in PROGRAMS]
    return list(dict.fromkeys(found))


class Place:
    def __init__(self, folder, harness, overrides):
        self.folder, self.harness, self.overrides = folder, harness, overrides
        self.noted = folder / "noted"
        self.noted.touch()
        self.said = folder / "said"
        self.said.mkdir()

    def verb(self, command, *more):
        """Runs a command of the harness in this process; returns what it prints."""
        words = [*shlex.split(command)[3:], *more]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("sys.argv", ["harness", *words])
            code, out, err = self.harness(*words, overrides=self.overrides)
        assert exit_codes.OK == code, err
        return str(out)

    def shell(self, command, **variables):
        """Runs a command in a shell; returns what it prints."""
        done = subprocess.run(
            ["sh", "-c", command],
            cwd=self.folder,
            env={**os.environ, **variables},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert 0 == done.returncode, done.stdout + done.stderr
        return done.stdout

    def was_called(self, start):
        """Whether a stand-in was called with words that begin like this."""
        return any(
            line.startswith(start) for line in self.noted.read_text().splitlines()
        )


@pytest.fixture
def place(tmp_path, harness, overrides, forked_trials, monkeypatch):
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("sinfo", "sbatch", "squeue", "scancel", "ray", "timeout"):
        (programs / name).write_text(STAND_IN)
    (programs / "srun").write_text(SRUN)
    (programs / "python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    for path in programs.iterdir():
        path.chmod(0o755)
    made = Place(tmp_path, harness, overrides)
    (tmp_path / "train.py").write_text(TRAIN)
    (template,) = re.findall(
        "```yaml\n(.*?)```", DOCUMENT.read_text("utf-8"), re.DOTALL
    )
    (tmp_path / "pod.yaml").write_text(template)
    for name, value in {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "NOTED": str(made.noted),
        "SAID": str(made.said),
        "HOME": str(tmp_path),
    }.items():
        monkeypatch.setenv(name, value)
    for name in ("SLURM_JOB_ID", "TF_CONFIG", "RANK", "WORLD_SIZE", "RAY_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    server = tmp_path / "server"
    server.mkdir()
    claims = {"studies": ["ReadWriteMany"]}
    with kubernetes_api.running(server, claims, has_images=False) as made_server:
        monkeypatch.setenv("KUBECONFIG", str(made_server.kubeconfig))
        yield made


def tasks(place, command):
    place.shell(command)
    assert {"said-0-of-2", "said-1-of-2"} == {of.name for of in place.said.iterdir()}


def submitted(place, command):
    assert "4711" in place.verb(command)
    assert place.was_called("sbatch --parsable")


def on_kubernetes(place, command):
    """The server accepts the Job; its pod would have no image here."""
    if shutil.which("kubectl") is None:
        pytest.skip("needs kubectl")
    assert place.verb(command).startswith("resnet50-")


def on_ray(place, command):
    if HARNESS not in command:
        place.shell(command.replace("FIRST_HOST", "127.0.0.1"))
        assert command.startswith("export ") or place.was_called("ray")
        return
    variable, _, sweep = command.partition(" ")
    name, _, address = variable.partition("=")
    hosts = tuple(
        RayHost(node_id=of, address="10.0.0.1", num_cores=2, num_gpus=0) for of in "ab"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(name, address)
        patch.setattr(ray_cluster, "read_hosts", lambda: hosts)
        printed = place.verb(sweep.replace(" sweep ", " sweep --dry-run "))
    assert "multi_worker x2" in printed


def rendered(place, command):
    place.verb(command)
    if shutil.which("kubectl") is None:
        pytest.skip("needs kubectl")
    made = yaml.safe_load((place.folder / "study.jobset.yaml").read_text())
    created = kubernetes.create(kubernetes.JOBSETS.format("team"), made, "dryRun=All")
    assert "study" == created["metadata"]["name"]


def script(launcher, file, *options):
    def run(place, command):
        # A worker of the gang is the program above.
        own = ("--name=study", "--workers=2", f"--launcher={launcher}", *options)
        place.verb(HARNESS + "launch render " + " ".join(own) + " -- python train.py")
        as_root = " --allow-run-as-root" * (os.geteuid() == 0)
        place.shell(
            command.replace("NAME", "study"), MPIRUN_FLAGS=f"--oversubscribe{as_root}"
        )
        assert (place.folder / file).is_file()

    return run


def named_only(_, __):
    """Ends or requests something of a user's: the words are those of its manual."""


RUNS = {
    "srun ": tasks,
    HARNESS + "sweep --workload resnet50 --backends multi_worker": submitted,
    HARNESS + "sweep --launcher kubernetes": on_kubernetes,
    HARNESS + "launch render --launcher jobset": rendered,
    "ray ": on_ray,
    "export RAY_AUTH_MODE=token": on_ray,
    "RAY_ADDRESS=": on_ray,
    "kubectl apply -f NAME.jobset.yaml": named_only,  # with the manifest above
    "kubectl delete jobset NAME": named_only,
    "sbatch NAME.sbatch": script("slurm", "study.sbatch"),
    "sh NAME.ray.sh head": script("ray", "study.ray.sh"),
    "mpirun -np 4": named_only,  # tests/harness/launch/test_mpi.py
    "cp -r": named_only,
    "scancel JOB": named_only,
    "srun --resv-ports": named_only,
}
"""How a command is run, by how it begins; the longest beginning counts."""


@pytest.mark.processes
@pytest.mark.parametrize("command", documented())
def test_a_documented_command_runs(place, command):
    starts = [start for start in RUNS if command.startswith(start)]
    assert starts, f"nobody says how {command!r} is run; add it to RUNS"
    RUNS[max(starts, key=len)](place, command)
