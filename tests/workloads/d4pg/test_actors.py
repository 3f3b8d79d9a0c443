"""Actors as real processes: what they write, what they read, how they fail and end."""

import contextlib
import importlib.util
import os
import signal
import textwrap
import time

import numpy as np
import psutil
import pytest
from small_programs import ROOT, child, make_streams, published

from workloads import WORKLOADS
from workloads.d4pg import (
    ActorError,
    ActorPool,
    ActorSettings,
    Policy,
    RayActorPool,
    SharedWeights,
    make_replay,
)

NAME = "cartpole:swingup"
# A bound of waiting, not a figure: importing dm_control takes a second on an idle core.
PATIENCE_SEC = 600.0  # A test beside other work took 179 s.
UNIFORM = published("d4pg", replay="uniform")
# Two actors that do what the policy says, in episodes of 100 steps.
EXACT = {
    "network": "mlp",
    "policy_sizes": "8",
    "noise_low": 1e-9,
    "noise_high": 1e-9,
    "num_actors": 2,
    "action_repeat": 10,
}
SHAPES = {
    "dense_0/kernel": (5, 8),
    "dense_0/bias": (8,),
    "action/kernel": (8, 1),
    "action/bias": (1,),
}
NORMAL = np.random.default_rng(0)
WEIGHTS = {
    name: NORMAL.normal(size=shape).astype(np.float32) for name, shape in SHAPES.items()
}


def make_settings(stuck_sec=30.0, max_restarts=10, **options):
    return ActorSettings(
        name=NAME,
        config=published("d4pg", **{"num_actors": 1, **options}),
        stuck_sec=stuck_sec,
        start_sec=3600.0,  # so that it is not the limit of an actor that has started
        max_restarts=max_restarts,
    )


def streams_of(settings, **changes):
    config = settings.config
    fields = {
        # More than actors write that nobody holds back; it is taken when it is used.
        "steps_per_stream": 1_000_000,
        "observation_shape": (5,),
        "num_actors": config.num_actors,
    }
    num_streams = config.num_actors * config.environments_per_actor
    return make_streams(num_streams, **{**fields, **changes})


@contextlib.contextmanager
def acting(settings, *weights, kind=ActorPool, **changes):
    """What actors write, and their pool."""
    with (
        streams_of(settings, **changes) as streams,
        kind(settings, streams, *weights) as pool,
    ):
        yield streams, pool


def check_episodes(settings, streams, stream, start, count):
    """Whole ones, and ``count`` records after ``start`` by the policy."""
    size = streams.share.steps_per_stream
    own = {
        name: streams.field(name)[stream * size : (stream + 1) * size]
        for name in ("observation", "action", "is_first", "is_last")
    }
    # 1000 control steps in hundred environment steps, and the final one.
    for name, place in (("is_first", 0), ("is_last", 100)):
        found = np.flatnonzero(own[name][:start])
        assert np.arange(place, start, 101).tolist() == found.tolist()
    part = slice(start + 10, start + 10 + count)
    policy = Policy(settings.config, WEIGHTS)
    expected = np.clip(policy(own["observation"][part]), -1, 1)
    acted = ~own["is_last"][part]
    np.testing.assert_allclose(expected[acted], own["action"][part][acted], atol=1e-6)
    return own


def wait_until(holds, pool=None):
    end = time.monotonic() + PATIENCE_SEC
    while not holds():
        if pool is not None:
            pool.check()
        assert time.monotonic() < end, pool and pool.counters()
        time.sleep(0.02)


def stop(pid, pool):
    os.kill(pid, signal.SIGSTOP)
    stopped = psutil.Process(pid)
    wait_until(lambda: stopped.status() == psutil.STATUS_STOPPED, pool)


def break_cartpole(folder, monkeypatch, code):
    (folder / "sitecustomize.py").write_text(
        "import os\n"
        "os.environ['MUJOCO_GL'] = 'disabled'\n"
        "from dm_control.suite import cartpole\n" + textwrap.dedent(code),
        encoding="utf-8",
    )
    monkeypatch.setenv("PYTHONPATH", str(folder))


