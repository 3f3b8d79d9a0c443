"""LocalCluster: processes know who they are, can be killed, and never stay behind."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from damaging import until

import replicator
from replicator.cluster.local_cluster import LocalCluster

pytestmark = pytest.mark.processes

REPORT = """
import json, os, time
config = json.loads(os.environ["TF_CONFIG"])
print(json.dumps([config, sorted(os.sched_getaffinity(0)), os.environ.get("EXTRA")]))
if config["task"]["type"] == "ps":
    time.sleep(600)
"""
SLEEP = "import time; print('started', flush=True); time.sleep(600)"


def program(code):
    return [sys.executable, "-S", "-c", code]


def is_alive(pid):
    """Whether a process runs; one that nobody has waited for yet does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except FileNotFoundError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def test_every_process_knows_its_place(tmp_path):
    core = min(os.sched_getaffinity(0))
    with LocalCluster(
        program(REPORT),
        num_workers=2,
        num_ps=1,
        has_chief=True,
        env={"EXTRA": "yes"},
        cpusets=[{core}] * 4,
        log_dir=tmp_path,
    ) as cluster:
        codes = cluster.wait(timeout_sec=60)
        until(lambda: cluster.output("ps", 0))
        written = {m: json.loads(cluster.output(*m)) for m in cluster.members}

        assert cluster.is_running("ps", 0)
    assert {("chief", 0): 0, ("worker", 0): 0, ("worker", 1): 0} == codes
    for (kind, index), (config, cores, extra) in written.items():
        assert {"type": kind, "index": index} == config["task"]
        assert cluster.addresses == config["cluster"]
        assert ([core], "yes") == (cores, extra)
    everyone = [a for of_kind in cluster.addresses.values() for a in of_kind]
    assert 4 == len(set(everyone))
    assert not cluster.is_running("ps", 0)


def test_a_killed_process_can_be_started_again(tmp_path):
    with LocalCluster(program(SLEEP), num_workers=2, log_dir=tmp_path) as cluster:
        until(lambda: "started" in cluster.output("worker", 1))
        addresses = dict(cluster.addresses)
        cluster.kill("worker", 1)

        assert not cluster.is_running("worker", 1)
        assert cluster.is_running("worker", 0)
        cluster.restart("worker", 1)
        until(lambda: 2 == cluster.output("worker", 1).count("started"))
        assert addresses == cluster.addresses
        cluster.kill("worker", 0, signal.SIGTERM)
        cluster.kill("worker", 1)
        assert {
            ("worker", 0): -signal.SIGTERM,
            ("worker", 1): -signal.SIGKILL,
        } == cluster.wait(timeout_sec=60)


@pytest.mark.parametrize(
    ("code", "use", "message"),
    [
        (
            SLEEP,
            lambda cluster: cluster.wait(timeout_sec=0.2),
            r"(?s)worker 0 did not exit within 0.2 s.*-- worker 0:\nstarted",
        ),
        (
            "import sys; print('because'); sys.exit(3)",
            lambda cluster: cluster.check(timeout_sec=60),
            r"(?s)failed: worker 0 with 3.*because",
        ),
    ],
    ids=["too long", "failed"],
)
def test_a_failure_is_reported_with_its_output(tmp_path, code, use, message):
    with LocalCluster(program(code), num_workers=1, log_dir=tmp_path) as cluster:
        until(lambda: cluster.output("worker", 0))
        pid = cluster.pid("worker", 0)
        with pytest.raises(replicator.LocalClusterError, match=message):
            use(cluster)

        assert not is_alive(pid)


def test_processes_die_with_a_parent_that_was_killed(tmp_path):
    parent_code = (
        "import sys, time\n"
        "from replicator.cluster.local_cluster import LocalCluster\n"
        f"argv = [sys.executable, '-S', '-c', {SLEEP!r}]\n"
        f"with LocalCluster(argv, num_workers=2, log_dir={str(tmp_path)!r}) as c:\n"
        "    print(c.pid('worker', 0), c.pid('worker', 1), flush=True)\n"
        "    time.sleep(600)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", parent_code], stdout=subprocess.PIPE, text=True
    ) as parent:
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        until(lambda: all((tmp_path / f"worker_{i}.log").read_text() for i in range(2)))

        assert [True, True] == [is_alive(pid) for pid in pids]
        parent.kill()
    until(lambda: not any(map(is_alive, pids)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_workers": 0}, r"num_workers=0, num_ps=0, has_chief=False do not"),
        ({"num_workers": 1, "num_ps": -1}, r"has_chief=False do not .* no negative"),
        ({"num_workers": 2, "cpusets": [{0}]}, r"cpusets has 1 entries for 2"),
        ({"num_workers": 1}, r"'worker' 0 was started.*enter"),
    ],
)
def test_a_cluster_that_cannot_be_or_was_not_started_is_refused(
    tmp_path, options, message
):
    with pytest.raises((ValueError, replicator.LocalClusterError), match=message):
        LocalCluster(program(SLEEP), log_dir=tmp_path, **options).kill("worker", 0)
