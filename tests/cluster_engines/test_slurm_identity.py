"""A step of the real Slurm on two nodes describes itself; the notations are its own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.processes
ROOT = Path(__file__).resolve().parents[2]
# With what makes the import of TensorFlow quick in processes of tests.
PATHS = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
SUM = ROOT / "tests" / "harness" / "launch" / "gang_sum.py"
SAY = """
import json, socket
from replicator.cluster import environment
c = environment.detect().config()
print(json.dumps([c.worker_id, c.local_index, c.addresses["worker"], c.is_chief,
                  socket.gethostname()]))
"""


@pytest.fixture
def tell(slurm):
    """Returns a function that starts a step, and returns what its tasks know."""

    def run(*options):
        done = slurm.run(
            "srun", *options, sys.executable, "-c", SAY, env={"PYTHONPATH": str(ROOT)}
        )
        assert not done.returncode, done.stderr
        return sorted(json.loads(line) for line in done.stdout.splitlines())

    return run


def test_two_tasks_on_two_nodes_know_each_other(tell):
    """Ranks, the chief, and the node of each; both derive the same addresses."""
    first, second = tell("--nodes=2", "--ntasks=2")

    assert [0, 0, True, "n0"] == [*first[:2], *first[3:]]
    assert [1, 0, False, "n1"] == [*second[:2], *second[3:]]
    assert first[2] == second[2]
    assert ["n0", "n1"] == [address.split(":")[0] for address in first[2]]


def test_tensorflow_sums_over_the_network(slurm):
    """Its servers find each other by the names of the nodes, as a step is started."""
    done = slurm.run(
        "srun",
        "--nodes=2",
        "--ntasks=2",
        sys.executable,
        SUM,
        env={"PYTHONPATH": PATHS},
    )

    assert ["sum 3 on worker 0", "sum 3 on worker 1"] == sorted(
        done.stdout.splitlines()
    ), done.stderr


@pytest.mark.parametrize("distribution", ["block", "cyclic", "plane=2"])
def test_ranks_are_on_the_nodes_that_addresses_say(tell, distribution):
    """However tasks are spread, also unevenly; no two have the same address."""
    tasks = tell(
        "--nodes=2", "--ntasks=3", "--overcommit", f"--distribution={distribution}"
    )

    for worker_id, _, addresses, _, node in tasks:
        assert node == addresses[worker_id].split(":")[0]
    assert 3 == len(set(tasks[0][2]))
    assert sorted([0, 1, 0]) == sorted(task[1] for task in tasks)


@pytest.mark.parametrize(
    "text", ["n[0-1,5],gpu-[01-03]", "a[08-11]", "x", "n[0-1],n5", "a[1-2]b[3-4]"]
)
def test_a_list_of_nodes_means_what_slurm_says(slurm, text):
    from replicator.cluster.environment.slurm import expand_nodes

    done = slurm.run("scontrol", "show", "hostnames", text)

    assert tuple(done.stdout.split()) == expand_nodes(text)


LISTEN = """
import socket
connection, _ = socket.create_server(("", 5000)).accept()
while connection.recv(65536):
    pass
connection.sendall(b"x")
"""
SEND = """
import socket, time
for _ in range(100):
    try:
        connection = socket.create_connection(("n1", 5000))
        break
    except OSError:
        time.sleep(0.05)
started = time.monotonic()
connection.sendall(b"x" * 2_500_000)
connection.shutdown(socket.SHUT_WR)
connection.recv(1)
print(20 / (time.monotonic() - started))
"""


def test_communication_between_the_nodes_can_cost_something(slurm):
    """20 Mbit through a cable of 50 Mbit/s take about 0.4 s."""
    if reason := slurm.limit_rate(50):
        pytest.skip(f"the kernel cannot limit a rate: {reason}")
    try:
        command = slurm.command(sys.executable, "-S", "-c", LISTEN, on="n1")
        with subprocess.Popen(command) as listener:
            sent = slurm.run(sys.executable, "-S", "-c", SEND, on="n0")
            listener.wait(10)
    finally:
        slurm.unlimit_rate()

    assert 30 < float(sent.stdout) < 60