@pytest.mark.processes
def test_actors_write_episodes_and_follow_the_policy():
    settings = make_settings(**EXACT, environments_per_actor=2, actor_niceness=3)
    weights = SharedWeights(SHAPES)
    with acting(settings, weights) as (streams, pool):
        wait_until(lambda: streams.num_written.min() > 50, pool)
        before = streams.version.tolist()
        niceness = {os.getpriority(os.PRIO_PROCESS, k) for k in pool.process_ids()}
        weights.publish(WEIGHTS, 12)
        wait_until(lambda: streams.version.min() == 12, pool)
        start = streams.num_written.copy()
        wait_until(lambda: (streams.num_written - (start + 220)).min() > 0, pool)
        after = pool.counters()

        assert {3 + os.getpriority(os.PRIO_PROCESS, 0)} == niceness
        assert {-1} == set(before)
        assert after["num_episodes"] >= 4
        assert (0, 0) == (after["num_refused"], after["num_restarts"])
        first = set()
        for stream in range(4):
            own = check_episodes(settings, streams, stream, int(start[stream]), 190)
            at_random = own["action"][:50]
            assert -1 <= at_random.min() < -0.5 < 0.5 < at_random.max() <= 1
            first.add(own["observation"][0].tobytes())
        assert 4 == len(first)  # no two environments begin alike


@pytest.mark.processes
def test_a_dead_actor_is_replaced_and_a_stopped_one_killed():
    settings = make_settings(num_actors=2, action_repeat=4)
    # Noise is spread evenly in the logarithm.
    assert [1 / 32, 1.0] == pytest.approx(
        [settings.config.noise_deviation(k, 2) for k in (0, 1)]
    )
    with acting(settings) as (streams, pool):
        replay = make_replay(streams, UNIFORM, min_size=200, on_wait=pool.check)
        replay.sample(16, timeout_sec=PATIENCE_SEC)
        wait_until(lambda: streams.num_written.min() > 100, pool)
        first = pool.process_ids()
        stop(first[0], pool)
        broken_off = int(streams.num_written[0])
        os.kill(first[0], signal.SIGKILL)
        wait_until(lambda: streams.num_written[0] > broken_off + 50, pool)
        assert 1 == pool.counters()["num_restarts"]
        stop(first[1], pool)
        # As if it had been stopped for twice as long as is allowed.
        long_ago = time.monotonic() - 2 * settings.stuck_sec
        streams.heartbeat[1] = long_ago
        wait_until(lambda: not psutil.pid_exists(first[1]), pool)
        replay.sample(16)
        wait_until(lambda: pool.counters()["num_restarts"] >= 2, pool)
        at = streams.num_written.copy()
        wait_until(lambda: (streams.num_written - (at + 50)).min() > 0, pool)
        replay.sample(16)
        pool.check()
        is_first = streams.field("is_first").reshape(2, -1)[0]
        is_last = streams.field("is_last").reshape(2, -1)[0]
        starts = np.flatnonzero(is_first)[1:]

        assert 2 == pool.counters()["num_restarts"]
        # The replacement began an episode where the other one broke off.
        assert broken_off in starts
        assert {broken_off} >= set(starts[~is_last[starts - 1]])
        last = pool.process_ids()
    assert set(first).isdisjoint(last)
    assert not any(psutil.pid_exists(pid) for pid in (*first, *last))


@pytest.mark.processes
def test_what_is_not_finite_is_refused_and_counted(tmp_path, monkeypatch):
    break_cartpole(
        tmp_path,
        monkeypatch,
        """
        calls, reward = [0], cartpole.Balance.get_reward
        def get_reward(self, physics):
            calls[0] += 1
            if calls[0] % 50 == 0:
                return float("nan")
            if calls[0] % 77 == 0:
                physics.data.qvel[:] = float("nan")
            return reward(self, physics)
        cartpole.Balance.get_reward = get_reward
        """,
    )
    settings = make_settings()
    with acting(settings) as (streams, pool):
        wait_until(lambda: streams.num_written[0] > 2000, pool)
        refused = pool.counters()["num_refused"] / streams.num_written[0]
        replay = make_replay(streams, UNIFORM, min_size=1000)
        batch = replay.sample(2000)

        # 1/50 + 1/77
        assert 0.02 < refused < 0.1
        assert 0 == pool.counters()["num_restarts"]
        for name in ("observation", "next_observation", "reward", "action"):
            assert np.isfinite(batch[name]).all()


