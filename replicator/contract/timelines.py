"""Timelines: a profile of TensorFlow that says of each op where it belongs."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import re
from typing import TYPE_CHECKING, Any

from replicator._tf import profiles
from replicator.validation.arguments import shown

if TYPE_CHECKING:
    from collections.abc import Iterator

_PLACES = {
    "replica": re.compile(r"(?:^|/)(?:\w*_)?replica_(\d+)/"),
    "bucket": re.compile(r"/(collective_\d+_\d+)(?:/|_|:|$)"),
    "stage": re.compile(r"/stage_(\d+)_[FB]\d+/"),
    "task": re.compile(r"/stage_\d+_([FB]\d+)/"),
}


def check(path: Any) -> pathlib.Path:
    """Returns where a timeline is written to."""
    if not isinstance(path, (str, os.PathLike)) or not os.fspath(path):
        raise TypeError(f"timeline({shown(path)}) must be the path of a file to write")
    place = pathlib.Path(os.fsdecode(path)).absolute()
    reason = ""
    try:
        if place.is_dir():
            reason = "it is a folder"
        else:
            place.lstat()
    except FileNotFoundError:
        if not place.parent.is_dir():
            reason = f"there is no folder {str(place.parent)!r}"
        elif not os.access(place.parent, os.W_OK):
            reason = "its folder cannot be written"
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
    if reason:
        raise ValueError(
            f"timeline() cannot write {shown(str(path))}: {reason}; use a file in a "
            "folder that exists, such as 'trace.json'"
        )
    return place


@contextlib.contextmanager
def recorded(place: pathlib.Path) -> Iterator[None]:
    """Records what this process computes meanwhile; see ``Replicator.timeline``."""
    events: list[dict[str, Any]] = []
    try:
        with profiles.recorded() as events:
            yield
    finally:
        for event in events:
            if event["ph"] == "X":
                event["args"] = _arguments(event["name"])
        if events:
            place.write_text(json.dumps({"traceEvents": events}))


def _arguments(name: str) -> dict[str, Any]:
    op, _, kind = name.rpartition(":")
    found: dict[str, Any] = {"op": kind} if op else {}
    for key, pattern in _PLACES.items():
        match = pattern.search(name)
        if match:
            found[key] = int(match[1]) if match[1].isdigit() else match[1]
    return found
