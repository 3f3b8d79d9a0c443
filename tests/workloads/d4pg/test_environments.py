"""Environments of the control suite: as actors see them, and as they are evaluated."""

import io
import itertools
import os
import pathlib
import re
import signal
import subprocess
import sys

import numpy as np
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image  # comes with matplotlib
from small_programs import published

from workloads import WORKLOADS
from workloads.d4pg import (
    BrokenEpisodeError,
    Environment,
    Evaluator,
    EvaluatorClient,
    FrameStack,
    Policy,
)

LEARNED = WORKLOADS["d4pg"].metrics[:1]
ROOT = pathlib.Path(__file__).resolve().parents[3]


@pytest.fixture(autouse=True)
def without_opengl(monkeypatch, request):
    """This process has TensorFlow, which does not bear OpenGL's compiler beside it."""
    if "processes" not in request.keywords:
        monkeypatch.setenv("MUJOCO_GL", "disable")


def test_every_task_of_the_suite_is_known_and_no_other():
    """A list stands in for dm_control, which takes seconds to import."""
    from dm_control import suite

    def named(data, after):
        with pytest.raises(ValueError, match=after) as raised:
            WORKLOADS["d4pg"].check_data(data)
        listed = str(raised.value).partition(after)[2].partition(";")[0]
        return re.findall(r"'(.+?)'", listed)

    found = []
    for domain in named("x:y", "the domains of the control suite are"):
        found += named(f"{domain}:x", "has the tasks")
    for name in found:
        WORKLOADS["d4pg"].check_data(name)

    assert [f"{domain}:{name}" for domain, name in suite.ALL_TASKS] == found


def test_a_state_is_what_dm_control_observes():
    from dm_control import suite

    reference = suite.load("reacher", "hard", task_kwargs={"random": 3})
    environment = Environment("reacher:hard", published("d4pg"), seed=3)
    expected, observation = reference.reset(), environment.reset()
    for action in np.random.default_rng(0).uniform(-1, 1, (5, 2)):
        np.testing.assert_array_equal(
            np.concatenate(list(expected.observation.values())).astype(np.float32),
            observation,
        )
        expected = reference.step(action)
        step = environment.step(action)
        observation = step.observation

        assert (expected.reward, 1.0, False) == step[1:]
    assert ((6,), 2) == (
        environment.spec.observation_shape,
        environment.spec.action_size,
    )


def test_an_episode_has_a_thousand_control_steps():
    """At its end only time has run out, so the discount stays 1."""
    environment = Environment("cartpole:balance", published("d4pg", action_repeat=3))
    environment.reset()
    steps = [environment.step(np.zeros(1))]
    while not steps[-1].is_last:
        steps.append(environment.step(np.zeros(1)))

    # 333 times three control steps, and the last one.
    assert 334 == len(steps)
    assert 1.0 == steps[-1].discount
    assert steps[-1].reward <= 1 < steps[0].reward <= 3
    with pytest.raises(RuntimeError, match=r"no episode is running: call reset\(\)"):
        environment.step(np.zeros(1))
    # The suite gives lqr no time limit, and its actions no bounds.
    endless = Environment("lqr:lqr_2_1", published("d4pg", action_repeat=250))
    endless.reset()
    ends = [endless.step(np.full(1, 0.5)).is_last for _ in range(4)]
    assert [False, False, False, True] == ends


@pytest.mark.parametrize("broken", ["reward", "state", "physics"])
def test_what_is_not_finite_breaks_the_episode(broken, monkeypatch):
    environment = Environment("cartpole:swingup", published("d4pg"))
    environment.reset()
    with monkeypatch.context() as patch:
        control = environment._env
        if broken == "reward":
            patch.setattr(control.task, "get_reward", lambda _: float("nan"))
        elif broken == "state":
            patch.setattr(
                control.task, "get_observation", lambda _: {"a": np.array([np.inf])}
            )
        else:
            control.physics.data.qvel[:] = 1e30
        with pytest.raises(BrokenEpisodeError):
            environment.step(np.zeros(1))

    assert np.isfinite(environment.reset()).all()
    assert not environment.step(np.zeros(1)).is_last


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 255)), max_size=12))
def test_a_stack_holds_the_last_frames(frames):
    stack, last = FrameStack(3), []
    for is_first, value in [(True, 7), *frames]:
        frame = np.full((84, 84, 3), value, np.uint8)
        last = [value] * 3 if is_first else [*last[1:], value]
        seen = stack.add(frame, is_first=is_first)

        assert [v for v in last for _ in range(3)] == seen[40, 40].tolist()
    assert (84, 84, 9) == seen.shape


