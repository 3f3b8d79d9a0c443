"""Headless OpenGL for frames, and none where nobody renders.

dm_control decides once, when it is imported, what it renders with: by ``MUJOCO_GL``,
else by what it finds first, which may be a window. Here that is nothing where only
states are asked for, and else EGL, which needs no display, unless the user has set the
variable.

Mesa's EGL and TensorFlow in one process end it with a crash at its exit, each with an
LLVM of its own: whoever renders does so in a process without TensorFlow.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

_VARIABLE = "MUJOCO_GL"
_NO_RENDERER = "disabled"
DEBIAN_PACKAGES = "libegl1 libgl1-mesa-dri"
CAMERA_ID = 0  # that of the control suite's paper; every task has it

# What costs time and tells an agent nothing: shadows and the like.
_COSTLY_FLAGS = ("SHADOW", "REFLECTION", "SKYBOX", "HAZE", "FOG")

_reasons: list[str] = []


def load_suite(*, can_render: bool = False) -> Any:
    """Imports ``dm_control.suite``, with headless rendering where it is asked for.

    Where OpenGL does not work, environments work from state, and ``check_opengl`` says
    why there are no frames.

    Args:
      can_render: Whether frames will be rendered; the first call in a process decides.
    """
    if "dm_control._render" not in sys.modules:
        asked = os.environ.get(_VARIABLE)
        os.environ[_VARIABLE] = (asked or "egl") if can_render else _NO_RENDERER
        if not can_render:
            _reasons.append("dm_control was first used without can_render=True")
        try:
            importlib.import_module("dm_control._render")
        # PyOpenGL raises whatever a missing library leads to, such as AttributeError.
        except Exception as error:  # noqa: BLE001 - kept and shown by check_opengl
            _reasons.append(f"{_VARIABLE}={os.environ[_VARIABLE]}: {_one_line(error)}")
            os.environ[_VARIABLE] = _NO_RENDERER
        try:
            # Here, because mujoco reads the variable when it is imported, too.
            importlib.import_module("dm_control.suite")
        finally:
            # The choice is made; children of this process make their own.
            if asked is None:
                del os.environ[_VARIABLE]
            else:
                os.environ[_VARIABLE] = asked
    return importlib.import_module("dm_control.suite")


def check_opengl() -> None:
    """Raises unless frames can be rendered in this process.

    Raises:
      ValueError: OpenGL does not work; names the Debian packages that bring it.
    """
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


def make_cheap(physics: Any) -> None:
    """Turns multisampling and shadow maps off; call it before the first frame."""
    physics.model.vis.quality.offsamples = 0
    physics.model.vis.quality.shadowsize = 0


def make_camera(physics: Any, height: int, width: int, *, is_cheap: bool) -> Any:
    """Returns a camera whose ``render()`` gives frames of ``physics``.

    Args:
      physics: Of a dm_control environment.
      height: Of a frame, in pixels.
      width: Of a frame, in pixels.
      is_cheap: Without shadows, reflections, sky, haze and fog.

    Raises:
      ValueError: No OpenGL context can be made.
    """
    check_opengl()
    from dm_control import mujoco as control_mujoco

    try:
        camera = control_mujoco.Camera(physics, height, width, CAMERA_ID)
    # As above: a library that is half there fails with anything.
    except Exception as error:
        raise no_opengl(_one_line(error)) from error
    if is_cheap:
        import mujoco

        for name in _COSTLY_FLAGS:
            camera.scene.flags[getattr(mujoco.mjtRndFlag, f"mjRND_{name}")] = 0
    return camera


def render(camera: Any) -> np.ndarray:
    """Returns a frame, uint8 [height, width, 3]."""
    frame: np.ndarray = camera.render()
    return frame


def _one_line(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__
