"""Profiles of TensorFlow as events of Chrome."""

from __future__ import annotations

import contextlib
import pathlib
import tempfile
from typing import TYPE_CHECKING, Any

import tensorflow as tf
from tensorflow.tsl.profiler.protobuf import xplane_pb2

if TYPE_CHECKING:
    from collections.abc import Iterator

_EVERY_OP = 3  # level 2 has only those that TensorFlow takes for expensive
_NANO, _PICO = 1e3, 1e6  # in a microsecond, the unit of Chrome


@contextlib.contextmanager
def recorded() -> Iterator[list[dict[str, Any]]]:
    """Profiles this process; its list has the events afterwards (test_timeline)."""
    options = tf.profiler.experimental.ProfilerOptions(
        host_tracer_level=_EVERY_OP, python_tracer_level=0
    )
    events: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        try:
            tf.profiler.experimental.start(folder, options=options)
        except tf.errors.AlreadyExistsError:
            raise RuntimeError(
                "timeline() found that another profile is running in this process; end "
                "that one first"
            ) from None
        try:
            yield events
        finally:
            tf.profiler.experimental.stop()
            for path in pathlib.Path(folder).rglob("*.xplane.pb"):
                space = xplane_pb2.XSpace.FromString(path.read_bytes())
                for pid, plane in enumerate(space.planes):
                    events.extend(_events(pid, plane))


def _events(pid: int, plane: Any) -> Iterator[dict[str, Any]]:
    yield _named("process_name", pid, 0, plane.name)
    for line in plane.lines:
        yield _named("thread_name", pid, line.id, line.display_name or line.name)
        for event in line.events:
            metadata = plane.event_metadata[event.metadata_id]
            yield {
                "ph": "X",
                "pid": pid,
                "tid": line.id,
                "name": metadata.name,
                "ts": line.timestamp_ns / _NANO + event.offset_ps / _PICO,
                "dur": event.duration_ps / _PICO,
            }


def _named(kind: str, pid: int, tid: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": {"name": name}}
