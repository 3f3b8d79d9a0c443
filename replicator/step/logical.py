"""Logical devices: the devices that one replica is split over (model parallelism).

A step is written for one replica, so it names parts of that replica, not machines:
``with logical_device(1):``. Every replica maps part ``i`` to one of its own devices
(Buchlovsky et al. 2019, section 4: ``logical_device`` and data parallelism together).
The stages of a pipeline are known to the engine by the names that are given here.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator.errors import DeviceError
from replicator.step import context as context_lib
from replicator.validation.arguments import is_integer, shown

if TYPE_CHECKING:
    import contextlib

# A device type that no runtime has. It stands in the traced graph until the replicas
# are created; TensorFlow would raise an error if one were left over.
_PREFIX = "/device:LOGICAL:"
FUNCTION_PREFIX = "replicator_stage"
# What names of the operations of a task begin with, within a replica.
TASK = re.compile(r"stage_\d+_[FB]\d+(?=/)")
# What the name of a node ends with that runs after all results of a task.
END = "/replicator_end"


def logical_device(index: int) -> contextlib.AbstractContextManager[Any]:
    """Places ops and variables on one of the devices of a replica.

    Inside a step function it places ops; inside ``repl.context()`` it places variables.
    Inputs are on logical device 0. An op outside any scope runs on the device of its
    inputs, a gradient on the device of its forward op, an update on that of its
    variable.

    Args:
      index: In [0, logical_devices_per_replica).

    Returns:
      A context manager.

    Raises:
      DeviceError: No such logical device, or called outside a replica and outside
        ``repl.context()``.
    """
    if context_lib.in_replica_context():
        return context_lib.get_replica_context().logical_device(index)
    replicator = context_lib.current_replicator()
    if replicator is None:
        raise DeviceError(
            f"logical_device({index!r}) was called outside a replica; use it inside "
            "`with repl.context():` for variables, or inside the step function for ops"
        )
    scope: contextlib.AbstractContextManager[Any] = replicator.logical_device(index)
    return scope


def check_index(index: Any, num_logical_devices: int) -> int:
    """Returns the index of a logical device, if it exists."""
    if not is_integer(index, least=0) or index >= num_logical_devices:
        raise DeviceError(
            f"logical_device({shown(index)}) does not exist: a replica here has "
            f"{num_logical_devices}; use 0 to {num_logical_devices - 1}, or create the "
            "replicator with logical_devices_per_replica=k"
        )
    return int(index)


def traced_name(index: int) -> str:
    """The device name that stands for a logical device in a traced graph."""
    return f"{_PREFIX}{index}"


def index_of(device: str) -> int | None:
    """Which logical device a name of the traced graph stands for, or None."""
    _, found, index = device.rpartition(_PREFIX)
    return int(index) if found else None


def traced_scope(index: Any, num_logical_devices: int) -> Any:
    """The scope of a logical device while a step is traced."""
    return tf.device(traced_name(check_index(index, num_logical_devices)))


def task_name(stage: int, task: object) -> str:
    """The name of a task in graphs and timelines, such as ``stage_0_F3``."""
    return f"stage_{stage}_{task}"
