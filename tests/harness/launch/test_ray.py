"""What a gang needs of a Ray cluster, and gangs on a real one of two nodes here."""

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from command_lines import smoke_sweep
from damaging import until
from fake_machine import install_ray
from study_files import processes_of

from harness import ExitCode
from harness.client import scaling_client
from results import Store

SWEEP = smoke_sweep(
    "--backends=multi_worker --replicas=2 --mode=weak --repeats=1 --no-match "
    "--launcher=ray --study=s"
)
RAY = (sys.executable, "-m", "harness.launch.ray")
GANG = {"members": [["worker", 0], ["worker", 1]], "members_per_host": 1}
ADDRESS = {"REPLICATOR_HARNESS_GANG": "localhost:1"}


def test_without_ray_the_message_says_what_to_install(
    refuse, tmp_path_factory, monkeypatch
):
    folder, text = tmp_path_factory.mktemp("ray"), "raise ImportError('none here')"
    install_ray(folder, monkeypatch, text=text)

    assert re.search(
        r"Ray cannot be imported .*pip install 'replicator-harness\[", refuse(*SWEEP)
    )


@pytest.mark.parametrize(
    ("hosts", "bundle"),
    [
        (((8, 0), (8, 0)), {"CPU": 8}),
        (((2, 0), (8, 4), (16, 8)), {"CPU": 8, "GPU": 4}),
        # Only living hosts count.
        (((2, 1), (8, 4, "dead"), (3, 1)), {"CPU": 2, "GPU": 1}),
    ],
)
def test_a_bundle_is_a_whole_host(tmp_path, monkeypatch, hosts, bundle):
    install_ray(tmp_path, monkeypatch, *hosts)
    done = subprocess.run(
        [*RAY, "gang"],
        input=json.dumps({**GANG, "trial_dir": "t", "variables": {}}) + "\n",
        capture_output=True,
        text=True,
        check=False,
    )

    assert f"a host of the gang was lost: {[bundle] * 2}\n" == done.stderr


needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None,
    reason="needs Ray: pip install 'replicator-harness[distributed]'",
)
MEMBER = Path(__file__).with_name("gang_member.py")
PROBING = (sys.executable, str(MEMBER), "probe")
LONGEST_SEC = 120.0
TOKEN = "0123456789abcdef" * 4


@pytest.fixture(scope="module")
def cluster():
    """Two nodes of one logical core each; their address is in ``RAY_ADDRESS``."""
    from ray._private.authentication_test_utils import reset_auth_token_state
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_TOKEN", TOKEN)  # also where this user has another
        patch.setenv("RAY_AUTH_MODE", "token")
        reset_auth_token_state()  # Ray has read the variables when it was imported
        made = Cluster(
            initialize_head=True,
            head_node_args={"num_cpus": 1, "include_dashboard": False},
        )
        patch.setenv("RAY_ADDRESS", made.address)
        made.add_node(num_cpus=1, include_dashboard=False)
        try:
            yield made
        finally:
            made.shutdown()


@needs_ray
@pytest.mark.processes
@pytest.mark.usefixtures("cluster")
def test_two_nodes_come_up():
    done = subprocess.run([*RAY, "2"], capture_output=True, text=True, check=True)
    hosts = json.loads(done.stdout.splitlines()[-1])["hosts"]

    assert [(1, 0), (1, 0)] == [(host["num_cores"], host["num_gpus"]) for host in hosts]
    assert 2 == len({host["node_id"] for host in hosts})


@needs_ray
@pytest.mark.processes
@pytest.mark.usefixtures("cluster")
def test_who_has_not_the_token_of_a_cluster_is_told_so(tmp_path):
    environ = {
        "HOME": str(tmp_path),
        "RAY_AUTH_TOKEN": TOKEN[::-1],
        "RAY_AUTH_MODE": "token",
        "RAY_gcs_server_port_wait_time_s": "1",  # tries once
    }
    done = subprocess.run(
        RAY,
        env={**os.environ, **environ},
        cwd=MEMBER.parents[3],
        capture_output=True,
        text=True,
        timeout=LONGEST_SEC,
        check=False,
    )

    assert "not authorized by the Ray cluster at" in done.stdout, done.stderr[-2000:]
    assert "its token is another one" in done.stdout


