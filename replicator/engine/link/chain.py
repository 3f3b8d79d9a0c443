"""Chain: the collective ops of one program, each of which waits for its predecessor.

All workers emit the same ops in the same order, so that two of them can never wait for
each other in two collectives. An op that runs on several devices of this program waits
on each of them for its predecessor there: NCCL must get them in one order everywhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from replicator.engine.link.any_size import NUM_LENGTHS
from replicator.placement import devices as device_lib
from replicator.placement.collective_types import NCCL_DTYPES
from replicator.placement.worker_group import place_group_key

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import TypeAlias

    from replicator.engine.graph.body import Ref
    from replicator.engine.graph.emitter import Emitter
    from replicator.placement.worker_group import FlatGroup, Group

    Tensor: TypeAlias = Ref | str


class Chain:
    """Emits TensorFlow's collective ops, one after the other."""

    def __init__(
        self,
        group: Group | None,
        emit: Emitter,
        first_controls: Sequence[str],
        flat: FlatGroup | None = None,
        *,
        has_virtual_gpus: bool = False,
    ) -> None:
        """Starts a chain.

        Args:
          group: The workers, for ``add``.
          emit: Where nodes go.
          first_controls: Nodes or arguments that the first op waits for.
          flat: The replicas of the job, for ``reduce_all``.
          has_virtual_gpus: Whether two of them may be on one physical GPU.
        """
        self._group = group
        self._flat = flat
        self._has_virtual_gpus = has_virtual_gpus
        self._emit = emit
        # One order for all, although transfers could overlap: TensorFlow starts ops as
        # their inputs come, which differs from worker to worker, and two workers that
        # hold all threads of a ring in different ones wait forever (record 0011).
        self._before = list(first_controls)
        # By device, what replaces that where the last op ran on several devices.
        self._before_on: dict[str, str] = {}

    def continue_after(self, node: str) -> None:
        """Makes the next op wait for a node instead of the last one."""
        self._before = [node]
        self._before_on = {}

    def continue_after_on(self, nodes: Mapping[str, str]) -> None:
        """The same after an op on several devices, by device."""
        self._before_on.update(nodes)

    def reduce_all(
        self,
        name: str,
        operands: Mapping[str, Tensor],
        merge_op: str,
        dtype: tf.DType,
        hint: str,
    ) -> dict[str, Ref]:
        """Emits the next op: a reduction over all replicas of the job.

        Args:
          name: What names of nodes begin with.
          operands: By device, one of each replica of this program.
          merge_op: ``Add``, ``Min`` or ``Max``.
          dtype: Type of the operands.
          hint: ``nccl`` or ``ring``.

        Returns:
          The result by device.
        """
        assert self._flat is not None
        key, instance_key = self._flat.key, next(self._flat.keys)
        results = {}
        for place, (device, ref) in enumerate(operands.items()):
            before = self._before_on.get(device)
            keys = self._keys(
                f"{name}_{place}", device, self._flat.size, key, instance_key
            )
            results[device] = self._emit.add(
                f"{name}_{place}",
                "CollectiveReduceV2",
                [ref, *keys],
                device,
                "data:0",
                {"T": dtype, "communication_hint": hint, **reduce_attrs(merge_op)},
                self._before if before is None else [before],
            )
        self.continue_after_on({device: ref.node for device, ref in results.items()})
        return results

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
        """Emits the next op.

        Args:
          name: Name of the node.
          op: A collective op of TensorFlow.
          data: Its first inputs, before the keys of group and instance.
          dtype: Type of the data.
          device: Where it runs: rings join CPUs, NCCL joins GPUs.
          attrs: Attributes that not all collective ops have.
          last_inputs: Its inputs after the keys.
          key_offset: Which of the instances of an ``any_size`` transfer this is.

        Returns:
          Its only output.
        """
        assert self._group is not None
        num_instances = 1 if key_offset is None else NUM_LENGTHS
        cpu = device_lib.cpu_of(device)
        size, group, instance = self._keys(
            name,
            cpu,
            self._group.num_workers,
            place_group_key(device),
            self._group.keys.draw(num_instances),
        )
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
            [*self._before_on.values()] or self._before,
        )
        self.continue_after(name)
        return ref

    def _hint(self, dtype: tf.DType, device: str) -> str:
        if not device_lib.is_gpu(device) or self._has_virtual_gpus:
            return "ring"
        return "nccl" if dtype in NCCL_DTYPES else "ring"

    def _keys(
        self, name: str, device: str, size: int, key: int, instance_key: int
    ) -> list[Ref]:
        return [
            self._emit.const(f"{name}/{what}", np.int32(value), device)
            for what, value in (
                ("group_size", size),
                ("group_key", key),
                ("instance_key", instance_key),
            )
        ]


def reduce_attrs(merge_op: str) -> dict[str, Any]:
    """Attributes that only reductions have.

    There is no timeout among them: each starts a thread that sleeps until it is over
    (``cluster/liveness/deadline.py``). The caller of the program limits it.
    """
    return {
        "merge_op": merge_op,
        "final_op": "Id",
        "max_subdivs_per_device": -1,
        "is_stateless": False,
        "Nordering_token": 0,
    }
