"""Episodes without exploration noise, in a process without TensorFlow.

OpenGL for frames has its own compiler, and a process that has loaded both it and
TensorFlow crashes at exit; so episodes are played in a separate process, this module.
``EvaluatorClient`` is the learner's side: it sends the name of a method of
``Evaluator``, the weights of a policy, and further arguments, and gets the result or an
error. The process exits when the other end of their connection is closed, so it does
not outlive its parent.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import io
import itertools
import multiprocessing
import subprocess
import sys
import warnings
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

import numpy as np

from workloads import ONE_THREAD, child_environment
from workloads.metrics import quality

from .actor import Policy
from .control import MAX_CONTROL_STEPS, BrokenEpisodeError, Environment, EnvironmentSpec

if TYPE_CHECKING:
    from workloads.spec import Metric, QualityMetric

    from .study import D4PGConfig

_STDERR = 2
_COLOURS = 0xF8  # 32 of each channel take half the space of 256
_BLEND_OVER = 1
_MOST_ENVIRONMENTS = 10
_MOST_BROKEN = 10
_FILM_SIZE = (96, 128)
_MOST_FRAMES = 40
_FRAME_TIME_MS = 100
# Distinct from the seeds of actors, which are derived from that of the trial.
_SEED_OFFSET = 10_000_019


class EvaluatorClient:
    """Plays episodes of one environment in a separate process."""

    spec: EnvironmentSpec  # Shapes of the environment's observations and actions.
    end_sec = 5.0  # So long an episode may go on that is played when it is closed.

    def __init__(
        self, name: str, config: D4PGConfig, *, seed: int, is_quiet: bool = False
    ) -> None:
        """Starts the process, which inherits this one's cores."""
        self._num_episodes = config.num_evaluation_episodes
        self._can_film = True
        self._log = "its output was discarded" if is_quiet else "its messages are above"
        self._connection, other = multiprocessing.Pipe()
        log = subprocess.DEVNULL if is_quiet else _STDERR
        with other:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(other.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[other.fileno()],
                env=child_environment(ONE_THREAD),
            )
        try:
            self.spec = self._ask(name, config, seed)
        except BaseException:
            self.close()
            raise

    def score(
        self, metrics: Sequence[Metric], weights: Mapping[str, np.ndarray]
    ) -> tuple[QualityMetric, ...]:
        """Returns the mean return of episodes without noise, with its interval."""
        returns = self._ask("play", weights, self._num_episodes)
        return quality.example_metrics(metrics, [(returns,)])

    def film(self, weights: Mapping[str, np.ndarray]) -> bytes | None:
        if not self._can_film:
            return None
        try:
            content: bytes = self._ask("film", weights)
        except ValueError as error:
            self._can_film = False
            warnings.warn(f"episodes are not filmed: {error}", stacklevel=2)
            return None
        return content

    def close(self) -> None:
        self._connection.close()
        try:
            self._process.wait(timeout=self.end_sec)
        except subprocess.TimeoutExpired:  # in the middle of an episode
            self._process.kill()
            self._process.wait()

    def _ask(self, *request: Any) -> Any:
        try:
            self._connection.send(request)
            answer = self._connection.recv()
        except (EOFError, OSError):
            raise RuntimeError(
                "the process that plays evaluation episodes ended with exit code "
                f"{self._process.wait()}: {self._log}"
            ) from None
        if isinstance(answer, Exception):
            raise answer
        return answer


class Evaluator:
    """Plays episodes of one environment with the actions of a policy, without noise."""

    def __init__(
        self, name: str, config: D4PGConfig, *, seed: int, can_render: bool = False
    ) -> None:
        self._make = functools.partial(Environment, name, config, can_render=can_render)
        self._num_actions = MAX_CONTROL_STEPS // config.action_repeat
        self._seed = seed + _SEED_OFFSET
        self._environments: list[Environment] = []
        self._num_broken: collections.Counter[Environment] = collections.Counter()
        environment = self._make()
        environment.close()
        self.spec = environment.spec

    def play(self, policy: Policy, num_episodes: int) -> list[float]:
        """Returns the undiscounted return of each episode."""
        count = min(num_episodes, _MOST_ENVIRONMENTS)
        while len(self._environments) < count:
            self._environments.append(self._begun(len(self._environments)))
        returns: list[float] = []
        for start in range(0, num_episodes, count):
            environments = self._environments[: num_episodes - start]
            for environment in environments:
                environment.reset()
            while playing := [each for each in environments if not each.is_over]:
                actions = policy(np.stack([each.seen for each in playing]))
                for environment, action in zip(playing, actions, strict=True):
                    self._act(environment, action)
            returns += [each.episode_return for each in environments]
        return returns

    def film(self, policy: Policy) -> bytes:
        num_skipped = max(self._num_actions // _MOST_FRAMES, 1)
        with contextlib.closing(self._begun(_MOST_ENVIRONMENTS)) as environment:
            environment.reset()
            frames = [environment.render(*_FILM_SIZE)]
            for number in itertools.count(1):
                self._act(environment, policy(environment.seen[None])[0])
                if number % num_skipped == 0:
                    frames.append(environment.render(*_FILM_SIZE))
                if environment.is_over:
                    break
        return _encode(np.stack(frames))

    def _begun(self, index: int) -> Environment:
        environment = self._make(seed=self._seed + index)
        environment.reset()
        return environment

    def _act(self, environment: Environment, action: np.ndarray) -> None:
        """Takes an environment step; an episode with failed physics is restarted."""
        try:
            environment.step(action)
        except BrokenEpisodeError as error:
            self._num_broken[environment] += 1
            if (count := self._num_broken[environment]) > _MOST_BROKEN:
                raise RuntimeError(
                    f"{count} episodes of an evaluation failed, the last because "
                    f"{error}: check the actions of the policy"
                ) from error
            environment.reset()


def _encode(frames: np.ndarray) -> bytes:
    """Returns animated PNG; later frames are transparent where nothing changed."""
    from PIL import Image  # comes with matplotlib

    frames = frames & _COLOURS
    pixels = np.pad(frames, [(0, 0), (0, 0), (0, 0), (0, 1)], constant_values=255)
    pixels[1:][(frames[1:] == frames[:-1]).all(axis=3)] = 0
    first, *others = map(Image.fromarray, pixels)
    film = io.BytesIO()
    first.save(
        film,
        "PNG",
        save_all=True,
        append_images=others,
        duration=_FRAME_TIME_MS,
        loop=0,
        blend=_BLEND_OVER,
        compress_level=9,
    )
    return film.getvalue()


def main() -> None:
    """Answers requests until there are no more."""
    connection = Connection(int(sys.argv[1]))
    evaluator: Evaluator | None = None
    with contextlib.suppress(EOFError, OSError):
        while True:
            request = connection.recv()
            try:
                if evaluator is None:
                    name, config, seed = request
                    evaluator = Evaluator(name, config, seed=seed, can_render=True)
                    answer: Any = evaluator.spec
                else:
                    method, weights, *arguments = request
                    policy = Policy(config, weights)
                    answer = getattr(evaluator, method)(policy, *arguments)
            except Exception as error:  # noqa: BLE001 - sent to the client
                kind = ValueError if type(error) is ValueError else RuntimeError
                answer = kind(str(error) or type(error).__name__)
            connection.send(answer)


if __name__ == "__main__":
    main()
