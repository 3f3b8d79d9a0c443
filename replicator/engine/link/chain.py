"""Chain: the collective ops of one program, of which each waits for the one before.

All workers emit the same ops in the same order, so that two of them can never wait for
each other in two collectives.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from replicator.engine.link.any_size import NUM_LENGTHS
from replicator.placement import devices as device_lib
from replicator.placement.worker_group import CPU_GROUP_KEY

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TypeAlias

    from replicator.engine.graph.body import Ref
    from replicator.engine.graph.emitter import Emitter
    from replicator.placement.worker_group import Group

    Tensor: TypeAlias = Ref | str


class Chain:
    """Emits TensorFlow's collective ops, one behind the other."""

    def __init__(
        self, group: Group, emit: Emitter, first_controls: Sequence[str]
    ) -> None:
        """Starts a chain.

        Args:
          group: The workers.
          emit: Where nodes go.
          first_controls: Nodes or arguments that the first op waits for.
        """
        self._group = group
        self._emit = emit
        self._before = list(first_controls)

    def continue_after(self, node: str) -> None:
        """Lets the next op wait for a node instead of the last one."""
        self._before = [node]

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
          last_inputs: Its inputs behind the keys.
          key_offset: Which of the instances of an ``any_size`` transfer this is.

        Returns:
          Its only output.
        """
        num_instances = 1 if key_offset is None else NUM_LENGTHS
        cpu = device_lib.cpu_of(device)
        size, group, instance = [
            self._emit.const(f"{name}/{what}", np.int32(value), cpu)
            for what, value in (
                ("group_size", self._group.num_workers),
                ("group_key", _group_key(device)),
                ("instance_key", self._group.keys.draw(num_instances)),
            )
        ]
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
                "communication_hint": "nccl" if device_lib.is_gpu(device) else "ring",
                **attrs,
            },
            self._before,
        )
        self.continue_after(name)
        return ref


def _group_key(device: str) -> int:
    """Devices of one place in all workers form a group."""
    spec = tf.DeviceSpec.from_string(device)
    kind = 0 if device_lib.is_cpu(device) else 1
    return CPU_GROUP_KEY + 2 * int(spec.device_index or 0) + kind
