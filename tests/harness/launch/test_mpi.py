"""The script for mpirun, run for real where OpenMPI is installed."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

from harness.launch import catalog
from harness.launch.job import Job
from harness.launch.mpi.launcher import MpiFileOptions
from replicator.cluster import local_cluster

IDENTITY = pathlib.Path(__file__).with_name("gang_identity.py")
SUM = IDENTITY.with_name("gang_sum.py")
needs_mpirun = pytest.mark.skipif(
    shutil.which("mpirun") is None,
    reason="needs mpirun of OpenMPI: apt-get install openmpi-bin",
)


def script(*command, **options):
    """The script of a gang of two workers on CPUs."""
    job = Job(name="study", command=command, workers=2)
    (text,) = catalog.info("mpi").render(job, MpiFileOptions(**options)).values()
    return text


def run_script(text, tmp_path, **variables):
    """Runs a script as root in a container needs it, with both workers on one host."""
    path = tmp_path / "gang.sh"
    path.write_text(text)
    flags = "--oversubscribe"
    if os.geteuid() == 0:
        flags += " --allow-run-as-root"
    return subprocess.run(
        ["sh", str(path)],
        env={
            **os.environ,
            "MPIRUN_FLAGS": flags,
            "MASTER_ADDR": "127.0.0.1",
            **variables,
        },
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@needs_mpirun
@pytest.mark.processes
def test_mpirun_tells_every_process_who_it_is(tmp_path):
    """Two processes of a real mpirun agree on addresses, each with its own rank."""
    (port,) = local_cluster.free_ports(1)
    done = run_script(
        script(sys.executable, str(IDENTITY)), tmp_path, MASTER_PORT=str(port)
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
@pytest.mark.full
def test_workers_of_mpirun_train_together(tmp_path):
    """The backend finds its cluster without TF_CONFIG; both workers have the sum.

    In the full run; otherwise the test above has the ranks and addresses that they
    find, and ``test_slurm_identity.py`` a sum of workers without TF_CONFIG.
    """
    (port,) = local_cluster.free_ports(1)
    done = run_script(script(sys.executable, str(SUM)), tmp_path, MASTER_PORT=str(port))
    lines = sorted(line for line in done.stdout.splitlines() if line.startswith("sum"))

    assert ["sum 3 on worker 0", "sum 3 on worker 1"] == lines, done.stderr


@needs_mpirun
@pytest.mark.processes
def test_a_worker_that_fails_ends_the_others(tmp_path):
    """The gang is ended, and the script has the exit code of the failed worker."""
    program = (
        "import os, sys, time;"
        "sys.exit(3) if os.environ['OMPI_COMM_WORLD_RANK'] == '1' else time.sleep(600)"
    )
    done = run_script(script(sys.executable, "-c", program), tmp_path)

    assert 3 == done.returncode


@needs_mpirun
@pytest.mark.processes
def test_the_time_of_a_gang_is_bounded(tmp_path):
    """After its time nothing of it is left."""
    marker = f"marker-{os.getpid()}"
    program = f"import time; '{marker}'; time.sleep(600)"
    done = run_script(script(sys.executable, "-c", program, time_limit=2), tmp_path)
    left = subprocess.run(["pgrep", "-f", marker], capture_output=True, check=False)

    assert 124 == done.returncode
    assert b"" == left.stdout


@needs_mpirun
@pytest.mark.processes
def test_mpirun_alone_says_where_rank_0_is(tmp_path):
    """Without the script and without MASTER_ADDR: processes of one host."""
    environ = {
        name: value
        for name, value in os.environ.items()
        if name not in {"MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "TF_CONFIG"}
    }
    as_root = ["--allow-run-as-root"] * (os.geteuid() == 0)
    done = subprocess.run(
        ["mpirun", *as_root, "--oversubscribe", "-np", "2", sys.executable, IDENTITY],
        env=environ,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    found = [json.loads(line) for line in done.stdout.splitlines() if "{" in line]

    assert (0, 2) == (done.returncode, len(found)), done.stderr
    assert {0, 1} == {one["worker_id"] for one in found}
    assert found[0]["addresses"] == found[1]["addresses"]
