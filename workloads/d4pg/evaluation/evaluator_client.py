"""The learner's side of evaluation; see ``evaluator_process``."""

from __future__ import annotations

import contextlib
import dataclasses
import subprocess
import sys
import warnings
from typing import TYPE_CHECKING, Any

from workloads import child_process, quality
from workloads.d4pg import metrics
from workloads.d4pg.environment.control import EnvironmentSpec
from workloads.d4pg.evaluation import evaluator_process

if TYPE_CHECKING:
    import numpy as np

    from workloads.d4pg.acting.actor import PolicySpec
    from workloads.d4pg.config import D4PGConfig
    from workloads.spec import QualityMetric

_END_SEC = 5.0


class EvaluatorClient:
    """Plays episodes of one environment in a separate process.

    Attributes:
      spec: Shapes of the environment's observations and actions.
    """

    def __init__(
        self, name: str, config: D4PGConfig, *, seed: int, is_quiet: bool = False
    ) -> None:
        """Starts the process, which inherits this one's cores."""
        self._config = config
        self._can_film = True
        self._log = "its output was discarded" if is_quiet else "its messages are above"
        self._process = subprocess.Popen(
            [sys.executable, "-m", evaluator_process.__name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL if is_quiet else None,
            env=child_process.environment(child_process.ONE_THREAD),
        )
        try:
            fields, _ = self._ask(
                "open", name=name, config=dataclasses.asdict(config), seed=seed
            )
        except BaseException:
            self.close()
            raise
        fields["observation_shape"] = tuple(fields["observation_shape"])
        self.spec = EnvironmentSpec(**fields)

    def load(self, policy: PolicySpec) -> None:
        """Sets the policy that the weights belong to."""
        self._ask("load", policy=policy.to_json())

    def score(self, weights: np.ndarray) -> tuple[QualityMetric, ...]:
        """Returns the mean return of episodes without noise, with its interval."""
        count = self._config.num_evaluation_episodes
        fields, _ = self._ask("play", weights.tobytes(), num_episodes=count)
        return quality.of_examples(metrics.LEARNED, [(fields["returns"],)])

    def film(self, weights: np.ndarray) -> bytes | None:
        """Returns a film of one episode as animated PNG, or None without OpenGL.

        Warns, once, if there is none.
        """
        if not self._can_film:
            return None
        try:
            _, content = self._ask("film", weights.tobytes())
        except ValueError as error:
            self._can_film = False
            warnings.warn(f"episodes are not filmed: {error}", stacklevel=2)
            return None
        return content

    def close(self) -> None:
        """Terminates the process."""
        try:
            self._process.communicate(timeout=_END_SEC)
        except subprocess.TimeoutExpired:  # in the middle of an episode
            self._process.kill()
            self._process.communicate()

    def _ask(
        self, command: str, content: bytes = b"", **fields: Any
    ) -> tuple[dict[str, Any], bytes]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        answer = None
        with contextlib.suppress(BrokenPipeError):
            request = {"command": command, **fields}
            evaluator_process.send(self._process.stdin, request, content)
            answer = evaluator_process.receive(self._process.stdout)
        if answer is None:
            raise RuntimeError(
                "the process that plays evaluation episodes ended with exit code "
                f"{self._process.wait()}: {self._log}"
            )
        error = answer[0].get("error")
        if error is not None:
            kinds = {"ValueError": ValueError}
            raise kinds.get(answer[0]["kind"], RuntimeError)(error)
        del answer[0]["num_bytes"]
        return answer
