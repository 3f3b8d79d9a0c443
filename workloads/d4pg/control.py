"""One environment of the control suite, as actors and evaluations use it.

Actions are in [-1, 1]; observations are a flat float32 state, or a frame. Importing
this module does not import dm_control; creating an environment does.
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import math
import os
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from .study import D4PGConfig

# dm_control chooses its renderer once, when it is imported: by ``MUJOCO_GL``, else the
# first that it finds, which may open a window. Unless the user has set the variable,
# this module disables rendering if only states are requested, and otherwise selects
# EGL, which needs no display.
#
# Mesa's EGL and TensorFlow in one process make it crash at exit, because each has its
# own LLVM: frames are rendered only in processes without TensorFlow.

_VARIABLE = "MUJOCO_GL"
_NO_RENDERER = "disabled"
DEBIAN_PACKAGES = "libegl1 libgl1-mesa-dri"
CAMERA_ID = 0  # as in the control suite's paper; every task has it

# Effects that take time and have no information for an agent, such as shadows.
_COSTLY_FLAGS = ("SHADOW", "REFLECTION", "SKYBOX", "HAZE", "FOG")

_reasons: list[str] = []


def load_suite(*, can_render: bool = False) -> Any:
    """Imports ``dm_control.suite``, with headless rendering if requested.

    If OpenGL does not work, environments still provide states, and ``check_opengl``
    says why there are no frames.
    """
    if "dm_control._render" not in sys.modules:
        asked = os.environ.get(_VARIABLE)
        os.environ[_VARIABLE] = (asked or "egl") if can_render else _NO_RENDERER
        if not can_render:
            _reasons.append("dm_control was first used without can_render=True")
        try:
            importlib.import_module("dm_control._render")
        # PyOpenGL raises various errors for a missing library, such as AttributeError.
        except Exception as error:  # noqa: BLE001 - kept and shown by check_opengl
            _reasons.append(f"{_VARIABLE}={os.environ[_VARIABLE]}: {_one_line(error)}")
            os.environ[_VARIABLE] = _NO_RENDERER
        try:
            # Set here, because mujoco also reads the variable when it is imported.
            importlib.import_module("dm_control.suite")
        finally:
            # The choice is made; children of this process make their own choice.
            if asked is None:
                del os.environ[_VARIABLE]
            else:
                os.environ[_VARIABLE] = asked
    return importlib.import_module("dm_control.suite")


def check_opengl() -> None:
    """Raises unless frames can be rendered in this process."""
    load_suite(can_render=True)
    backend = importlib.import_module("dm_control._render").BACKEND
    if backend in (None, "off"):
        raise no_opengl(_reasons[0] if _reasons else f"{_VARIABLE} turns it off")


def no_opengl(reason: str) -> ValueError:
    """Returns the one-line error for a machine that cannot render."""
    return ValueError(
        f"option observations='pixels' needs OpenGL, which does not work here "
        f"({reason}): install it (Debian: apt-get install {DEBIAN_PACKAGES}), or use "
        "observations='state'"
    )


def make_camera(physics: Any, height: int, width: int, *, is_cheap: bool) -> Any:
    """Returns a camera whose ``render()`` gives frames of ``physics``."""
    check_opengl()
    from dm_control import mujoco as control_mujoco

    try:
        camera = control_mujoco.Camera(physics, height, width, CAMERA_ID)
    # As above: an incomplete library raises various errors.
    except Exception as error:
        raise no_opengl(_one_line(error)) from error
    if is_cheap:
        import mujoco

        for name in _COSTLY_FLAGS:
            camera.scene.flags[getattr(mujoco.mjtRndFlag, f"mjRND_{name}")] = 0
    return camera


def _one_line(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__


# The planner imports this module, so it does not import dm_control.

_MOST_SUGGESTIONS = 3

_BY_DOMAIN = {
    "acrobot": ("swingup", "swingup_sparse"),
    "ball_in_cup": ("catch",),
    "cartpole": (
        "balance",
        "balance_sparse",
        "swingup",
        "swingup_sparse",
        "two_poles",
        "three_poles",
    ),
    "cheetah": ("run",),
    "dog": ("stand", "walk", "trot", "run", "fetch"),
    "finger": ("spin", "turn_easy", "turn_hard"),
    "fish": ("upright", "swim"),
    "hopper": ("stand", "hop"),
    "humanoid": ("stand", "walk", "run", "run_pure_state"),
    "humanoid_CMU": ("stand", "walk", "run"),
    "lqr": ("lqr_2_1", "lqr_6_2"),
    "manipulator": ("bring_ball", "bring_peg", "insert_ball", "insert_peg"),
    "pendulum": ("swingup",),
    "point_mass": ("easy", "hard"),
    "quadruped": ("walk", "run", "escape", "fetch"),
    "reacher": ("easy", "hard"),
    "stacker": ("stack_2", "stack_4"),
    "swimmer": ("swimmer6", "swimmer15"),
    "walker": ("stand", "walk", "run"),
}

TASKS = tuple(
    f"{domain}:{name}" for domain, names in _BY_DOMAIN.items() for name in names
)
"""Every ``domain:task`` of the suite."""


def check(name: str) -> None:
    """Raises unless ``name`` is a ``domain:task`` of the control suite."""
    if name in TASKS:
        return
    domain, colon, _ = name.partition(":")
    if not colon:
        problem = (
            "must be a domain and a task of the control suite with a colon between them"
        )
    elif domain in _BY_DOMAIN:
        tasks = ", ".join(repr(f"{domain}:{known}") for known in _BY_DOMAIN[domain])
        problem = f"is unknown: {domain!r} has the tasks {tasks}"
    else:
        domains = ", ".join(map(repr, _BY_DOMAIN))
        problem = f"is unknown: the domains of the control suite are {domains}"
    # 'cartpole' and 'cartpole-swingup' are near to names that have a colon.
    close = difflib.get_close_matches(
        name.replace("-", ":").replace("/", ":"), TASKS, n=_MOST_SUGGESTIONS, cutoff=0.5
    )
    hint = f"; did you mean {' or '.join(map(repr, close))}?" if close else ""
    raise ValueError(f"data {name!r} {problem}{hint}")


FRAME_SIZE = 84
# Episodes of the suite have 1000 control steps; infinite ones (lqr) are cut there.
MAX_CONTROL_STEPS = 1000
# MuJoCo's bound for an action without bounds.
_UNBOUNDED = 1e10


class BrokenEpisodeError(ArithmeticError):
    """The physics diverged, or a value is not finite: reset, and record no action."""


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

    def seen_shape(self, num_frames: int) -> tuple[int, ...]:
        """Returns the shape of what a policy sees, with frames as channels."""
        *around, width = self.observation_shape
        return (*around, width * num_frames)


class Environment:
    """A task of the Control Suite (Tassa et al. 2018) with canonical actions.

    ``name`` is ``domain:task``, as ``cartpole:swingup``; ``seed`` is of initial states.
    With ``can_render`` states are seen, and pictures can be taken. Errors of physics,
    and values that are not finite, are a ``BrokenEpisodeError``.
    """

    spec: EnvironmentSpec  # Shapes of observations and actions.
    observation: np.ndarray  # The last one.
    # What a policy sees now: the state, or the last frames, always in the same array.
    seen: np.ndarray
    is_first: bool  # Whether the last observation begins the episode.
    is_over: bool = True  # Whether ``reset`` has to begin the next episode.
    episode_return: float = 0.0  # Rewards of the episode so far.

    def __init__(
        self, name: str, config: D4PGConfig, *, seed: int = 0, can_render: bool = False
    ) -> None:
        check(name)
        is_pixels = config.observations == "pixels"
        suite = load_suite(can_render=can_render or is_pixels)
        from dm_control.rl.control import PhysicsError

        self._physics_error = PhysicsError
        self._env = suite.load(*name.split(":"), task_kwargs={"random": seed})
        self._action_repeat = config.action_repeat
        self._stack = FrameStack(config.num_stacked_frames)
        self._num_control_steps = 0
        self._camera = None
        self._film: tuple[tuple[int, int], Any] | None = None
        actions = self._env.action_spec()
        # An action without bounds is not scaled.
        self._low = np.where(actions.minimum <= -_UNBOUNDED, -1.0, actions.minimum)
        high = np.where(actions.maximum >= _UNBOUNDED, 1.0, actions.maximum)
        self._half_range = (high - self._low) / 2
        self._is_canonical = bool(
            np.all(self._low == -1) and np.all(self._half_range == 1)
        )
        parts = self._env.observation_spec().values()
        self._state_size = sum(math.prod(part.shape) for part in parts)
        if is_pixels:
            # No multisampling and no shadow maps, set before the first frame.
            self._env.physics.model.vis.quality.offsamples = 0
            self._env.physics.model.vis.quality.shadowsize = 0
            self._camera = make_camera(
                self._env.physics, FRAME_SIZE, FRAME_SIZE, is_cheap=True
            )
            shape: tuple[int, ...] = (FRAME_SIZE, FRAME_SIZE, 3)
        else:
            shape = (self._state_size,)
        self.spec = EnvironmentSpec(
            observation_shape=shape,
            observation_dtype="uint8" if is_pixels else "float32",
            action_size=math.prod(actions.shape),
        )

    def reset(self) -> np.ndarray:
        self._num_control_steps, self.episode_return = 0, 0.0
        self._observe(self._call(self._env.reset), is_first=True)
        self.is_over = False
        return self.observation

    def step(self, action: np.ndarray) -> Step:
        if self.is_over:
            raise RuntimeError("no episode is running: call reset() first")
        self.is_over = True
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
        self._observe(timestep, is_first=False)
        self.is_over, reward = is_last, float(reward)
        self.episode_return += reward
        return Step(self.observation, reward, float(discount), is_last)

    def render(self, height: int = 240, width: int = 320) -> np.ndarray:
        """Returns the current state as a picture, uint8 [height, width, 3]."""
        if self._film is None or self._film[0] != (height, width):
            camera = make_camera(self._env.physics, height, width, is_cheap=False)
            self._film = ((height, width), camera)
        picture: np.ndarray = self._film[1].render().copy()
        return picture

    def close(self) -> None:
        self._camera = self._film = None
        self._env.close()

    def _call(self, function: Any, *args: Any) -> Any:
        try:
            return function(*args)
        except self._physics_error as error:
            raise BrokenEpisodeError(str(error)) from error

    def _observe(self, timestep: Any, *, is_first: bool) -> None:
        state = np.empty(self._state_size, np.float32)
        end = 0
        # Slices, not np.concatenate: this is most of a step's overhead over dm_control.
        for value in timestep.observation.values():
            start, end = end, end + value.size
            state[start:end] = value if value.ndim == 1 else value.ravel()
        # Finite only if all are; no state of the suite is anywhere near 1e19.
        if not math.isfinite(state.dot(state)):
            raise BrokenEpisodeError("the state is not finite")
        self.observation, self.is_first = state, is_first
        if self._camera is not None:
            self.observation = np.ascontiguousarray(self._camera.render())
        self.seen = self._stack.add(self.observation, is_first=is_first)


class FrameStack:
    """What a policy sees: a state, or the last frames as channels, the oldest first."""

    def __init__(self, num_frames: int = 3) -> None:
        self._num_frames = num_frames
        self._stack = np.zeros((FRAME_SIZE, FRAME_SIZE, 3 * num_frames), np.uint8)

    def add(self, observation: np.ndarray, *, is_first: bool) -> np.ndarray:
        """Returns what is seen now, in the same array in every call."""
        if self._num_frames == 1:
            return observation
        if is_first:
            self._stack[...] = np.tile(observation, self._num_frames)
        else:
            # Overlapping slices: NumPy copies as if through a buffer.
            self._stack[..., :-3] = self._stack[..., 3:]
            self._stack[..., -3:] = observation
        return self._stack