@needs_ray
@pytest.mark.processes
@pytest.mark.usefixtures("cluster")
def test_gangs_are_spread_over_the_nodes_one_after_the_other(tmp_path):
    """Two gangs never share a node, and none is refused."""
    running, gangs = [], []
    for name in "ab":
        folder = tmp_path / name
        folder.mkdir()
        marked = {scaling_client.TRIAL_VARIABLE: str(folder), **ADDRESS, **os.environ}
        gang = {**GANG, "trial_dir": str(folder), "variables": marked}
        gang["command"] = [*PROBING, str(folder)]
        running.append(subprocess.Popen([*RAY, "gang"], stdin=subprocess.PIPE))
        running[-1].stdin.write(json.dumps(gang).encode() + b"\n")
        running[-1].stdin.flush()
    for name, process in zip("ab", running, strict=True):
        assert 0 == process.wait(LONGEST_SEC)
        found = [json.loads(p.read_text()) for p in sorted(tmp_path.glob(f"{name}/*"))]
        gangs.append(found)

        assert [0, 1] == [one["index"] for one in found]
        assert [3.0] * 2 == [one["sum"] for one in found]
        assert found[0]["workers"] == found[1]["workers"]
        assert 2 == len(set(found[0]["workers"]))
        ports = [int(worker.rpartition(":")[2]) for worker in found[0]["workers"]]
        assert max(ports) < 32_000, "outgoing connections get those above"
        assert 2 == len({one["node_id"] for one in found})
        assert [] == processes_of(tmp_path / name)
    first, second = sorted(gangs, key=lambda found: found[0]["start_sec"])
    last = max(one["end_sec"] for one in first)

    assert last < min(one["start_sec"] for one in second)


@needs_ray
@pytest.mark.processes
@pytest.mark.usefixtures("cluster")
def test_a_sweep_that_is_killed_continues(
    start_harness, harness, overrides, tmp_path, monkeypatch
):
    trials, temporary = tmp_path / "runs" / "s" / "trials", tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    ended = start_harness(*SWEEP, FAKE_BEHAVIOR="multi_worker:2:hang")
    until(lambda: list(trials.glob("*/rank_1.jsonl")), "both ranks run")
    (trial_dir,) = trials.iterdir()
    ended.send_signal(signal.SIGKILL)
    ended.communicate(timeout=LONGEST_SEC)

    until(lambda: not processes_of(trial_dir), "all processes of the trial end")
    # It gets both nodes, so they were given back.
    code, _, err = harness(*SWEEP, overrides=overrides)
    assert ExitCode.OK == code, err
    (trial,) = Store.open(tmp_path / "runs" / "s").trials()
    assert [0, 1] == [rank.rank for rank in trial.result.ranks]
    assert "2" == trial.spec.variables["REPLICATOR_HARNESS_HOSTS"]
    # But for the folder of the trial that was killed.
    assert 1 >= len([*temporary.iterdir(), *tmp_path.rglob(".tmp-seen-*")])


@needs_ray
@pytest.mark.usefixtures("cluster")
def test_a_cluster_that_does_not_respond_is_named(refuse, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    run = subprocess.run

    def run_shortly(*words, timeout=None, **options):  # longer than the import of Ray
        return run(*words, timeout=timeout and min(timeout, 3.0), **options)

    monkeypatch.setattr(subprocess, "run", run_shortly)

    assert re.search(
        r"--launcher ray: no response from the Ray cluster at '127\.0\.0\.1:1' within"
        r" 60 s; start one with 'ray start --head'",
        refuse(*SWEEP),
    )
