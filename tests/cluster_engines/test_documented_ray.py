"""The commands of Ray in ``docs/clusters.md``, as they stand there, on two real nodes.

The nodes are those of the Slurm of the tests, whose daemons have nothing to do here.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import known_digests
import pytest
import slurm_cluster

from harness.launch.contract import HOSTS_VARIABLE
from results.records.models import TrialStatus
from results.store.study_store import Store

if TYPE_CHECKING:
    from collections.abc import Iterator

    from slurm_cluster import SlurmCluster

pytestmark = [pytest.mark.processes, pytest.mark.full]

ROOT = Path(__file__).resolve().parents[2]
DRIVER = Path(__file__).with_name("driver.py")
# As documented, and short.
SHORT = (
    "--preset=smoke --mode=weak --repeats=1 --order=sequential --no-match"
    " --budget=none --timeout=90 --study=s"
)
TOKEN = ".ray/auth_token"


@pytest.fixture
def hosts() -> Iterator[SlurmCluster]:
    """Runs two nodes, each with a network, processes and a home of its own."""
    if reason := slurm_cluster.missing():
        pytest.skip(f"a cluster of two nodes {reason}")
    if importlib.util.find_spec("ray") is None:
        pytest.skip("needs Ray: pip install 'replicator-harness[distributed]'")
    folder = Path(tempfile.mkdtemp(prefix="ray-"))
    try:
        with slurm_cluster.running(folder) as cluster:
            yield cluster
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def test_the_documented_commands_measure_on_two_nodes(
    hosts: SlurmCluster, tmp_path: Path
) -> None:
    """A token is made and copied, both nodes join, trials run."""
    page = (ROOT / "docs" / "clusters.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^ {4}ray get.*\n(?: {4}.*\n)+", page, re.MULTILINE)
    lines = [line.partition(" #")[0].strip() for line in block.splitlines()]
    make_token, export, start, join, sweep = lines
    programs = tmp_path / "bin"
    programs.mkdir()
    python = f'#!/bin/sh\nshift 2\nexec {sys.executable} {DRIVER} "$@"\n'
    ray = f'#!/bin/sh\nexec {sys.executable} -m ray.scripts.scripts "$@"\n'
    for name, text in (("python", python), ("ray", ray)):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)

    def home(on: str) -> Path:
        return hosts.folder / f"home-{on}"

    def run(on: str, *commands: str) -> str:
        home(on).mkdir(exist_ok=True)
        done = hosts.run(
            "sh",
            "-ec",
            "\n".join(commands).replace("FIRST_HOST", "n0"),
            on=on,
            cwd=tmp_path,
            timeout_sec=240,
            env={
                **known_digests.variables(),
                "PATH": f"{programs}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
                "PYTHONPATH": str(ROOT),
                "HOME": str(home(on)),
                "RAY_TMPDIR": str(home(on)),
            },
        )
        assert not done.returncode, done.stdout + done.stderr
        return done.stdout

    run("n0", make_token, export, start)
    (home("n1") / TOKEN).parent.mkdir(parents=True)
    shutil.copy(home("n0") / TOKEN, home("n1") / TOKEN)
    run("n1", export, join)
    run("n0", export, f"{sweep} {SHORT}")
    trials = list(Store.open(tmp_path / "runs" / "s").trials())

    assert [1, 2] == sorted(of.spec.num_replicas for of in trials)
    assert {TrialStatus.OK} == {of.status and of.status.status for of in trials}
    joined = {of.spec.num_replicas: of.spec.variables[HOSTS_VARIABLE] for of in trials}
    assert {1: "2", 2: "2"} == joined
