"""Names and facts of the workloads, readable without TensorFlow.

    python -m workloads.catalog WORKLOAD

runs steps of one on a GPU, and measures nothing: where TensorFlow has no machine code
for a GPU, the driver compiles each kernel when it is first used, and keeps it.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from workloads.d4pg import study as d4pg
from workloads.keras_fit import study as keras_fit
from workloads.resnet50 import study as resnet50
from workloads.sngan import study as sngan
from workloads.spec import SYNTHETIC, PresetInfo, WorkloadInfo
from workloads.transformer import study as transformer

if TYPE_CHECKING:
    from replicator.backends.sharding import Held

__all__ = ["SYNTHETIC", "WORKLOADS", "PresetInfo", "WorkloadInfo"]

WORKLOADS: dict[str, WorkloadInfo] = {
    info.name: info
    for info in (
        resnet50.WORKLOAD,
        sngan.WORKLOAD,
        d4pg.WORKLOAD,
        keras_fit.WORKLOAD,
        transformer.WORKLOAD,
    )
}


def check_data(workload: str, name: str) -> None:
    """Raises unless ``workload`` can read the data ``name`` here; writes nothing."""
    info = WORKLOADS[workload]
    if name in info.builtin_data:
        return
    importlib.import_module(info.data_module).check(name)


def absolute_data(name: str) -> str:
    """Returns the name of a data set with absolute paths."""
    from workloads.data import names

    return names.absolute(name)


def make_config(workload: str, preset: str, options: Mapping[str, Any]) -> Any:
    """Returns the configuration of a preset with ``options`` in place of its own."""
    return WORKLOADS[workload].make_config(preset, options)


def held(
    workload: str, preset: str, options: Mapping[str, Any], *, num_replicas: int
) -> list[Held]:
    """Returns what each replica owns on each of its devices, in bytes."""
    module = importlib.import_module(WORKLOADS[workload].memory_module)
    return module.held(make_config(workload, preset, options), num_replicas)


def memory_table(
    workload: str, preset: str, options: Mapping[str, Any], *, num_replicas: int
) -> list[str]:
    """What a device keeps by level of sharding, as ``Replicator.summary`` does."""
    from replicator.backends import sharding

    owned = held(workload, preset, options, num_replicas=num_replicas)
    is_split = any(own.place for own in owned)
    refused = sharding.OF_SPLIT_REPLICAS if is_split else ""
    return sharding.table(owned, None, refused=refused)


def check_machine(
    workload: str, preset: str, options: Mapping[str, Any], **planned: Any
) -> None:
    """Raises unless this machine can run ``workload`` as it is planned."""
    if name := WORKLOADS[workload].machine_module:
        config = make_config(workload, preset, options)
        importlib.import_module(name).check(config, **planned)


_WARM_UP_BATCH_SIZE = 8  # kernels are the same for any


def warm_up(
    workload: str,
    preset: str = "gpu",
    dtypes: Sequence[str | None] = ("float32", None),  # None: that of the preset
) -> None:
    """Builds and runs each program twice: step 2 reads what step 1 wrote."""
    import tensorflow as tf

    import replicator

    for gpu in tf.config.list_physical_devices("GPU"):
        tf.config.experimental.set_memory_growth(gpu, enable=True)
    info = WORKLOADS[workload]
    info.prepare(data=SYNTHETIC)
    if not hasattr(info.make_config(preset, {}), "compute_dtype"):
        dtypes = (None,)  # it has one number type
    for dtype in dtypes:
        program = info.build(
            replicator.create("in_graph", num_replicas=1),
            preset=preset,
            data=SYNTHETIC,
            per_replica_batch_size=_WARM_UP_BATCH_SIZE,
            seed=0,
            options={} if dtype is None else {"compute_dtype": dtype},
        )
        for _ in range(2):
            program.run(1)
        del program
        tf.keras.backend.clear_session()


if __name__ == "__main__":
    warm_up(*sys.argv[1:])
