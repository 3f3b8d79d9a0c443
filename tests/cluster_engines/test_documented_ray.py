"""The commands of Ray in ``docs/clusters.md``, as they stand there, on two real nodes.

Also where one of the nodes is lost while a trial runs, that of the head included.

The nodes are those of the Slurm of the tests, whose daemons have nothing to do here.
"""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import driver
import pytest
import slurm_cluster

from results import Store, TrialStatus

pytestmark = [pytest.mark.processes, pytest.mark.full]

ROOT = Path(__file__).resolve().parents[2]
# As documented, and short.
SHORT = (
    "--preset=smoke", "--mode=weak", "--order=sequential", "--no-match",
    "--budget=none", "--timeout=60s", "--study=s",
)  # fmt: skip
NUM_TRIALS = 3
PROGRAMS = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
TOKEN = ".ray/auth_token"
HOSTS = "REPLICATOR_HARNESS_HOSTS"


@pytest.fixture
def hosts():
    """Two nodes, each with a network, processes and a home of its own."""
    if importlib.util.find_spec("ray") is None:
        pytest.skip("needs Ray: pip install 'replicator-harness[distributed]'")
    with slurm_cluster.temporary() as cluster:
        yield cluster


class Place:
    """Runs the documented commands on the two nodes."""

    def __init__(self, hosts, folder):
        self.folder, self._hosts = folder, hosts
        page = (ROOT / "docs" / "clusters.md").read_text(encoding="utf-8")
        (block,) = re.findall(r"^ {4}ray get.*\n(?: {4}.*\n)+", page, re.MULTILINE)
        lines = [line.partition(" #")[0].strip() for line in block.splitlines()]
        self._make_token, self._export, self._start, self._join, self.sweep = lines
        programs = folder / "bin"
        programs.mkdir()
        python = f'#!/bin/sh\nshift 2\nexec {sys.executable} {driver.__file__} "$@"\n'
        ray = f'#!/bin/sh\nexec {sys.executable} -m ray.scripts.scripts "$@"\n'
        for name, text in (("python", python), ("ray", ray)):
            (programs / name).write_text(text)
            (programs / name).chmod(0o755)

    def _home(self, on):
        return self._hosts.folder / f"home-{on}"

    def begin(self, on, *commands):
        self._home(on).mkdir(exist_ok=True)
        script = "\n".join(commands).replace("FIRST_HOST", "n0")
        return subprocess.Popen(
            self._hosts.command("sh", "-ec", script, on=on, cwd=self.folder),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={
                **os.environ,
                **driver.variables(),
                "PATH": f"{self.folder}/bin:{PROGRAMS}",
                "PYTHONPATH": str(ROOT),
                "HOME": str(self._home(on)),
                "RAY_TMPDIR": str(self._home(on)),
                "FAKE_STEP_SEC": "0.2",
            },
        )

    def run(self, on, *commands):
        """Runs commands on a node to their end; returns what they print."""
        process = self.begin(on, *commands)
        said, _ = process.communicate(timeout=240)
        assert not process.returncode, said
        return said

    def make_cluster(self):
        self.run("n0", self._make_token, self._export, self._start)
        (self._home("n1") / TOKEN).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(self._home("n0") / TOKEN, self._home("n1") / TOKEN)
        self.run("n1", self._export, self._join)

    def make_it_again(self):
        """Starts Ray again on both, as an operator does who has lost a host."""
        for on, command in (("n0", self._start), ("n1", self._join)):
            self.run(on, self._export, "ray stop --force", command)

    def measure(self, *options):
        return self.begin("n0", self._export, f"{self.sweep} {' '.join(options)}")

    def ended(self):
        return slurm_cluster.finished(self.folder)


@pytest.fixture
def place(hosts, tmp_path):
    made = Place(hosts, tmp_path)
    made.make_cluster()
    return made


def test_the_documented_commands_measure_on_two_nodes(place):
    """A token is made and copied, both nodes join, trials run."""
    process = place.measure(*SHORT, "--repeats=1")
    said, _ = process.communicate(timeout=240)
    assert not process.returncode, said
    trials = list(Store.open(place.folder / "runs" / "s").trials())

    assert [1, 2] == sorted(of.spec.num_replicas for of in trials)
    assert {TrialStatus.OK} == {of.status and of.status.status for of in trials}
    joined = {of.spec.num_replicas: of.spec.variables[HOSTS] for of in trials}
    assert {1: "2", 2: "2"} == joined


LOST = {"the host of the head": "n0", "another host": "n1"}


def lose(hosts, node):
    hosts.kill_node(node)
    hosts.boot_node(node)


@pytest.mark.parametrize("what", LOST)
def test_a_lost_host_of_ray_loses_nothing(hosts, place, what):
    """The sweep ends, or records a failure; the same command finishes on a new Ray."""
    options = (*SHORT, f"--repeats={NUM_TRIALS}", "--retry=failed")
    place.sweep = place.sweep.replace("--replicas 1,2", "--replicas 2")
    process = place.measure(*options)
    hosts.wait_for(lambda: len(place.ended()) == 1, "the first trial", 90)
    hosts.wait_for(lambda: hosts.processes("n1", "fake_worker"), "the second trial", 60)
    before = place.ended()
    lose(hosts, LOST[what])
    said, _ = process.communicate(timeout=240)
    recorded = place.ended()
    place.make_it_again()
    again = place.measure(*options)
    told, _ = again.communicate(timeout=240)
    after = place.ended()

    assert "Traceback" not in said + told
    assert before.items() <= recorded.items()
    assert before.items() <= after.items()
    assert not again.returncode, told
    assert [TrialStatus.OK] * NUM_TRIALS == [of.status for of in after.values()]
    place.run("n0", "python -m harness verify s")
    hosts.wait_until_free("fake_worker")
    for status in recorded.values():  # a failure says where
        assert status.status is TrialStatus.OK or status.failure.reason
