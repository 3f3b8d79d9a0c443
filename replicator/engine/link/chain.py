"""Chain: the collective ops of one program, and what each of them waits for.

All workers emit the same ops in the same order, so that two of them can never wait for
each other in two collectives. There are three ways to keep that order:

- An op waits until its predecessor has *ended*: rings between processes.
- It waits until its predecessor was *started*: NCCL between processes. The end of a
  kernel would be too late: by then the backward pass is queued on the stream of the
  device, all of it, and a reduction waits for what is queued when it starts.
- It waits for nothing but batches: replicas of one process. TensorFlow starts an op of
  NCCL when all its parts are there, on all devices at once, so there is one order
  already. Nor has it an edge from the batches, which would be a transfer from each
  device to each other: its keys are constants, and what has no inputs runs once all is
  there that the call of the step waits for (``Assembly.call``).
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from replicator.core import devices
from replicator.core.devices import NCCL_DTYPES
from replicator.core.topology import place_group_key
from replicator.engine.link.fragments import NUM_LENGTHS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from replicator.core.topology import FlatGroup, Group, Topology
    from replicator.engine.graph.body import Emitter, Ref, Tensor


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class _Started:
    """An op over all replicas whose successor waits for its start."""

    keys: tuple[int, ...] = ()  # Its instance key, or nothing.
    # Its parts in this program, unless something waits for their end already.
    nodes: tuple[str, ...] = ()


class Chain:
    """Emits TensorFlow's collective ops, one after the other."""

    def __init__(
        self,
        group: Group | None,
        emit: Emitter,
        first_controls: Sequence[str],
        *,
        has_virtual_gpus: bool = False,
    ) -> None:
        self._group = group
        self._has_virtual_gpus = has_virtual_gpus
        self._emit = emit
        # One order for all, although transfers could overlap: TensorFlow starts ops as
        # their inputs come, which differs from worker to worker, and two workers that
        # hold all threads of a ring in different ones wait forever.
        self._before = list(first_controls)
        self._first_controls = tuple(first_controls)
        # By device, what replaces that where the last op ran on several devices.
        self._before_on: dict[str, str] = {}
        # The last op that orders its successor by its start, and the one before it.
        self._started, self._started_before = _Started(), _Started()
        # Ops that nothing in the program waits for, without and with the last one.
        self._free_before: list[str] = []
        self._free: list[str] = []

    @property
    def ends(self) -> list[str]:
        """The nodes after which all ops have ended, so that another program may begin.

        Two programs at once would meet the ops of other workers in another order, and
        if they are two calls of one program, under the same keys.
        """
        before = () if tuple(self._before) == self._first_controls else self._before
        on_devices = self._before_on.values()
        return sorted({*before, *on_devices, *self._started.nodes, *self._free})

    def continue_after(self, node: str) -> None:
        """Makes the next op wait for a node instead of the last one."""
        self._before = [node]
        self._before_on = {}
        self._started = dataclasses.replace(self._started, nodes=())

    def continue_after_gate(self, nodes: Mapping[str, str]) -> None:
        """The same after an op on several devices that a gate may skip, by device."""
        self._before_on.update(nodes)
        # A skipped op never starts, but the one before it does.
        self._started = self._started_before
        self._free = self._free_before

    def reduce_all(
        self,
        name: str,
        flat: FlatGroup,
        operands: Mapping[str, Tensor],
        merge_op: str,
        dtype: tf.DType,
        algorithm: str,
    ) -> dict[str, Ref]:
        """Emits the next op: a reduction over all replicas of the job."""
        emit = self._emit_ended
        if self._group is None:
            emit = self._emit_free
        elif algorithm == "nccl":
            emit = self._emit_started
        hint = "ring" if algorithm == "ring" else "nccl"
        attrs = {"T": dtype, "communication_hint": hint, **reduce_attrs(merge_op)}
        keys = {
            "group_size": flat.size,
            "group_key": flat.key,
            "instance_key": next(flat.keys),
        }
        return emit(name, operands, attrs, keys)

    def _emit_free(
        self,
        name: str,
        operands: Mapping[str, Tensor],
        attrs: dict[str, Any],
        keys: Mapping[str, int],
    ) -> dict[str, Ref]:
        """Emits a reduction in one process that waits for batches only."""
        found = self._emit_parts(name, operands, attrs, keys, lambda _device: ())
        self._free_before = self._free
        self._free = [*self._free, *(ref.node for ref in found.values())]
        return found

    def _emit_ended(
        self,
        name: str,
        operands: Mapping[str, Tensor],
        attrs: dict[str, Any],
        keys: Mapping[str, int],
    ) -> dict[str, Ref]:
        """Emits a reduction that waits for the end of its predecessor."""
        found = self._emit_parts(name, operands, attrs, keys, self._before_of)
        self._before_on.update({device: ref.node for device, ref in found.items()})
        return found

    def _emit_started(
        self,
        name: str,
        operands: Mapping[str, Tensor],
        attrs: dict[str, Any],
        keys: Mapping[str, int],
    ) -> dict[str, Ref]:
        """Emits a reduction that waits for the start of its predecessor.

        Only the first version of the op can: its ``wait_for`` names other instances.
        """
        fixed = {
            **{name: attrs[name] for name in ("T", "communication_hint", "merge_op")},
            "final_op": "Id",
            **keys,
            "subdiv_offsets": [0],
            "wait_for": list(self._started.keys),
            "timeout_seconds": 0.0,
        }
        found = {
            device: self._emit.add(
                f"{name}_{place}",
                "CollectiveReduce",
                [ref],
                device,
                "data:0",
                fixed,
                self._before_of(device),
            )
            for place, (device, ref) in enumerate(operands.items())
        }
        self._started_before = self._started
        self._started = _Started(
            keys=(keys["instance_key"],),
            nodes=tuple(ref.node for ref in found.values()),
        )
        return found

    def _emit_parts(
        self,
        name: str,
        operands: Mapping[str, Tensor],
        attrs: dict[str, Any],
        keys: Mapping[str, int],
        before_of: Callable[[str], Sequence[str]],
    ) -> dict[str, Ref]:
        """Emits what each device does of a reduction over all replicas."""
        found = {}
        for place, (device, ref) in enumerate(operands.items()):
            part = f"{name}_{place}"
            found[device] = self._emit.add(
                part,
                "CollectiveReduceV2",
                [ref, *self._keys(part, device, keys)],
                device,
                "data:0",
                attrs,
                before_of(device),
            )
        return found

    def _before_of(self, device: str) -> Sequence[str]:
        before = self._before_on.get(device)
        return self._before if before is None else [before]

    def add(
        self,
        name: str,
        op: str,
        data: Sequence[Tensor],
        dtype: tf.DType,
        device: str,
        attrs: dict[str, Any],
        last_inputs: Sequence[Tensor] = (),
        key_offset: Ref | None = None,
    ) -> Ref:
        """Emits the next op."""
        assert self._group is not None
        num_instances = 1 if key_offset is None else NUM_LENGTHS
        cpu = devices.cpu_of(device)
        keys = {
            "group_size": self._group.num_workers,
            "group_key": place_group_key(device),
            "instance_key": self._group.keys.draw(num_instances),
        }
        size, group, instance = self._keys(name, cpu, keys)
        if key_offset is not None:
            both, attrs_of_sum = [instance, key_offset], {"T": tf.int32}
            instance = self._emit.add(
                f"{name}/own_key", "AddV2", both, cpu, "z:0", attrs_of_sum
            )
        ref = self._emit.add(
            name,
            op,
            [*data, size, group, instance, *last_inputs],
            device,
            "data:0",
            {
                "T": dtype,
                "communication_hint": self._hint(dtype, device),
                **attrs,
            },
            [*self._before_on.values(), *self._started.nodes] or self._before,
        )
        self.continue_after(name)
        return ref

    def _hint(self, dtype: tf.DType, device: str) -> str:
        if not devices.is_gpu(device) or self._has_virtual_gpus:
            return "ring"
        return "nccl" if dtype in NCCL_DTYPES else "ring"

    def _keys(self, name: str, device: str, keys: Mapping[str, int]) -> list[Ref]:
        return [
            self._emit.const(f"{name}/{what}", np.int32(value), device)
            for what, value in keys.items()
        ]


