"""The script for mpirun: valid, and run for real where OpenMPI is installed."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

from harness.errors import PlanError
from harness.launch.gang_request import GangRequest
from harness.launch.mpi_file import render_mpi
from replicator.cluster import local_cluster

IDENTITY = pathlib.Path(__file__).with_name("gang_identity.py")
needs_mpirun = pytest.mark.skipif(
    shutil.which("mpirun") is None,
    reason="needs mpirun of OpenMPI: apt-get install openmpi-bin",
)


def request(*command, **changes):
    """A gang of two workers on CPUs."""
    return GangRequest(
        **({"name": "study", "command": command, "num_workers": 2} | changes)
    )


def run_script(text, tmp_path, *, timeout_sec=120):
    """Runs a script as root in a container needs it, with both workers on one host."""
    script = tmp_path / "gang.sh"
    script.write_text(text)
    flags = "--oversubscribe"
    if os.geteuid() == 0:
        flags += " --allow-run-as-root"
    return subprocess.run(
        ["sh", str(script)],
        env=os.environ | {"MPIRUN_FLAGS": flags, "MASTER_ADDR": "127.0.0.1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=timeout_sec,
        check=False,
    )


@needs_mpirun
@pytest.mark.processes
def test_mpirun_tells_every_process_who_it_is(tmp_path):
    """Two processes of a real mpirun agree on addresses, each with its own rank."""
    (port,) = local_cluster.free_ports(1)
    done = run_script(
        render_mpi(request(sys.executable, str(IDENTITY), port=port)), tmp_path
    )
    found = sorted(
        (json.loads(line) for line in done.stdout.splitlines() if "{" in line),
        key=lambda one: one["worker_id"],
    )

    assert (0, 2) == (done.returncode, len(found)), done.stderr
    assert [0, 1] == [one["worker_id"] for one in found]
    assert [(0, 2), (1, 2)] == [
        (one["local_worker_id"], one["num_workers_on_host"]) for one in found
    ]
    assert {"OpenMpiEnvironment"} == {one["kind"] for one in found}
    assert found[0]["addresses"] == found[1]["addresses"]
    assert 2 == len(set(found[0]["addresses"]))


@needs_mpirun
@pytest.mark.processes
def test_a_worker_that_fails_ends_the_others(tmp_path):
    """The gang is ended, and the script has the exit code of the failed worker."""
    program = (
        "import os, sys, time;"
        "sys.exit(3) if os.environ['OMPI_COMM_WORLD_RANK'] == '1' else time.sleep(600)"
    )
    done = run_script(render_mpi(request(sys.executable, "-c", program)), tmp_path)

    assert 3 == done.returncode


@needs_mpirun
@pytest.mark.processes
def test_the_time_of_a_gang_is_bounded(tmp_path):
    """After its time nothing of it is left."""
    marker = f"marker-{os.getpid()}"
    program = f"import time; '{marker}'; time.sleep(600)"
    done = run_script(
        render_mpi(request(sys.executable, "-c", program, timeout_sec=3)), tmp_path
    )
    left = subprocess.run(["pgrep", "-f", marker], capture_output=True, check=False)

    assert 124 == done.returncode
    assert b"" == left.stdout


def test_hosts_get_workers_in_blocks():
    """So that local ranks number the GPUs of each host."""
    text = render_mpi(
        request("python", "train.py", num_workers=8, gpus_per_worker=1),
        ["node-1", "node-2"],
    )

    assert "--host node-1:4,node-2:4" in text
    assert "MASTER_ADDR=node-1\n" in text
    assert "-np 8 " in text


def test_a_script_is_valid_shell(tmp_path):
    """With every option, and with words that a shell would split."""
    for hosts, cores in (((), None), (("a", "b"), 4)):
        text = render_mpi(
            request("echo", "it's $HOME; `x`", cores_per_worker=cores), hosts
        )
        done = subprocess.run(
            ["sh", "-n"], input=text, text=True, capture_output=True, check=False
        )

        assert (0, "") == (done.returncode, done.stderr)
        assert "'it'\"'\"'s $HOME; `x`'" in text


@pytest.mark.parametrize(
    ("hosts", "message"),
    [
        (["a b"], r"--hosts has 'a b', which is not the name of a host"),
        (["-a"], r"--hosts has '-a', which is not the name of a host"),
        (["a", "a"], r"--hosts names 'a' twice; name every host once"),
        (
            ["a", "b", "c"],
            r"--workers 2 is not divisible by the 3 hosts of --hosts a,b",
        ),
    ],
)
def test_mistakes_in_hosts_are_explained(hosts, message):
    """Each has its own message."""
    with pytest.raises(PlanError, match=message):
        render_mpi(request("x"), hosts)
