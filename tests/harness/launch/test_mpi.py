"""Processes that ``mpirun`` starts, for real where OpenMPI is installed."""

import json
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

from replicator.cluster import local_cluster

IDENTITY = pathlib.Path(__file__).with_name("gang_identity.py")
needs_mpirun = pytest.mark.skipif(
    shutil.which("mpirun") is None,
    reason="needs mpirun of OpenMPI: apt-get install openmpi-bin",
)


def run_gang(tmp_path, *command, base=os.environ, **variables):
    as_root = ["--allow-run-as-root"] * (os.geteuid() == 0)
    names = [word for name in variables for word in ("-x", name)]
    return subprocess.run(
        ["mpirun", *as_root, "--oversubscribe", "-np", "2", *names, *command],
        env={**base, **variables},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@needs_mpirun
@pytest.mark.processes
def test_mpirun_tells_every_process_who_it_is(tmp_path):
    (port,) = local_cluster.free_ports(1)
    done = run_gang(
        tmp_path,
        sys.executable,
        str(IDENTITY),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
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
    """The backend finds its cluster without TF_CONFIG; both workers have the sum."""
    (port,) = local_cluster.free_ports(1)
    done = run_gang(
        tmp_path,
        sys.executable,
        str(IDENTITY.with_name("gang_sum.py")),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
    )
    lines = sorted(line for line in done.stdout.splitlines() if line.startswith("sum"))

    assert ["sum 3 on worker 0", "sum 3 on worker 1"] == lines, done.stderr


@needs_mpirun
@pytest.mark.processes
def test_a_worker_that_fails_ends_the_others(tmp_path):
    program = (
        "import os, sys, time;"
        "sys.exit(3) if os.environ['OMPI_COMM_WORLD_RANK'] == '1' else time.sleep(600)"
    )
    done = run_gang(tmp_path, sys.executable, "-c", program)

    assert 3 == done.returncode


@needs_mpirun
@pytest.mark.processes
def test_mpirun_alone_says_where_rank_0_is(tmp_path):
    """Without MASTER_ADDR: processes of one host."""
    environ = {
        name: value
        for name, value in os.environ.items()
        if name not in {"MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "TF_CONFIG"}
    }
    done = run_gang(tmp_path, sys.executable, str(IDENTITY), base=environ)
    found = [json.loads(line) for line in done.stdout.splitlines() if "{" in line]

    assert (0, 2) == (done.returncode, len(found)), done.stderr
    assert {0, 1} == {one["worker_id"] for one in found}
    assert found[0]["addresses"] == found[1]["addresses"]
