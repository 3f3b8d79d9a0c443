"""Parameter servers where every process has one core, as in a container of CI."""

import os
import sys
from pathlib import Path

import pytest

from replicator.cluster.local_cluster import LocalCluster

pytestmark = pytest.mark.processes
MEMBER = Path(__file__).parent / "one_core_member.py"


@pytest.mark.parametrize(
    ("threads", "exit_code", "printed"),
    [
        ("of TensorFlow", 0, "count 4.0"),
        ("one thread", 0, "count 4.0"),
        (
            "no end",
            1,
            "progress in its first steps for 2 s; this process has 4 inter-op",
        ),
        ("too late", 1, "set_inter_op_parallelism_threads(4) at the start"),
    ],
)
def test_steps_end_on_one_core(tmp_path, threads, exit_code, printed):
    core = {min(os.sched_getaffinity(0))}
    argv = [sys.executable, str(MEMBER), threads]
    with LocalCluster(
        argv,
        num_workers=2,
        num_ps=1,
        has_chief=True,
        cpusets=[core] * 4,
        log_dir=tmp_path,
    ) as cluster:
        codes = cluster.wait(600, ["chief"])
        output = cluster.output("chief", 0)

    assert exit_code == codes["chief", 0], output
    assert printed in output
