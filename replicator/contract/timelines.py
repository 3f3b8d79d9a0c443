"""Checks of a request for a timeline."""

from __future__ import annotations

import os
import pathlib
from typing import Any

from replicator.catalog import BACKENDS, entry_of
from replicator.errors import TimelineError
from replicator.placement import devices as device_lib
from replicator.validation.arguments import shown
from replicator.validation.integers import is_integer

CAPABILITY = "timelines"


def check(replicator: Any, path: str | os.PathLike[str], steps: Any) -> None:
    """Rejects what cannot be recorded.

    Raises:
      TypeError: No path.
      ValueError: A number of steps below 1, a folder, or a file in none.
      TimelineError: The backend, or its devices, cannot be recorded.
    """
    if not is_integer(steps) or steps < 1:
        raise ValueError(
            f"timeline(steps={shown(steps)}) must be an integer of 1 or more"
        )
    if not isinstance(path, (str, os.PathLike)) or not os.fspath(path):
        raise TypeError(f"timeline({shown(path)}) must be the path of a file to write")
    place = pathlib.Path(path).absolute()
    reason = _why_not_written(place)
    if reason:
        raise ValueError(
            f"timeline() cannot write {shown(str(path))}: {reason}; use a file in a "
            "folder that exists, such as 'trace.json'"
        )
    info = entry_of(type(replicator))
    if CAPABILITY in info.lacks:
        able = [n for n, other in BACKENDS.items() if CAPABILITY not in other.lacks]
        raise TimelineError(
            f"backend {info.name!r} has no timeline: {info.lacks[CAPABILITY]}; use "
            f"{', '.join(able)}, or tf.profiler.experimental"
        )
    others = [d for d in replicator.devices if not device_lib.is_cpu(d)]
    if others:
        raise TimelineError(
            f"timeline() reads clocks of CPUs, and {others[0]} starts what it computes "
            "before it is computed: use tf.profiler.experimental there"
        )


def _why_not_written(place: pathlib.Path) -> str:
    """Returns why no file can be at a place, or nothing."""
    try:
        if place.is_dir():
            return "it is a folder"
        place.lstat()
    except FileNotFoundError:
        return "" if place.parent.is_dir() else f"there is no {str(place.parent)!r}"
    except (OSError, ValueError) as error:
        return getattr(error, "strerror", None) or str(error)
    return ""
