"""Processes that ``mpirun`` starts, for real where OpenMPI is installed."""

import json
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

from replicator.cluster import local_cluster

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(
        shutil.which("mpirun") is None,
        reason="needs mpirun of OpenMPI: apt-get install openmpi-bin",
    ),
]
FOLDER = pathlib.Path(__file__).parent
OF_OTHERS = ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "TF_CONFIG")


@pytest.fixture
def run_gang(tmp_path, monkeypatch):
    for name in OF_OTHERS:
        monkeypatch.delenv(name, raising=False)
    as_root = ["--allow-run-as-root"] * (os.geteuid() == 0)

    def run(program, *, has_master):
        master = {}
        if has_master:
            (port,) = local_cluster.free_ports(1)
            master = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        names = [word for name in master for word in ("-x", name)]
        return subprocess.run(
            [
                *("mpirun", *as_root, "--oversubscribe", "-np", "2", *names),
                *(sys.executable, str(FOLDER / program)),
            ],
            env={**os.environ, **master},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    return run


@pytest.mark.parametrize("has_master", [True, False])
def test_mpirun_tells_every_process_who_it_is(run_gang, has_master):
    """Without MASTER_ADDR as well: processes of one host."""
    done = run_gang("gang_identity.py", has_master=has_master)
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


@pytest.mark.full
def test_workers_of_mpirun_train_together(run_gang):
    """The backend finds its cluster without TF_CONFIG; both workers have the sum."""
    done = run_gang("gang_sum.py", has_master=True)
    lines = sorted(line for line in done.stdout.splitlines() if line.startswith("sum"))

    assert ["sum 3 on worker 0", "sum 3 on worker 1"] == lines, done.stderr
