"""Actors of a Ray cluster: the loop is the same, the records are sent."""

import importlib.util
import os
import pathlib
import time

import numpy as np
import psutil
import pytest

from workloads.d4pg.acting.base import ActorError
from workloads.d4pg.acting.policy import Policy, PolicySpec
from workloads.d4pg.acting.remote import Collector, RayActorPool
from workloads.d4pg.acting.settings import ActorSettings, check_ray
from workloads.d4pg.acting.weights import SharedWeights
from workloads.d4pg.config import make_config
from workloads.d4pg.replay.make import make_replay
from workloads.d4pg.replay.replay import ReplaySettings
from workloads.d4pg.replay.streams import StepStreams, StreamsSpec

ROOT = pathlib.Path(__file__).resolve().parents[4]
NAME = "cartpole:swingup"
PATIENCE_SEC = 180.0
POLICY = PolicySpec(
    observation_shape=(5,), action_size=1, hidden_sizes=(8,), kind="mlp"
)
INSTALLED = importlib.util.find_spec("ray")
needs_ray = pytest.mark.skipif(
    INSTALLED is None or INSTALLED.origin is None,
    reason="Ray is not installed: pip install 'replicator-harness[distributed]'",
)


def make_streams(settings):
    return StepStreams(
        StreamsSpec(
            num_streams=settings.num_streams,
            steps_per_stream=5000,
            observation_shape=(5,),
            observation_dtype="float32",
            action_size=1,
            num_actors=settings.num_actors,
        )
    )


def wait_until(holds, pool):
    end = time.monotonic() + PATIENCE_SEC
    while not holds():
        pool.check()
        assert time.monotonic() < end, pool.counters()
        time.sleep(0.02)


def collectors():
    return [
        process
        for process in psutil.process_iter(["cmdline"])
        if "ray::Collector" in " ".join(process.info["cmdline"] or ())
    ]


def test_without_ray_it_says_what_to_install(monkeypatch):
    """Before anything is started."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    settings = ActorSettings(name=NAME)
    message = r"^actors='ray' needs Ray, .*pip install 'replicator-harness\[distrib"
    with make_streams(settings) as streams, pytest.raises(ValueError, match=message):
        RayActorPool(settings, streams)
    with pytest.raises(ValueError, match=message):
        make_config("smoke", {"actors": "ray"})


def test_a_directory_named_ray_is_not_ray(tmp_path, monkeypatch):
    """Ray itself leaves one below /tmp."""
    if INSTALLED is not None and INSTALLED.origin:
        pytest.skip("Ray is installed, so the directory hides nothing")
    (tmp_path / "ray").mkdir()
    monkeypatch.syspath_prepend(tmp_path)

    assert importlib.util.find_spec("ray") is not None
    with pytest.raises(ValueError, match="not installed here"):
        check_ray()


def test_chunks_hold_what_was_written_since_the_last_one():
    """The remote side, without Ray: records continue where they ended."""
    settings = ActorSettings(
        name=NAME, environments_per_actor=2, num_actors=2, action_repeat=100
    )
    spec = make_streams(settings).spec
    collector = Collector(settings.to_json(), spec.to_json(), 0, 1, 0)
    chunks = [collector.collect(7, None, -1) for _ in range(6)]
    for place in range(2):
        is_last = np.concatenate([c.records[place]["is_last"] for c in chunks])
        is_first = np.concatenate([c.records[place]["is_first"] for c in chunks])

        # Ten environment steps and the final observation; the first round resets.
        assert [10, 21, 32, 43] == np.flatnonzero(is_last).tolist()
        assert [0, 11, 22, 33, 44] == np.flatnonzero(is_first).tolist()
        assert 41 + 4 == len(is_last)
        assert 4 == sum(chunk.num_episodes[place] for chunk in chunks)
    assert all(chunk.version == -1 for chunk in chunks)


@needs_ray
@pytest.mark.processes
def test_actors_of_a_cluster_fill_the_replay_and_are_replaced(monkeypatch):
    """Weights reach them, a killed one is replaced, and none is left at the end."""
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    )
    others = set(collectors())
    settings = ActorSettings(
        name=NAME,
        num_actors=2,
        action_repeat=10,
        policy=POLICY.to_json(),
        sigma_min=0.0,
        sigma_max=0.0,
        max_restarts=1,
    )
    weights = SharedWeights(POLICY.num_floats)
    flat = np.random.default_rng(0).normal(size=POLICY.num_floats).astype(np.float32)
    with (
        make_streams(settings) as streams,
        RayActorPool(settings, streams, weights) as pool,
    ):
        replay = make_replay(
            streams, ReplaySettings(min_size_to_sample=300), pool.check
        )
        assert (32, 5) == replay.sample(32)["observation"].shape
        weights.publish(flat, 5)
        wait_until(lambda: streams.version.min() == 5, pool)
        start = int(streams.num_written[0])
        wait_until(lambda: streams.num_written[0] > start + 60, pool)
        policy = Policy(POLICY)
        policy.load(flat)
        part = slice(start, start + 50)
        acted = ~streams.field("is_last")[part]
        np.testing.assert_allclose(
            np.clip(policy(streams.field("observation")[part]), -1, 1)[acted],
            streams.field("action")[part][acted],
            atol=1e-6,
        )
        own = set(collectors()) - others
        assert 2 == len(own)
        own.pop().kill()
        wait_until(lambda: pool.counters().num_restarts == 1, pool)
        at = streams.num_written.copy()
        wait_until(lambda: (streams.num_written - at).min() > 50, pool)
        replay.sample(32)
        (set(collectors()) - others).pop().kill()
        with pytest.raises(ActorError, match=r"^actor \d of the Ray cluster ended \("):
            wait_until(lambda: False, pool)
    end = time.monotonic() + PATIENCE_SEC
    while set(collectors()) - others and time.monotonic() < end:
        time.sleep(0.02)
    assert set() == set(collectors()) - others