# Programs of processes of their own: what renders is decided once in a process.
FILM = """
from workloads.d4pg import D4PGConfig, Environment
import numpy as np
e = Environment('cartpole:swingup', D4PGConfig(observations='pixels'), seed=1)
first = e.reset().copy()
for _ in range(20): step = e.step(np.ones(1))
assert first.shape == e.spec.observation_shape == (84, 84, 3)
assert str(first.dtype) == e.spec.observation_dtype == 'uint8'
assert first.std() > 5
assert np.abs(step.observation.astype(int) - first).max() > 50
e.close()
assert e.seen.shape == (84, 84, 9)
e = Environment('walker:walk', D4PGConfig(), can_render=True)
assert e.reset().shape == (24,)
film = e.render(60, 80)
assert film.shape == (60, 80, 3) and film.std() > 5
"""
# An actor imports no TensorFlow: it would cost seconds and hundreds of megabytes.
PIXELS = """
import sys
from workloads.d4pg import Actor, ActorPool, D4PGConfig, Environment, make_replay
assert not {'tensorflow', 'dm_control', 'jax'} & set(sys.modules)
try: Environment('walker:walk', D4PGConfig(observations='pixels'))
except ValueError as error: print(error)
state = Environment('cartpole:swingup', D4PGConfig(), can_render=True)
state.reset(); state.step(np.zeros(1))
try: state.render()
except ValueError as error: print(error)
assert 'tensorflow' not in sys.modules
"""
NEEDS = "option observations='pixels' needs OpenGL, which does not work here ({}"


@pytest.mark.processes
@pytest.mark.parametrize(
    ("code", "variables", "reason"),
    [
        (FILM, {}, ""),
        # EGL finds no driver: states work.
        (
            PIXELS,
            {"__EGL_VENDOR_LIBRARY_FILENAMES": "/nonexistent", "MUJOCO_GL": ""},
            "MUJOCO_GL=egl: ImportError: Cannot initialize a headless EGL display.",
        ),
        (PIXELS, {"MUJOCO_GL": "off"}, "MUJOCO_GL turns it off"),
    ],
    ids=["frames", "no driver", "off"],
)
def test_frames_show_the_episode_or_one_line_says_what_to_install(
    code, variables, reason
):
    done = subprocess.run(
        [sys.executable, "-c", f"import numpy as np{code}"],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), **variables},
    )

    assert 0 == done.returncode, done.stderr
    printed = done.stdout.splitlines()
    assert (2 if reason else 0) == len(printed)
    for line in printed:
        assert NEEDS.format(reason) in line


NAME = "cartpole:balance"


def make_config(**options):
    options = {"network": "mlp", "policy_sizes": "16,8", **options}
    return WORKLOADS["d4pg"].make_config("smoke", options)


def make_policy():
    rng = np.random.default_rng(0)
    sizes = {"dense_0": (5, 16), "dense_1": (16, 8), "action": (8, 1)}
    weights = {
        f"{layer}/{name}": rng.normal(scale=0.2, size=shape).astype(np.float32)
        for layer, size in sizes.items()
        for name, shape in (("kernel", size), ("bias", size[1:]))
    }
    return Policy(make_config(), weights), weights


def test_returns_are_those_of_episodes_played_one_by_one():
    player = Evaluator(NAME, make_config(action_repeat=20), seed=5)
    actor, _ = make_policy()
    found = player.play(actor, 3)
    expected = []
    for index in range(3):
        player = Environment(
            NAME, make_config(action_repeat=20), seed=5 + 10_000_019 + index
        )
        player.reset()  # an evaluator's environments begin with an episode
        observation, total, is_last = player.reset(), 0.0, False
        while not is_last:
            step = player.step(actor(observation[None])[0])
            observation, is_last = step.observation, step.is_last
            total += step.reward
        expected.append(total)

    np.testing.assert_allclose(expected, found, rtol=1e-4)
    assert len(set(found)) == 3


