"""Headless OpenGL for frames; no OpenGL if nothing is rendered.

dm_control chooses its renderer once, when it is imported: by ``MUJOCO_GL``, else the
first that it finds, which may open a window. Unless the user has set the variable, this
module disables rendering if only states are requested, and otherwise selects EGL, which
needs no display.

Mesa's EGL and TensorFlow in one process make it crash at exit, because each has its own
LLVM: frames are rendered only in processes without TensorFlow.
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


def make_cheap(physics: Any) -> None:
    """Turns multisampling and shadow maps off; call it before the first frame."""
    physics.model.vis.quality.offsamples = 0
    physics.model.vis.quality.shadowsize = 0


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


def render(camera: Any) -> np.ndarray:
    """Returns a frame, uint8 [height, width, 3]."""
    frame: np.ndarray = camera.render()
    return frame


def _one_line(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__
