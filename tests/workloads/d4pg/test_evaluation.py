"""Evaluation plays whole episodes of the real environment, without noise, and films."""

import io
import itertools
import signal

import numpy as np
import psutil
import pytest
from PIL import Image  # comes with matplotlib

from workloads.d4pg import actor as actor_lib
from workloads.d4pg import config, evaluator
from workloads.d4pg.control import BrokenEpisodeError, Environment
from workloads.d4pg.evaluator import EvaluatorClient

NAME = "cartpole:balance"


@pytest.fixture(autouse=True)
def without_opengl(monkeypatch, request):
    """This process has TensorFlow, which does not bear OpenGL's compiler beside it."""
    if "processes" not in request.keywords:
        monkeypatch.setenv("MUJOCO_GL", "disable")


def make_policy(observation_shape=(5,), seed=0):
    """A policy that acts in some way."""
    spec = actor_lib.PolicySpec(
        observation_shape=observation_shape,
        action_size=1,
        hidden_sizes=(16, 8),
        kind="mlp",
    )
    made = actor_lib.Policy(spec)
    rng = np.random.default_rng(seed)
    made.load(rng.normal(scale=0.2, size=spec.num_floats).astype(np.float32))
    return made


def test_returns_are_those_of_episodes_played_one_by_one():
    """Environments that are stepped together do not disturb each other."""
    settings = config.make_config("smoke", {"action_repeat": 20})
    player = evaluator.Evaluator(NAME, settings, seed=5)
    actor = make_policy()
    found = player.play(actor, 3)
    expected = []
    for index in range(3):
        player = Environment(NAME, action_repeat=20, seed=5 + 10_000_019 + index)
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
    """And if that continues, it is an error that says why."""
    real_step, count = Environment.step, itertools.count()

    def step(self, action):
        if next(count) in (3, 5):
            raise BrokenEpisodeError("the state is not finite")
        return real_step(self, action)

    settings = config.make_config("smoke", {"action_repeat": 50})
    player = evaluator.Evaluator(NAME, settings, seed=0)
    monkeypatch.setattr(Environment, "step", step)
    assert 2 == len(player.play(make_policy(), 2))

    def broken(self, action):
        raise BrokenEpisodeError("the state is not finite")

    monkeypatch.setattr(Environment, "step", broken)
    with pytest.raises(RuntimeError, match=r"11 episodes .* the state is not finite"):
        player.play(make_policy(), 2)


def make_client(name=NAME, **options):
    """A client whose policy is that of ``make_policy``, and its weights."""
    options = {"action_repeat": 50, "num_evaluation_episodes": 4, **options}
    client = EvaluatorClient(name, config.make_config("smoke", options), seed=5)
    spec = make_policy(client.spec.observation_shape).spec
    client.load(spec)
    rng = np.random.default_rng(0)
    return client, rng.normal(scale=0.2, size=spec.num_floats).astype(np.float32)


@pytest.mark.processes
def test_the_score_is_the_mean_return_with_its_interval(monkeypatch):
    """Of episodes that another process plays, as this one would; the next differ."""
    client, weights = make_client()
    (first,), (second,) = (client.score(weights) for _ in range(2))
    with monkeypatch.context() as context:
        context.setenv("MUJOCO_GL", "disable")
        settings = config.make_config("smoke", {"action_repeat": 50})
        returns = evaluator.Evaluator(NAME, settings, seed=5).play(make_policy(), 4)
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
    """The return needs no pictures; frames as observations do."""
    monkeypatch.setenv("MUJOCO_GL", "disable")
    client, weights = make_client(num_evaluation_episodes=2)
    with pytest.warns(UserWarning, match=r"episodes are not filmed: .* libegl1"):
        assert client.film(weights) is None
    assert client.film(weights) is None
    assert client.score(weights)
    client.close()
    before = psutil.Process().children()
    with pytest.raises(ValueError, match=r"needs OpenGL, which does not work here"):
        make_client(observations="pixels")
    assert before == psutil.Process().children()


@pytest.mark.processes
def test_a_dead_evaluator_is_an_error():
    client, weights = make_client()
    client._process.send_signal(signal.SIGKILL)
    with pytest.raises(RuntimeError, match="evaluation episodes ended with exit code"):
        client.score(weights)


@pytest.mark.processes
def test_an_evaluator_that_does_not_end_is_ended(monkeypatch):
    """As one that stands still, or is in the middle of an episode."""
    monkeypatch.setattr(evaluator, "_END_SEC", 0.2)
    client, _ = make_client()
    client._process.send_signal(signal.SIGSTOP)
    client.close()

    assert -signal.SIGKILL == client._process.returncode


def test_every_frame_is_seen_as_it_was():
    """Though later ones hold what changed only, and colours have five bits."""
    rng = np.random.default_rng(0)
    frames = np.repeat(rng.integers(0, 256, (1, 12, 16, 3)).astype(np.uint8), 4, axis=0)
    for index in range(1, 4):
        frames[index, :, 4 * index : 4 * index + 3] = rng.integers(0, 256, 3)
    picture = Image.open(io.BytesIO(evaluator.encode(frames, frame_time_sec=0.25)))
    seen = []
    for index in range(picture.n_frames):
        picture.seek(index)
        seen.append(np.asarray(picture.convert("RGB")))

    np.testing.assert_array_equal(frames & 0xF8, np.stack(seen))
    assert 250 == picture.info["duration"]


def test_what_stands_still_takes_no_space():
    """Forty equal frames are little more than one."""
    rng = np.random.default_rng(0)
    frame = rng.integers(0, 256, (1, 40, 40, 3)).astype(np.uint8)
    one = len(evaluator.encode(frame, frame_time_sec=0.1))

    assert len(evaluator.encode(frame.repeat(40, axis=0), frame_time_sec=0.1)) < 2 * one


@pytest.mark.parametrize(
    "frames",
    [
        np.zeros((0, 4, 4, 3), np.uint8),
        np.zeros((4, 4, 3), np.uint8),
        np.zeros((1, 4, 4, 3), np.float32),
    ],
)
def test_what_is_no_film_is_refused(frames):
    with pytest.raises(ValueError, match=r"a film needs frames .* but got \("):
        evaluator.encode(frames, frame_time_sec=0.1)