def test_an_episode_that_breaks_begins_again(monkeypatch):
    real_step, count, broken = Environment.step, itertools.count(), [3, 5]

    def step(self, action):
        if not broken or next(count) in broken:
            raise BrokenEpisodeError("the state is not finite")
        return real_step(self, action)

    player = Evaluator(NAME, make_config(action_repeat=50), seed=0)
    monkeypatch.setattr(Environment, "step", step)
    policy, _ = make_policy()
    assert 2 == len(player.play(policy, 2))
    broken.clear()
    with pytest.raises(RuntimeError, match=r"11 episodes .* the state is not finite"):
        player.play(policy, 2)


def make_client(**options):
    options = {"action_repeat": 50, "num_evaluation_episodes": 4, **options}
    client = EvaluatorClient(NAME, make_config(**options), seed=5)
    return client, make_policy()[1]


@pytest.mark.processes
def test_the_score_is_the_mean_return_with_its_interval(monkeypatch):
    client, weights = make_client()
    (first,), (second,) = (client.score(LEARNED, weights) for _ in range(2))
    with monkeypatch.context() as context:
        context.setenv("MUJOCO_GL", "disable")
        player = Evaluator(NAME, make_config(action_repeat=50), seed=5)
        returns = player.play(make_policy()[0], 4)
    film = client.film(weights)
    client.close()

    assert ((5,), 1) == (client.spec.observation_shape, client.spec.action_size)
    assert ("episode_return", "return", 4) == (
        first.name,
        first.unit,
        first.num_examples,
    )
    assert np.mean(returns) == pytest.approx(first.value, rel=1e-4)
    assert 0.0 < first.low < first.value < first.high < 1000.0
    assert first.value != second.value
    assert film is None or film.startswith(b"\x89PNG")
    assert 0 == client._process.returncode


@pytest.mark.processes
def test_without_opengl_there_is_no_film_and_one_warning(monkeypatch):
    monkeypatch.setenv("MUJOCO_GL", "disable")
    client, weights = make_client(num_evaluation_episodes=2)
    with pytest.warns(UserWarning, match=r"episodes are not filmed: .* libegl1"):
        assert client.film(weights) is None
    assert client.film(weights) is None
    assert client.score(LEARNED, weights)
    client._process.send_signal(signal.SIGKILL)
    with pytest.raises(RuntimeError, match="evaluation episodes ended with exit code"):
        client.score(LEARNED, weights)
    client.close()
    before = psutil.Process().children()
    with pytest.raises(ValueError, match=r"needs OpenGL, which does not work here"):
        make_client(observations="pixels")
    assert before == psutil.Process().children()


@pytest.mark.processes
def test_an_evaluator_that_does_not_end_is_ended(monkeypatch):
    monkeypatch.setattr(EvaluatorClient, "end_sec", 0.2)
    client, _ = make_client()
    client._process.send_signal(signal.SIGSTOP)
    client.close()

    assert -signal.SIGKILL == client._process.returncode


def test_every_frame_of_a_film_is_seen_as_it_was(monkeypatch):
    rng = np.random.default_rng(0)
    # Twenty steps of fifty control steps each, and what is there before.
    frames = rng.integers(0, 256, (1, 96, 128, 3)).astype(np.uint8).repeat(21, axis=0)
    for index in range(1, 21):
        frames[index, :, 4 * index : 4 * index + 3] = rng.integers(0, 256, 3)
    shown, sizes = iter(frames), set()

    def render(_, *size):
        sizes.add(size)
        return next(shown)

    monkeypatch.setattr(Environment, "render", render)
    player = Evaluator(NAME, make_config(action_repeat=50), seed=0)
    picture = Image.open(io.BytesIO(player.film(make_policy()[0])))
    seen = []
    for index in range(picture.n_frames):
        picture.seek(index)
        seen.append(np.asarray(picture.convert("RGB")))

    np.testing.assert_array_equal(frames & 0xF8, np.stack(seen))
    assert ({(96, 128)}, 100) == (sizes, picture.info["duration"])
