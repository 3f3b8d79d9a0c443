"""The process that plays evaluation episodes: NumPy and dm_control, no TensorFlow.

    python -m workloads.d4pg.evaluation.evaluator_process

OpenGL for frames has its own compiler, and a process that has loaded both it and
TensorFlow crashes at exit; so episodes are played in a separate process.

Each request is a line of JSON with ``command`` and ``num_bytes``, followed by that
many bytes (the policy's weights, float32); each answer has the same form, with
``error`` if it failed. The process exits at the end of its input, so it does not
outlive its parent.

- ``open``: ``name``, ``seed`` and ``config``; answers with the ``EnvironmentSpec``.
- ``load``: ``policy``, the ``PolicySpec``.
- ``play``: ``num_episodes`` and weights; answers with ``returns``.
- ``film``: weights; answers with the bytes of an animated PNG.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from workloads.d4pg.acting.actor import Policy, PolicySpec
from workloads.d4pg.config import D4PGConfig
from workloads.d4pg.environment.control import Environment
from workloads.d4pg.evaluation.episodes import Evaluator

if TYPE_CHECKING:
    from collections.abc import Callable


def send(stream: IO[bytes], fields: dict[str, Any], content: bytes = b"") -> None:
    """Writes one request or answer."""
    line = json.dumps({**fields, "num_bytes": len(content)})
    stream.write(line.encode("ascii") + b"\n" + content)
    stream.flush()


def receive(stream: IO[bytes]) -> tuple[dict[str, Any], bytes] | None:
    """Reads one request or answer; None if the other side has exited."""
    line = stream.readline()
    if not line.endswith(b"\n"):
        return None
    fields = json.loads(line)
    content = stream.read(fields["num_bytes"])
    return (fields, content) if len(content) == fields["num_bytes"] else None


class Session:
    """The open environment and the loaded policy."""

    def __init__(self) -> None:
        self._evaluator: Evaluator | None = None
        self._policy: Policy | None = None

    def answer(
        self, fields: dict[str, Any], content: bytes
    ) -> tuple[dict[str, Any], bytes]:
        """Executes a request."""
        commands: dict[str, Callable[..., tuple[dict[str, Any], bytes]]] = {
            "open": self._open,
            "load": self._load,
            "play": self._play,
            "film": self._film,
        }
        return commands[fields["command"]](fields, content)

    def _open(self, fields: dict[str, Any], _: bytes) -> tuple[dict[str, Any], bytes]:
        config = D4PGConfig(**fields["config"])
        environment = Environment(
            fields["name"],
            observations=config.observations,
            action_repeat=config.action_repeat,
            can_render=True,
        )
        environment.close()
        self._evaluator = Evaluator(
            fields["name"], config, seed=fields["seed"], can_render=True
        )
        return dataclasses.asdict(environment.spec), b""

    def _load(self, fields: dict[str, Any], _: bytes) -> tuple[dict[str, Any], bytes]:
        self._policy = Policy(PolicySpec.from_json(fields["policy"]))
        return {}, b""

    def _play(
        self, fields: dict[str, Any], content: bytes
    ) -> tuple[dict[str, Any], bytes]:
        evaluator, policy = self._with_weights(content)
        return {"returns": evaluator.play(policy, fields["num_episodes"])}, b""

    def _film(self, _: dict[str, Any], content: bytes) -> tuple[dict[str, Any], bytes]:
        evaluator, policy = self._with_weights(content)
        return {}, evaluator.film(policy)

    def _with_weights(self, content: bytes) -> tuple[Evaluator, Policy]:
        assert self._evaluator is not None
        assert self._policy is not None
        self._policy.load(np.frombuffer(content, np.float32))
        return self._evaluator, self._policy


def main() -> int:
    """Answers requests until there are no more."""
    # Output of libraries must not be mixed with the answers.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    session = Session()
    while (request := receive(sys.stdin.buffer)) is not None:
        try:
            fields, content = session.answer(*request)
        except Exception as error:  # noqa: BLE001 - sent to the client
            kind = type(error).__name__
            fields, content = {"error": str(error) or kind, "kind": kind}, b""
        try:
            send(answers, fields, content)
        except BrokenPipeError:
            break
    return 0


if __name__ == "__main__":
    sys.exit(main())