def reduce_attrs(merge_op: str) -> dict[str, Any]:
    """Attributes that only reductions have.

    There is no timeout among them: each starts a thread that sleeps until it is over
    (``cluster/liveness/reachability.py``). The caller of the program limits it.
    """
    return {
        "merge_op": merge_op,
        "final_op": "Id",
        "max_subdivs_per_device": -1,
        "is_stateless": False,
        "Nordering_token": 0,
    }


# It uses TensorFlow's own control flow at the level of nodes: each operand passes a
# ``Switch`` on its own device. If the predicate is false, nothing leaves the device,
# and the nodes that follow (sums, transfers, collectives between workers) do not run. A
# ``Merge`` on each device that uses the result ends this: it returns the result, or an
# empty tensor. The predicate is identical on all replicas and workers, so all of them
# skip the same collectives.


class Gate:
    """The condition of one transfer, on all replicas of a program."""

    def __init__(
        self,
        name: str,
        topology: Topology,
        conditions: Sequence[Tensor],
        emit: Emitter,
    ) -> None:
        self._name = name
        self._topology = topology
        self._conditions = conditions
        self._emit = emit
        self._merged: dict[tuple[str, int], Ref] = {}

    def operand(self, replica: int, node: str, ref: Tensor, dtype: tf.DType) -> Tensor:
        """An operand after the gate: nothing if the condition is false."""
        return self._switch(
            f"{self._name}/operand_{replica}_{node}", ref, replica, dtype, "true"
        )

    def results(
        self, refs: Sequence[Tensor], dtype: tf.DType, shape: tf.TensorShape
    ) -> tuple[Ref, ...]:
        """A result by replica, as it is after the gate."""
        # Of the same rank, so that elementwise ops and reductions take it.
        nothing = np.zeros([0] * (shape.rank or 0), dtype.as_numpy_dtype)
        memories = self._topology.memories
        return tuple(
            self._result(ref, memory, dtype, nothing)
            for ref, memory in zip(refs, memories, strict=True)
        )

    def _result(
        self, ref: Tensor, memory: int, dtype: tf.DType, nothing: np.ndarray
    ) -> Ref:
        # Per memory: a result that is merged elsewhere would be sent once more.
        key = str(ref), memory
        if key not in self._merged:
            name = f"{self._name}/result_{len(self._merged)}"
            device = self._topology.replica_devices[memory]
            other = self._nothing(f"{name}/nothing", memory, nothing, device)
            attrs = {"N": 2, "T": dtype}
            self._merged[key] = self._emit.add(
                name, "Merge", [ref, other], device, "output:0", attrs
            )
        return self._merged[key]

    def _nothing(self, name: str, replica: int, value: Any, device: str) -> Ref:
        """A constant, where the condition is false."""
        condition = self._conditions[replica]
        off = self._switch(f"{name}/off", condition, replica, tf.bool, "false")
        # An edge has no side: what follows the identity follows this side only.
        pivot = self._emit.add(
            f"{name}/pivot", "Identity", [off], device, "output:0", {"T": tf.bool}
        )
        attrs = {"dtype": tf.as_dtype(value.dtype), "value": value}
        return self._emit.add(
            name, "Const", [], device, "output:0", attrs, controls=[pivot.node]
        )

    def _switch(
        self, name: str, ref: Tensor, replica: int, dtype: tf.DType, side: str
    ) -> Ref:
        device = self._topology.replica_devices[replica]
        inputs = [ref, self._conditions[replica]]
        port = f"output_{side}:0"
        return self._emit.add(name, "Switch", inputs, device, port, {"T": dtype})
