"""Memory: what training keeps of the weights on each device, before it runs.

The same shares as those of ``wrap_optimizer(sharded_update=...)``: whole variables, the
largest first, each to the replica that has the least. Without TensorFlow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import replicator
from replicator.contract.sharding import Held
from workloads.transformer import flops

if TYPE_CHECKING:
    from workloads.transformer.config import TransformerConfig

_FLOAT32 = 4
_OF_ADAM = 2  # the averages of a gradient and of its square


def held(config: TransformerConfig, num_replicas: int) -> list[Held]:
    """Returns what each replica owns on each of its devices, in bytes."""
    parts = flops.variables_of_parts(config)
    cut = replicator.balance_stages(flops.of_parts(config), config.pipeline_stages)
    found = []
    for place, indices in enumerate(cut):
        loads = [0] * num_replicas
        sizes = [size for index in indices for size in parts[index]]
        for size in sorted(sizes, reverse=True):
            loads[loads.index(min(loads))] += _FLOAT32 * size
        found += [Held(load, _OF_ADAM * load, place) for load in loads]
    return found
