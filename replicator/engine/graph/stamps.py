"""Stamps: devices that nodes carry only while their graph is optimized.

TensorFlow's graph optimizer takes a node without a device for one on the CPU. On a host
with oneDNN it would then fuse batch norm and ReLU of a step that runs on GPUs, whose
kernels refuse that in training. So the nodes of such a step say while it is optimized
on which type of device they will run, and afterwards again only what the step
requested: replicas of one graph run on many devices.

A stamp stands for one request of the step, not for a device of a machine: two logical
devices stay apart even where a replica has both on one GPU.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator.core import context, devices
from replicator.engine.graph.body import called_names, reachable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from replicator.core.topology import Topology


class ReplicaDevices:
    """Translates the devices that a step requests into those of each replica."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._specs = [
            tf.DeviceSpec.from_string(device) for device in topology.replica_devices
        ]

    def device(self, requested: str, replica: int) -> str:
        """The full name of a device."""
        index = context.logical_index(requested)
        if index is not None:
            return self._topology.devices[replica][index]
        mine = self._specs[replica]
        if requested:
            spec = tf.DeviceSpec.from_string(requested)
            if spec.job not in (None, mine.job):
                return requested  # a parameter server, which is not a replica's device
            if spec.device_type not in (None, mine.device_type):
                # Not the replica's own index: GPU:1 does not imply that CPU:1 exists.
                place = spec.device_index or 0
                other = mine.replace(device_type=spec.device_type, device_index=place)
                return str(other.to_string())
        return self._topology.devices[replica][0]

    def device_type(self, requested: str) -> str | None:
        """The type of a device, or None where replicas have devices of several."""
        found = {
            devices.device_type(self.device(requested, replica))
            for replica in range(self._topology.num_local_replicas)
        }
        return found.pop() if len(found) == 1 else None


# What the optimizer calls the host of a GPU when it moves small computations there.
_HOST = "/device:CPU:0"
_PREFIX = "/job:localhost/replica:0/task:0/device:"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class _Stamp:
    """A device name, and what it stands for."""

    name: str  # A full device name.
    kind: str  # Its type.
    request: str  # The device that the step requested.
    # The device that a node of a function requested: none where it runs wherever the
    # function is called.
    in_function: str


class Stamps:
    """The stamps of one graph.

    Attributes:
      is_complete: Whether every node can get one. None is given where replicas of
        several device types run one node, and to functions that are called on several
        devices.
      is_on_cpus: Whether all nodes run on CPUs of all replicas.
    """

    def __init__(self, graph_def: Any, topology: Topology) -> None:
        """Finds the type of the device of every node."""
        self._devices = ReplicaDevices(topology)
        self._stamps: dict[tuple[str, bool], _Stamp | None] = {}
        self._counts: dict[str, Iterator[int]] = {}
        self._library = {f.signature.name: f for f in graph_def.library.function}
        primary = self._stamp("")
        if primary is not None and primary.kind != "CPU":
            self._stamp(_HOST)  # the first CPU, as the optimizer expects
        self._of_functions = self._find_functions(graph_def)
        used = [stamp for _, stamp in self._stamped(graph_def)]  # makes them all
        self.is_complete = all(used)
        self.is_on_cpus = all(
            stamp is not None and stamp.kind == "CPU" for stamp in self._stamps.values()
        )

    def kinds(self) -> dict[str, str]:
        """The device types of all stamps, by the stamp's name."""
        return {s.name: s.kind for s in self._stamps.values() if s is not None}

    def add(self, graph_def: Any) -> None:
        """Gives nodes their stamps, in place; those that have none stay as they are."""
        for node, stamp in self._stamped(graph_def):
            if stamp is not None:
                node.device = stamp.name

    def _stamped(self, graph_def: Any) -> Iterator[tuple[Any, _Stamp | None]]:
        """All nodes that may run, with their stamps."""
        for node in graph_def.node:
            yield node, self._stamp(node.device)
        for function in graph_def.library.function:
            stamps = self._of_functions.get(function.signature.name, set())
            default = next(iter(stamps)) if len(stamps) == 1 else None
            for node in function.node_def if stamps else ():
                yield node, self._in_function(node.device, default)

    def remove(self, graph_def: Any) -> None:
        """Puts what the step requested in place of stamps, also of new nodes."""
        by_name = {s.name: s for s in self._stamps.values() if s is not None}
        for node in graph_def.node:
            if node.device in by_name:
                node.device = by_name[node.device].request
        for function in graph_def.library.function:
            for node in function.node_def:
                if node.device in by_name:
                    node.device = by_name[node.device].in_function

    def _stamp(self, request: str, *, is_own: bool = False) -> _Stamp | None:
        """The stamp of a request, or None where replicas differ in type."""
        key = request, is_own
        if key not in self._stamps:
            kind = self._devices.device_type(request)
            if kind is None:
                self._stamps[key] = None
            else:
                index = next(self._counts.setdefault(kind, itertools.count()))
                self._stamps[key] = _Stamp(
                    name=f"{_PREFIX}{kind}:{index}",
                    kind=kind,
                    request=request,
                    in_function=request if is_own else "",
                )
        return self._stamps[key]

    def _in_function(self, request: str, default: _Stamp | None) -> _Stamp | None:
        return self._stamp(request, is_own=True) if request else default

    def _find_functions(self, graph_def: Any) -> dict[str, set[_Stamp | None]]:
        """By function, the stamps of all nodes that call it."""

        def inner(call: tuple[str, _Stamp | None]) -> Iterator[tuple[str, Any]]:
            name, default = call
            for node in self._library[name].node_def:
                stamp = self._in_function(node.device, default)
                yield from ((called, stamp) for called in self._called(node))

        found: dict[str, set[_Stamp | None]] = {}
        outer = (
            (called, self._stamp(node.device))
            for node in graph_def.node
            for called in self._called(node)
        )
        for name, stamp in reachable(outer, inner):
            found.setdefault(name, set()).add(stamp)
        return found

    def _called(self, node: Any) -> set[str]:
        return self._library.keys() & called_names(node)
