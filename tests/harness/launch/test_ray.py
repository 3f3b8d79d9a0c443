"""What a gang needs of a Ray cluster, and gangs on a real one of two nodes here."""

import concurrent.futures
import dataclasses
import importlib.util
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import synthetic_trial
from command_lines import smoke_sweep
from damaging import until
from study_files import processes_of

from harness import ExitCode, LaunchError
from harness.launch import launchers
from harness.launch import ray as ray_launcher
from harness.launch.launchers import HOSTS_VARIABLE
from harness.launch.ray import RayHost, bundle_of
from harness.run import aggregate
from harness.run.trial_runner import run_trial
from results import Store


def test_without_ray_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)

    with pytest.raises(
        LaunchError, match=r"Ray cannot be imported .*pip install 'replicator-harness\["
    ):
        ray_launcher.connect()


def test_a_bundle_is_a_whole_host():
    small, wide, large, plain = (
        RayHost(node_id=f"{cores}", address="a", num_cores=cores, num_gpus=gpus)
        for cores, gpus in ((2, 0), (8, 4), (16, 8), (8, 0))
    )
    assert {"CPU": 8} == bundle_of([plain, plain], 2)
    assert {"CPU": 8, "GPU": 4} == bundle_of([small, wide, large], 2)


def test_only_living_nodes_count():
    resources = {"Resources": {"CPU": 2.0, "GPU": 1.0}}
    nodes = [
        {"NodeID": name, "NodeManagerAddress": f"10.0.0.{name}", "Alive": name != "c"}
        for name in "bca"
    ]
    found = ray_launcher.hosts_of([node | resources for node in nodes])

    assert ["a", "b"] == [host.node_id for host in found]
    assert {(2, 1)} == {(host.num_cores, host.num_gpus) for host in found}


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
        patch.setenv(ray_launcher.ADDRESS_VARIABLE, made.address)
        made.add_node(num_cpus=1, include_dashboard=False)
        try:
            yield made
        finally:
            made.shutdown()


@needs_ray
@pytest.mark.processes
@pytest.mark.usefixtures("cluster")
def test_two_nodes_come_up_and_see_the_folder_of_studies(tmp_path, monkeypatch):
    hosts = launchers.start("ray").hosts

    assert [(1, 0), (1, 0)] == [(host.num_cores, host.num_gpus) for host in hosts]
    assert 2 == len({host.node_id for host in hosts})
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    launchers.start("ray").check_folder(tmp_path / "runs" / "study")
    assert [temporary] == list(tmp_path.rglob("*"))


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
        [sys.executable, "-m", "harness.launch.ray"],
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
def test_gangs_are_spread_over_the_nodes_one_after_the_other(
    store, make_spec, settings, monkeypatch
):
    """Two gangs never share a node, and none is refused."""
    # The probe measures nothing, so no file of a rank is late.
    monkeypatch.setattr(aggregate, "LATE_SEC", 0.0)
    fields = {"backend": "multi_worker", "variables": {HOSTS_VARIABLE: "2"}}
    trials = [synthetic_trial.planned(make_spec(seed=k, **fields)) for k in (1, 2)]
    probing = dataclasses.replace(
        settings,
        launcher=launchers.start("ray"),
        timeout_sec=90.0,
        worker_command=PROBING,
    )
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        [*_] = pool.map(lambda trial: run_trial(store, trial, probing), trials)
    gangs = []
    for trial in trials:
        trial_dir = store.trial_dir(trial.trial_id)
        found = [json.loads(p.read_text()) for p in sorted(trial_dir.glob("probe_*"))]
        gangs.append(found)

        assert [0, 1] == [one["index"] for one in found]
        assert [3.0] * 2 == [one["sum"] for one in found]
        assert found[0]["workers"] == found[1]["workers"]
        assert 2 == len(set(found[0]["workers"]))
        assert 2 == len({one["node_id"] for one in found})
        assert [] == processes_of(trial_dir)
    first, second = sorted(gangs, key=lambda found: found[0]["start_sec"])
    last = max(one["end_sec"] for one in first)

    assert last < min(one["start_sec"] for one in second)


@needs_ray
@pytest.mark.processes
@pytest.mark.usefixtures("cluster")
def test_a_sweep_that_is_killed_continues(start_harness, harness, overrides, tmp_path):
    sweep = smoke_sweep(
        "--backends=multi_worker --replicas=2 --mode=weak --repeats=1 --no-match "
        "--launcher=ray --study=s"
    )
    trials = tmp_path / "runs" / "s" / "trials"
    ended = start_harness(*sweep, FAKE_BEHAVIOR="multi_worker:2:hang")
    until(lambda: list(trials.glob("*/rank_1.jsonl")), "both ranks run")
    (trial_dir,) = trials.iterdir()
    ended.send_signal(signal.SIGKILL)
    ended.communicate(timeout=LONGEST_SEC)

    until(lambda: not processes_of(trial_dir), "all processes of the trial end")
    # It gets both nodes, so they were given back.
    code, _, err = harness(*sweep, overrides=overrides)
    assert ExitCode.OK == code, err
    (trial,) = Store.open(tmp_path / "runs" / "s").trials()
    assert [0, 1] == [rank.rank for rank in trial.result.ranks]
    assert {HOSTS_VARIABLE: "2"}.items() <= trial.spec.variables.items()


@needs_ray
@pytest.mark.usefixtures("cluster")
def test_a_cluster_that_does_not_respond_is_named(monkeypatch):
    monkeypatch.setenv(ray_launcher.ADDRESS_VARIABLE, "127.0.0.1:1")
    # Longer than the import of Ray.
    monkeypatch.setattr(ray_launcher, "_TIMEOUT_SEC", 3.0)

    with pytest.raises(
        LaunchError,
        match=r"--launcher ray: .*Ray cluster at '127\.0\.0\.1:1'.*; start one with "
        r"'ray start --head'",
    ):
        _ = launchers.start("ray").num_hosts
