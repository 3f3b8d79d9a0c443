"""The script for hosts without a scheduler: a Ray cluster, and a sweep on it."""

from __future__ import annotations

import os
import subprocess

import pytest

from harness.errors import LaunchError, PlanError
from harness.launch import ray_cluster
from harness.launch.ray_cluster import RayHost
from harness.launch.ray_file import render
from harness.launch.targets import Job

SIZE = "--num-cpus=16 --num-gpus=4"
TIMEOUT = "--foreground --kill-after=60 86400"
CHECK = "python -m harness.launch.ray_cluster 2"
SWEEP = ("python", "-m", "harness", "sweep", "--launcher", "ray")


def script(**changes):
    """The script of four workers with two GPUs each on two hosts."""
    job = Job(
        **(
            {
                "name": "study",
                "command": SWEEP,
                "workers": 4,
                "gpus_per_worker": 2,
                "cores_per_worker": 8,
                "nodes": 2,
            }
            | changes
        )
    )
    ((name, text),) = render(job).items()
    assert "study.ray.sh" == name
    return text


@pytest.fixture
def run(tmp_path):
    """Runs the script with stubs of the programs, which print their arguments."""
    for name in ("ray", "python", "timeout"):
        stub = tmp_path / name
        stub.write_text(f'#!/bin/sh\necho {name} "$@"\n')
        stub.chmod(0o755)
    path = tmp_path / "gang.sh"
    # `make test PYTHON=...` passes it on, and the script takes it for its own.
    variables = {k: v for k, v in os.environ.items() if k != "PYTHON"}

    def start(*arguments, **changes):
        path.write_text(script(**changes))
        return subprocess.run(
            ["sh", str(path), *arguments],
            env=variables | {"PATH": f"{tmp_path}:{os.environ['PATH']}"},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )

    return start


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            ["head"],
            f"ray start --head --port=6379 --include-dashboard=false {SIZE}\n",
        ),
        (["join", "a"], f"ray start --address=a:6379 {SIZE}\n"),
        (["stop"], "ray stop\n"),
        (
            ["run"],
            f"{CHECK}\ntimeout {TIMEOUT} {' '.join(SWEEP)}\n",
        ),
    ],
)
def test_every_host_has_its_part(run, arguments, expected):
    """The number of GPUs and cores of a host is that of all of its workers."""
    done = run(*arguments)

    assert (0, expected, "") == (done.returncode, done.stdout, done.stderr)


def test_without_a_part_the_usage_is_printed(run):
    """Nothing is started."""
    done = run()

    assert (2, "") == (done.returncode, done.stdout)
    assert "head | join FIRST_HOST | run | stop" in done.stderr


def test_hosts_that_have_not_joined_are_an_error():
    """A sweep on fewer would be another study."""
    hosts = [RayHost(node_id="a", address="10.0.0.1", num_cores=8, num_gpus=0)]

    with pytest.raises(
        LaunchError, match=r"has 1 of 2 hosts \(10\.0\.0\.1\); join the others with"
    ):
        ray_cluster.check_number(hosts, 2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"image": "x"}, r"--target ray has no --image: the script runs on hosts"),
        ({"array": 2}, r"--target ray has no --array"),
        ({"partition": "x"}, r"--target ray has no --partition"),
        ({"memory_per_worker": "1Gi"}, r"--target ray has no --memory-per-worker"),
        ({"workers": 3}, r"--workers 3 is not divisible by --nodes 2"),
    ],
)
def test_bad_input_is_explained(changes, message):
    """Each mistake has its own message."""
    with pytest.raises(PlanError, match=message):
        script(**changes)
