"""Runs a step of a workload on one GPU, in float32 and as its preset for GPUs has it.

    python -m workloads.warm_up WORKLOAD

Nothing is measured: on a GPU that TensorFlow has no machine code for, the driver
compiles each kernel when it is first used, and keeps it.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from workloads import catalog

if TYPE_CHECKING:
    from collections.abc import Sequence

_PER_REPLICA_BATCH_SIZE = 8  # kernels are the same for any
_TYPES = ("float32", None)


def warm_up(
    workload: str, preset: str = "gpu", dtypes: Sequence[str | None] = _TYPES
) -> None:
    """Builds and runs each program twice: step 2 reads what step 1 wrote."""
    import tensorflow as tf

    import replicator

    for gpu in tf.config.list_physical_devices("GPU"):
        tf.config.experimental.set_memory_growth(gpu, enable=True)
    info = catalog.WORKLOADS[workload]
    info.prepare(data=catalog.SYNTHETIC)
    if not hasattr(info.make_config(preset, {}), "compute_dtype"):
        dtypes = (None,)  # it has one number type
    for dtype in dtypes:
        program = info.build(
            replicator.create("in_graph", num_replicas=1),
            preset=preset,
            data=catalog.SYNTHETIC,
            per_replica_batch_size=_PER_REPLICA_BATCH_SIZE,
            seed=0,
            options={} if dtype is None else {"compute_dtype": dtype},
        )
        for _ in range(2):
            program.run(1)
        del program
        tf.keras.backend.clear_session()


if __name__ == "__main__":
    warm_up(*sys.argv[1:])
