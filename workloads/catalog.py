"""Names and facts of the workloads, readable without TensorFlow."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

from workloads import spec
from workloads.keras_fit import study as keras_fit
from workloads.resnet50 import study as resnet50
from workloads.sngan import study as sngan
from workloads.spec import GPU_OPTIONS, Matching, PresetInfo, Workload, WorkloadInfo
from workloads.transformer import study as transformer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from workloads.spec import Metric

SYNTHETIC: Final = spec.SYNTHETIC

WORKLOADS: dict[str, WorkloadInfo] = {
    info.name: info
    for info in (
        resnet50.INFO,
        sngan.INFO,
        WorkloadInfo(
            name="d4pg",
            version="1",
            example_unit="transitions",
            description="D4PG on the DeepMind Control Suite: actors, replay, learner",
            module="workloads.d4pg.program",
            config_module="workloads.d4pg.config",
            metrics_module="workloads.d4pg.metrics",
            presets=(
                PresetInfo(
                    name="smoke",
                    description="seconds, for tests: state, 32 units",
                    data="cartpole:swingup",
                    per_replica_batch_size=32,
                    num_warmup_steps=5,
                    num_measured_steps=20,
                    num_evaluations=2,
                ),
                PresetInfo(
                    name="laptop",
                    description="minutes per sweep on CPU cores: state, 256 units",
                    data="cartpole:swingup",
                    per_replica_batch_size=256,
                    num_warmup_steps=50,
                    num_measured_steps=400,
                    budget="120s",
                    num_evaluations=6,
                ),
                PresetInfo(
                    name="laptop_pixels",
                    description="half an hour per sweep on CPUs: pixels, 16 filters",
                    data="cartpole:balance",
                    per_replica_batch_size=64,
                    num_warmup_steps=5,
                    num_measured_steps=50,
                    budget="500s",
                    num_evaluations=6,
                ),
                PresetInfo(
                    name="gpu",
                    description="GPUs such as H100: pixels, synthetic transitions",
                    data=SYNTHETIC,
                    per_replica_batch_size=256,
                    num_warmup_steps=50,
                    num_measured_steps=200,
                    options=GPU_OPTIONS,
                ),
                PresetInfo(
                    name="paper",
                    description="the published hyperparameters: pixels, 32 actors",
                    data="walker:walk",
                    per_replica_batch_size=256,
                    num_warmup_steps=50,
                    num_measured_steps=200,
                ),
            ),
            default_preset="laptop",
            builtin_data=("cartpole:swingup", "cartpole:balance", SYNTHETIC),
            other_data="another domain:task of the control suite",
            data_module="workloads.d4pg.control",
            machine_module="workloads.d4pg.requirements",
            syncs_because="actors and replay use the results of each learner step",
            matching=Matching(
                options={"jit": "off", "tf32": False},
                data=SYNTHETIC,
                remark="synthetic transitions, since actors do not repeat themselves",
            ),
        ),
        keras_fit.INFO,
        transformer.INFO,
    )
}


def check_data(workload: str, name: str) -> None:
    """Raises unless ``name`` is a data set that ``workload`` can read here.

    Reads names and file listings only: TensorFlow is not imported, nothing is
    downloaded or written.
    """
    info = WORKLOADS[workload]
    if name in info.builtin_data:
        return
    importlib.import_module(info.data_module).check(name)


def absolute_data(name: str) -> str:
    """Returns the name of a data set with absolute paths."""
    from workloads.data import names

    return names.absolute_folder(name) if names.is_folder(name) else name


def make_config(workload: str, preset: str, options: Mapping[str, Any]) -> Any:
    """Returns the configuration of a preset with ``options`` in place of its own."""
    module = importlib.import_module(WORKLOADS[workload].config_module)
    return module.make_config(preset, options)


def memory_table(
    workload: str,
    preset: str,
    options: Mapping[str, Any],
    *,
    num_replicas: int,
) -> list[str]:
    """What a device keeps by level of sharding, as ``Replicator.summary`` does."""
    from replicator.backends import sharding

    module = importlib.import_module(WORKLOADS[workload].memory_module)
    held = module.held(make_config(workload, preset, options), num_replicas)
    is_split = any(own.place for own in held)
    refused = sharding.OF_SPLIT_REPLICAS if is_split else ""
    return sharding.table(held, None, refused=refused)


def metrics_of(workload: str) -> tuple[Metric, ...]:
    """Returns all metrics of a workload, in the order of its reports."""
    module = importlib.import_module(WORKLOADS[workload].metrics_module)
    metrics: tuple[Metric, ...] = module.METRICS
    return metrics


def check_machine(
    workload: str,
    preset: str,
    options: Mapping[str, Any],
    *,
    data: str,
    global_batch_size: int,
    num_workers: int,
) -> None:
    """Raises unless this machine can run ``workload`` as it is planned."""
    name = WORKLOADS[workload].machine_module
    if name:
        module = importlib.import_module(name)
        module.check(
            preset,
            options,
            data=data,
            global_batch_size=global_batch_size,
            num_workers=num_workers,
        )


class CatalogWorkload(Workload):
    """A workload with name, version and unit from the catalogue."""

    def __init__(self, name: str) -> None:
        info = WORKLOADS[name]
        self.name = info.name
        self.version = info.version
        self.example_unit = info.example_unit

    def make_config(self, preset: str, options: Mapping[str, Any]) -> Any:
        """Returns the configuration of a preset with ``options`` in place of its own.

        Raises:
          ValueError: Unknown preset or option, or a value of a wrong type or range.
        """
        return make_config(self.name, preset, options)
