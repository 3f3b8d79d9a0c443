"""Plays episodes without exploration noise, for returns and films.

Runs in a process without TensorFlow; see ``evaluator_process``.
"""

from __future__ import annotations

import struct
import zlib
from typing import TYPE_CHECKING

import numpy as np

from workloads.d4pg.environment.control import (
    MAX_CONTROL_STEPS,
    BrokenEpisodeError,
    Environment,
    FrameStack,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from workloads.d4pg.acting.actor import Policy
    from workloads.d4pg.config import D4PGConfig


# Each frame after the first has only the changed pixels and is transparent elsewhere.

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_RGBA, _BITS = 6, 8
_KEEP, _OVER = 0, 1  # keep the previous frame; blend over it
_CHANNELS = 3
_COLOURS = 0xF8  # 32 of each channel take half the space of 256


def encode(frames: np.ndarray, *, frame_time_sec: float) -> bytes:
    """Returns a film that plays in a loop."""
    is_film = frames.ndim == 4 and frames.shape[-1] == _CHANNELS and len(frames)  # noqa: PLR2004
    if not is_film or frames.dtype != np.uint8:
        raise ValueError(
            "a film needs frames of shape [frames, height, width, 3] and type uint8, "
            f"but got {frames.shape} and {frames.dtype}"
        )
    count, height, width, _ = frames.shape
    chunks = [
        _chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, _BITS, _RGBA, 0, 0, 0)),
        _chunk(b"acTL", struct.pack(">II", count, 0)),
    ]
    number = 0
    time = (round(frame_time_sec * 1000), 1000)
    for index, pixels in enumerate(_changes(frames & _COLOURS)):
        control = struct.pack(
            ">IIIIIHHBB", number, width, height, 0, 0, *time, _KEEP, _OVER
        )
        chunks.append(_chunk(b"fcTL", control))
        number += 1
        if index == 0:
            chunks.append(_chunk(b"IDAT", pixels))
        else:
            chunks.append(_chunk(b"fdAT", struct.pack(">I", number) + pixels))
            number += 1
    return b"".join([_SIGNATURE, *chunks, _chunk(b"IEND", b"")])


def _changes(frames: np.ndarray) -> Iterator[bytes]:
    """Yields the compressed rows of each frame, transparent where nothing changed."""
    before = None
    for frame in frames:
        alpha = np.full((*frame.shape[:2], 1), 255, np.uint8)
        pixels = np.concatenate([frame, alpha], axis=2)
        if before is not None:
            pixels[(frame == before).all(axis=2)] = 0
        before = frame
        # Each row starts with the number of its filter: none, or minus the row above.
        rows = pixels.reshape(len(pixels), -1)
        below = np.concatenate([rows[:1], rows[1:] - rows[:-1]])
        yield min(
            (
                zlib.compress(np.insert(filtered, 0, number, axis=1).tobytes(), 9)
                for number, filtered in ((0, rows), (2, below))
            ),
            key=len,
        )


def _chunk(name: bytes, content: bytes) -> bytes:
    checksum = zlib.crc32(name + content)
    return (
        struct.pack(">I", len(content)) + name + content + struct.pack(">I", checksum)
    )


_MOST_ENVIRONMENTS = 10
_MOST_BROKEN = 10
_FILM_SIZE = (96, 128)
_MOST_FRAMES = 40
_FRAME_TIME_SEC = 0.1
# Distinct from the seeds of actors, which are derived from that of the trial.
_SEED_OFFSET = 10_000_019


class Evaluator:
    """Plays episodes of one environment with the actions of a policy, without noise.

    Environments are created when first needed and kept; every evaluation continues with
    new initial states.
    """

    def __init__(
        self, name: str, config: D4PGConfig, *, seed: int, can_render: bool = False
    ) -> None:
        """Stores what to play."""
        self._name = name
        self._can_render = can_render
        self._config = config
        self._seed = seed + _SEED_OFFSET
        self._players: list[_Player] = []

    def play(self, policy: Policy, num_episodes: int) -> list[float]:
        """Returns the undiscounted return of each episode."""
        count = min(num_episodes, _MOST_ENVIRONMENTS)
        while len(self._players) < count:
            self._players.append(self._make_player(len(self._players)))
        returns: list[float] = []
        for start in range(0, num_episodes, count):
            returns += _play_once(policy, self._players[: num_episodes - start])
        return returns

    def film(self, policy: Policy) -> bytes:
        """Returns a film of one episode as animated PNG."""
        num_actions = MAX_CONTROL_STEPS // self._config.action_repeat
        num_skipped = max(num_actions // _MOST_FRAMES, 1)
        player = self._make_player(_MOST_ENVIRONMENTS)
        try:
            player.reset()
            frames = [player.environment.render(*_FILM_SIZE)]
            while not player.is_over:
                player.act(policy(player.observation[None])[0])
                if player.num_actions % num_skipped == 0:
                    frames.append(player.environment.render(*_FILM_SIZE))
        finally:
            player.environment.close()
        return encode(np.stack(frames), frame_time_sec=_FRAME_TIME_SEC)

    def _make_player(self, index: int) -> _Player:
        return _Player(
            self._name,
            self._config,
            seed=self._seed + index,
            can_render=self._can_render,
        )


class _Player:
    """One environment, its episode so far, and the policy's observations."""

    def __init__(
        self, name: str, config: D4PGConfig, *, seed: int, can_render: bool
    ) -> None:
        self.environment = Environment(
            name,
            observations=config.observations,
            action_repeat=config.action_repeat,
            seed=seed,
            can_render=can_render,
        )
        self._stack = (
            FrameStack(config.num_stacked_frames)
            if config.observations == "pixels"
            else None
        )
        self._num_broken = 0
        self.reset()

    def reset(self) -> None:
        """Starts an episode."""
        observation = self.environment.reset()
        if self._stack is not None:
            observation = self._stack.reset(observation)
        self.observation = observation
        self.episode_return, self.num_actions, self.is_over = 0.0, 0, False

    def act(self, action: np.ndarray) -> None:
        """Takes an environment step; an episode with failed physics is restarted."""
        try:
            step = self.environment.step(action)
        except BrokenEpisodeError as error:
            self._num_broken += 1
            if self._num_broken > _MOST_BROKEN:
                raise RuntimeError(
                    f"{self._num_broken} episodes of an evaluation failed, the last "
                    f"because {error}: check the actions of the policy"
                ) from error
            self.reset()
            return
        self.observation = step.observation
        if self._stack is not None:
            self.observation = self._stack.push(step.observation)
        self.episode_return += step.reward
        self.num_actions += 1
        self.is_over = step.is_last


def _play_once(policy: Policy, players: list[_Player]) -> list[float]:
    """Plays one episode in each environment, all in lock step."""
    for player in players:
        player.reset()
    playing = players
    while playing:
        actions = policy(np.stack([player.observation for player in playing]))
        for player, action in zip(playing, actions, strict=True):
            player.act(action)
        playing = [player for player in playing if not player.is_over]
    return [player.episode_return for player in players]