@pytest.mark.processes
def test_actors_that_always_die_end_the_run_with_their_log(tmp_path, monkeypatch):
    break_cartpole(
        tmp_path,
        monkeypatch,
        """
        def get_reward(self, physics):
            raise RuntimeError("no reward today")
        cartpole.Balance.get_reward = get_reward
        """,
    )
    settings = make_settings(max_restarts=1)
    message = (
        r"^actor 0 ended \(exit code 1\) after 1 replacements of actors, the most "
        r"allowed: fix what its last message says: RuntimeError: no reward today$"
    )
    with acting(settings) as (_, pool):
        with pytest.raises(ActorError, match=message):
            wait_until(lambda: False, pool)

        assert 1 == pool.counters()["num_restarts"]
        assert [] == [p for p in pool.process_ids() if psutil.pid_exists(p)]


@pytest.mark.processes
def test_an_actor_that_cannot_render_is_not_tried_again(monkeypatch):
    monkeypatch.setenv("__EGL_VENDOR_LIBRARY_FILENAMES", "/nonexistent")
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    settings = make_settings(observations="pixels")
    frames = {"observation_shape": (84, 84, 3), "observation_dtype": "uint8"}
    with acting(settings, **frames) as (_, pool):
        with pytest.raises(ValueError, match=r"^option observations='pixels' needs Op"):
            wait_until(lambda: False, pool)

        assert 0 == pool.counters()["num_restarts"]


@pytest.mark.processes
def test_paused_actors_stand_still_and_their_pause_is_not_counted():
    settings = make_settings(num_actors=2, stuck_sec=1.0)
    with acting(settings) as (streams, pool):
        wait_until(lambda: streams.num_written.min() > 50, pool)
        pool.pause()
        processes = [psutil.Process(pid) for pid in pool.process_ids()]
        wait_until(
            lambda: {psutil.STATUS_STOPPED} == {p.status() for p in processes}, pool
        )
        written, before = streams.num_written.copy(), pool.counters()
        busy = [sum(process.cpu_times()[:2]) for process in processes]
        paused = time.monotonic()
        time.sleep(1.5 * settings.stuck_sec)
        stood_still = (written == streams.num_written).all()
        busy_after = [sum(process.cpu_times()[:2]) for process in processes]
        resumed = time.monotonic()
        pool.resume()
        wait_until(lambda: (streams.num_written - written).min() > 50, pool)
        after, waited_sec = pool.counters(), time.monotonic() - resumed
        pool.pause()
        pids = pool.process_ids()

    assert not any(map(psutil.pid_exists, pids))
    assert stood_still
    assert busy == busy_after
    assert 0 == after["num_restarts"]
    # An actor may have stopped a little before, or noted its time a little later.
    acted_sec = after["elapsed_sec"] - before["elapsed_sec"]
    assert 0 <= acted_sec < 2 * waited_sec + (resumed - paused) / 2


