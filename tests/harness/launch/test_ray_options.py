"""``sweep --launcher ray``: options without effect, and numbers that contradict."""

from __future__ import annotations

import pytest

from harness.cli import exit_codes, launching
from harness.errors import LaunchError
from harness.launch import ray_cluster
from harness.launch.local import LocalLauncher
from harness.launch.ray_cluster import RayHost

SMALL = ("--workload=resnet50", "--preset=smoke", "--replicas=1,2", "--mode=weak")


@pytest.fixture
def set_hosts(monkeypatch):
    """Returns a function that says how many hosts the Ray cluster has."""

    def install(count):
        found = tuple(
            RayHost(node_id=str(i), address=f"10.0.0.{i}", num_cores=2, num_gpus=0)
            for i in range(count)
        )
        monkeypatch.setattr(ray_cluster, "read_hosts", lambda: found)

    return install


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--partition=x"], "--partition x has no effect with --launcher ray; add"),
        (["--nodes=2"], "--nodes 2 has no effect with --launcher ray"),
        (["--array=2"], "--array 2 has no effect with --launcher ray"),
        (["--time-limit=9"], "--time-limit 9 has no effect with --launcher ray"),
        (
            ["--workers=3", "--gpus-per-worker=1"],
            "--workers 3 x --replicas-per-worker 1 makes 3 replicas, but the largest",
        ),
        (["--order=relay"], "--order relay on 2 hosts: turns are judged by the load"),
    ],
)
def test_bad_input_exits_with_2(harness, set_hosts, written, options, message):
    """One line that says what to do, and nothing is written."""
    set_hosts(2)
    code, out, err = harness("sweep", *SMALL, "--launcher=ray", *options)

    assert (exit_codes.USAGE, "") == (code, out)
    assert message in err
    assert 1 == len(err.splitlines())
    assert [] == written()


def test_without_a_cluster_the_message_says_what_to_start(
    harness, monkeypatch, written
):
    """Nothing is written."""

    def refuse():
        raise LaunchError("--launcher ray: no response; start one with 'ray start'")

    monkeypatch.setattr(ray_cluster, "read_hosts", refuse)
    code, out, err = harness("sweep", *SMALL, "--launcher=ray")

    assert (exit_codes.USAGE, "") == (code, out)
    assert "start one with 'ray start'" in err
    assert [] == written()


def test_one_host_is_as_any_machine(set_hosts):
    """A relay can run there; its trials are those of a sweep without Ray."""
    set_hosts(1)

    assert isinstance(launching.launcher_named("ray"), LocalLauncher)


def test_several_hosts_are_part_of_the_identity(harness, set_hosts):
    """Figures of one host and of two are never of the same case."""
    set_hosts(2)
    options = ("--backends=multi_worker", "--dry-run", "--json")
    _, here, _ = harness("sweep", *SMALL, "--order=sequential", *options)
    _, there, _ = harness("sweep", *SMALL, "--launcher=ray", *options)

    assert here
    assert there
    assert here != there
