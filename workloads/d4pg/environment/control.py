"""One environment of the control suite, as actors and evaluations use it.

Actions are in [-1, 1]; observations are a flat float32 state, or a frame. Importing
this module does not import dm_control; creating an environment does.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, NamedTuple

import numpy as np

from workloads.d4pg.config import OBSERVATIONS
from workloads.d4pg.environment import rendering, tasks
from workloads.options import check_choice, check_range

FRAME_SIZE = 84
# Episodes of the suite have 1000 control steps; infinite ones (lqr) are cut there.
MAX_CONTROL_STEPS = 1000
# MuJoCo's bound for an action without bounds.
_UNBOUNDED = 1e10


class BrokenEpisodeError(ArithmeticError):
    """The physics diverged, or an observation or reward is not finite.

    The environment must be reset, and the last action is not recorded.
    """


class Step(NamedTuple):
    """The result of an action: one environment step."""

    observation: np.ndarray  # State, float32 [D], or frame, uint8 [84, 84, 3].
    reward: float  # Sum over the repeats of the action.
    # Product over the repeats: 0 at a terminal state, else 1; also 1 if only the time
    # limit was reached.
    discount: float
    is_last: bool  # Whether the episode ended.


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class EnvironmentSpec:
    """Shapes of one record of experience."""

    # ``(D,)`` of a state, ``(84, 84, 3)`` of a frame.
    observation_shape: tuple[int, ...]
    observation_dtype: str  # ``float32`` or ``uint8``.
    action_size: int  # Length of an action.


class Environment:
    """A task of the DeepMind Control Suite (Tassa et al. 2018) with canonical actions.

    Attributes:
      spec: Shapes of observations and actions.
    """

    def __init__(
        self,
        name: str,
        *,
        observations: str = "state",
        action_repeat: int = 1,
        seed: int = 0,
        can_render: bool = False,
    ) -> None:
        tasks.check(name)
        check_choice("observations", observations, OBSERVATIONS)
        check_range("action_repeat", action_repeat, low=1)
        suite = rendering.load_suite(can_render=can_render or observations == "pixels")
        from dm_control.rl.control import PhysicsError

        self._physics_error = PhysicsError
        self._env = suite.load(*name.split(":"), task_kwargs={"random": seed})
        self._action_repeat = action_repeat
        self._num_control_steps = 0
        self._must_reset = True
        self._camera = None
        self._film: tuple[tuple[int, int], Any] | None = None
        actions = self._env.action_spec()
        self._low, self._half_range = _canonical(actions.minimum, actions.maximum)
        self._is_canonical = bool(
            np.all(self._low == -1) and np.all(self._half_range == 1)
        )
        parts = self._env.observation_spec().values()
        self._state_size = sum(math.prod(part.shape) for part in parts)
        if observations == "pixels":
            rendering.make_cheap(self._env.physics)
            self._camera = rendering.make_camera(
                self._env.physics, FRAME_SIZE, FRAME_SIZE, is_cheap=True
            )
            shape: tuple[int, ...] = (FRAME_SIZE, FRAME_SIZE, 3)
        else:
            shape = (self._state_size,)
        self.spec = EnvironmentSpec(
            observation_shape=shape,
            observation_dtype="uint8" if observations == "pixels" else "float32",
            action_size=math.prod(actions.shape),
        )

    def reset(self) -> np.ndarray:
        """Starts an episode and returns its first observation."""
        self._num_control_steps = 0
        observation = self._observe(self._call(self._env.reset))
        self._must_reset = False
        return observation

    def step(self, action: np.ndarray) -> Step:
        """Takes one environment step."""
        if self._must_reset:
            raise RuntimeError("no episode is running: call reset() first")
        self._must_reset = True
        if not self._is_canonical:
            action = self._low + (action + 1) * self._half_range
        reward, discount = 0.0, 1.0
        for _ in range(self._action_repeat):
            timestep = self._call(self._env.step, action)
            self._num_control_steps += 1
            reward += timestep.reward
            discount *= timestep.discount
            is_last = timestep.last() or self._num_control_steps >= MAX_CONTROL_STEPS
            if is_last:
                break
        if not math.isfinite(reward):
            raise BrokenEpisodeError(f"the reward is {reward}")
        observation = self._observe(timestep)
        self._must_reset = is_last
        return Step(observation, float(reward), float(discount), is_last)

    def render(self, height: int = 240, width: int = 320) -> np.ndarray:
        """Returns the current state as a picture, uint8 [height, width, 3]."""
        if self._film is None or self._film[0] != (height, width):
            camera = rendering.make_camera(
                self._env.physics, height, width, is_cheap=False
            )
            self._film = ((height, width), camera)
        return rendering.render(self._film[1]).copy()

    def close(self) -> None:
        """Releases the physics and its OpenGL context."""
        self._camera = self._film = None
        self._env.close()

    def _call(self, function: Any, *args: Any) -> Any:
        try:
            return function(*args)
        except self._physics_error as error:
            raise BrokenEpisodeError(str(error)) from error

    def _observe(self, timestep: Any) -> np.ndarray:
        state = np.empty(self._state_size, np.float32)
        end = 0
        # Slices, not np.concatenate: this is most of a step's overhead over dm_control.
        for value in timestep.observation.values():
            start, end = end, end + value.size
            state[start:end] = value if value.ndim == 1 else value.ravel()
        # Finite only if all are; no state of the suite is anywhere near 1e19.
        if not math.isfinite(state.dot(state)):
            raise BrokenEpisodeError("the state is not finite")
        if self._camera is None:
            return state
        return np.ascontiguousarray(rendering.render(self._camera))


class FrameStack:
    """The last frames of an episode, as channels: the oldest first."""

    def __init__(self, num_frames: int = 3) -> None:
        self._num_frames = num_frames
        self._stack = np.zeros((FRAME_SIZE, FRAME_SIZE, 3 * num_frames), np.uint8)

    def reset(self, frame: np.ndarray) -> np.ndarray:
        """Starts an episode; returns uint8 [84, 84, 3 * num_frames].

        The returned array is the same in every call.
        """
        self._stack[...] = np.tile(frame, self._num_frames)
        return self._stack

    def push(self, frame: np.ndarray) -> np.ndarray:
        """Adds a frame and drops the oldest; returns the array of ``reset``."""
        # Overlapping slices: NumPy copies as if through a buffer.
        self._stack[..., :-3] = self._stack[..., 3:]
        self._stack[..., -3:] = frame
        return self._stack


def _canonical(low: np.ndarray, high: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the lower bounds and half of the ranges that [-1, 1] is mapped to."""
    # An action without bounds is not scaled.
    low = np.where(low <= -_UNBOUNDED, -1.0, low)
    high = np.where(high >= _UNBOUNDED, 1.0, high)
    return low, (high - low) / 2