def has_ended(process):
    """Whether a process runs no more; it may wait for somebody to take note."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.mark.processes
def test_no_actor_outlives_its_parent():
    code = (
        "import time\n"
        "from workloads.d4pg import ActorPool, ActorSettings, D4PGConfig\n"
        "from workloads.d4pg import EnvironmentSpec, Share, StepStreams\n"
        f"settings = ActorSettings(name={NAME!r}, config=D4PGConfig())\n"
        "share = Share(num_streams=2, steps_per_stream=1000, num_actors=2,\n"
        "    min_size=1)\n"
        "streams = StepStreams(share, EnvironmentSpec(\n"
        "    observation_shape=(5,), observation_dtype='float32', action_size=1))\n"
        "pool = ActorPool(settings, streams)\n"
        "while streams.num_written.min() < 10: pool.check(); time.sleep(0.02)\n"
        "print(*pool.process_ids(), flush=True)\n"
        "time.sleep(600)\n"
    )
    with child(code) as parent:
        pids = map(int, parent.stdout.readline().split())
        actors = [psutil.Process(pid) for pid in pids]
        actors[1].suspend()

    assert 2 == len(actors)
    wait_until(lambda: all(map(has_ended, actors)))


@pytest.mark.processes
def test_no_reader_sees_a_mixture_of_weights():
    shapes = {"kernel": (400, 250), "bias": (100_000,)}

    def ones():
        return {name: np.ones(shape, np.float32) for name, shape in shapes.items()}

    weights = SharedWeights(shapes)
    with pytest.raises(ValueError, match=r"shapes {'bias': \(3,\)} cannot be publi"):
        weights.publish({"bias": np.ones(3, np.float32)}, 8)
    assert weights.read() is None
    code = (
        "import sys, time, numpy as np\n"
        "from workloads.d4pg import SharedWeights\n"
        f"shapes = {shapes}\n"
        "weights = SharedWeights(shapes, int(sys.argv[1]))\n"
        "for version in range(10**9):\n"
        "    value = np.float32(version % 1000)\n"
        "    values = {name: np.full(shapes[name], value) for name in shapes}\n"
        "    weights.publish(values, version)\n"
        "    if version % 3 == 0: time.sleep(0.0003)\n"
    )
    with child(code, descriptor=weights.descriptor):
        last, num_read, end = -1, 0, time.monotonic() + PATIENCE_SEC
        while num_read < 100 and time.monotonic() < end:
            found = weights.read(newer_than=last)
            if found is not None:
                values, last = found
                num_read += 1

                assert set(shapes) == set(values)
                assert all((v == last % 1000).all() for v in values.values())

    assert 100 == num_read
    # The writer's end may have left it odd.
    weights._sequence[0] += weights._sequence[0] % 2
    weights.publish(ones(), last + 10**6)
    assert last + 10**6 == weights.read(newer_than=last)[1]
    assert weights.read(newer_than=last + 10**6) is None


RAY = importlib.util.find_spec("ray")
needs_ray = pytest.mark.skipif(
    RAY is None or RAY.origin is None,
    reason="Ray is not installed: pip install 'replicator-harness[distributed]'",
)


def collectors():
    return [
        process
        for process in psutil.process_iter(["cmdline"])
        if "ray::Collector" in " ".join(process.info["cmdline"] or ())
    ]


def test_without_ray_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    message = r"^actors='ray' needs Ray, .*pip install 'replicator-harness\[distrib"
    with pytest.raises(ValueError, match=message):
        WORKLOADS["d4pg"].make_config("smoke", {"actors": "ray"})


@needs_ray
@pytest.mark.processes
def test_actors_of_a_cluster_fill_the_replay_and_are_replaced(monkeypatch):
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    )
    others = set(collectors())
    settings = make_settings(**EXACT, max_restarts=1)
    weights = SharedWeights(SHAPES)
    of_ray = {"kind": RayActorPool, "steps_per_stream": 5000}
    with acting(settings, weights, **of_ray) as (streams, pool):
        replay = make_replay(streams, UNIFORM, min_size=300, on_wait=pool.check)
        sampled = replay.sample(32, timeout_sec=PATIENCE_SEC)
        assert (32, 5) == sampled["observation"].shape
        weights.publish(WEIGHTS, 5)
        wait_until(lambda: streams.version.min() == 5, pool)
        start = int(streams.num_written[0])
        wait_until(lambda: streams.num_written[0] > start + 60, pool)
        # Chunks continue where they ended.
        check_episodes(settings, streams, 0, start, 50)
        own = set(collectors()) - others
        assert 2 == len(own)
        own.pop().kill()
        wait_until(lambda: pool.counters()["num_restarts"] == 1, pool)
        at = streams.num_written.copy()
        wait_until(lambda: (streams.num_written - at).min() > 50, pool)
        replay.sample(32)
        (set(collectors()) - others).pop().kill()
        with pytest.raises(ActorError, match=r"^actor \d of the Ray cluster ended \("):
            wait_until(lambda: False, pool)
    wait_until(lambda: set() == set(collectors()) - others)
