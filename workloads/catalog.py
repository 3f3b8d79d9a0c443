"""Names and facts of the workloads, readable without TensorFlow."""

from __future__ import annotations

import dataclasses
import importlib
from typing import TYPE_CHECKING, Any

from workloads.spec import Matching, PresetInfo, WorkloadInfo

if TYPE_CHECKING:
    from collections.abc import Mapping

    from workloads.spec import Metric

SYNTHETIC = "synthetic"
"""Random data of the right shapes: isolates compute, and has nothing to learn."""

# Rounding in 16 bits, or of XLA, is larger than what a match has to see.
_EXACT = {"compute_dtype": "float32", "jit": "off", "tf32": False}
_IMAGES = "batch normalization over the global batch"


# On GPUs every variable has a copy per device, and looking for writes outside the steps
# reads all of them twice in every dispatch. No workload writes any.
_GPU_OPTIONS = {"external_writes": "never"}

# Of both workloads that train residual networks, so that their rates can be compared.
_SMOKE = PresetInfo(
    name="smoke",
    description="seconds, for tests: 32 px",
    data="digits",
    per_replica_batch_size=4,
    num_warmup_steps=2,
    num_measured_steps=4,
    num_evaluations=2,
)
_LAPTOP = PresetInfo(
    name="laptop",
    description="minutes per sweep on CPU cores: 64 px",
    data="digits",
    per_replica_batch_size=8,
    num_warmup_steps=3,
    num_measured_steps=16,
)
_GPU = PresetInfo(
    name="gpu",
    description="GPUs such as H100: 224 px, bfloat16, synthetic data",
    data=SYNTHETIC,
    per_replica_batch_size=256,
    num_warmup_steps=20,
    num_measured_steps=100,
    options=_GPU_OPTIONS,
)

WORKLOADS: dict[str, WorkloadInfo] = {
    info.name: info
    for info in (
        WorkloadInfo(
            name="resnet50",
            version="3",
            example_unit="images",
            description="ResNet-50 image classification with the recipe of Goyal 2017",
            module="workloads.resnet50.workload",
            config_module="workloads.resnet50.config",
            metrics_module="workloads.resnet50.config",
            presets=(
                _SMOKE,
                dataclasses.replace(_LAPTOP, budget="40s"),
                _GPU,
                PresetInfo(
                    name="paper",
                    description="the published hyperparameters: 224 px, ImageNet",
                    data="imagenet2012",
                    per_replica_batch_size=32,
                    num_warmup_steps=20,
                    num_measured_steps=100,
                ),
            ),
            default_preset="laptop",
            builtin_data=("digits", SYNTHETIC),
            matching=Matching(
                options={**_EXACT, "batch_norm": "cross_replica"},
                remark=_IMAGES,
            ),
        ),
        WorkloadInfo(
            name="sngan",
            version="3",
            example_unit="images",
            description="class-conditional SN-GAN with projection discriminator, FID",
            module="workloads.sngan.workload",
            config_module="workloads.sngan.config",
            metrics_module="workloads.sngan.config",
            presets=(
                PresetInfo(
                    name="smoke",
                    description="seconds, for tests: 16 px, 8 channels",
                    data="digits",
                    per_replica_batch_size=16,
                    num_warmup_steps=2,
                    num_measured_steps=4,
                ),
                PresetInfo(
                    name="laptop",
                    description="minutes per sweep on CPU cores: 16 px, 32 channels",
                    data="digits",
                    per_replica_batch_size=64,
                    num_warmup_steps=4,
                    num_measured_steps=30,
                    budget="150s",
                ),
                PresetInfo(
                    name="gpu",
                    description="GPUs such as H100: 128 px, synthetic data",
                    data=SYNTHETIC,
                    per_replica_batch_size=64,
                    num_warmup_steps=20,
                    num_measured_steps=100,
                    options=_GPU_OPTIONS,
                ),
                PresetInfo(
                    name="paper",
                    description="the published hyperparameters: 128 px, ImageNet",
                    data="imagenet2012",
                    per_replica_batch_size=16,
                    num_warmup_steps=20,
                    num_measured_steps=100,
                ),
            ),
            default_preset="laptop",
            builtin_data=("digits", SYNTHETIC),
            matching=Matching(
                options={**_EXACT, "batch_norm": "cross_replica"},
                remark=f"{_IMAGES}, and noise by position in it",
            ),
            draws_random_numbers=True,
        ),
        WorkloadInfo(
            name="d4pg",
            version="1",
            example_unit="transitions",
            description="D4PG on the DeepMind Control Suite: actors, replay, learner",
            module="workloads.d4pg.workload",
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
                    options=_GPU_OPTIONS,
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
            data_module="workloads.d4pg.environment.control",
            machine_module="workloads.d4pg.requirements",
            syncs_because="actors and replay use the results of each learner step",
            matching=Matching(
                options={"jit": "off", "tf32": False},
                data=SYNTHETIC,
                remark="synthetic transitions, since actors do not repeat themselves",
            ),
        ),
        WorkloadInfo(
            name="keras_fit",
            version="1",
            example_unit="images",
            description="fit of Keras: ResNet50 of keras.applications, or any model",
            module="workloads.keras_fit.workload",
            config_module="workloads.keras_fit.config",
            metrics_module="workloads.keras_fit.metrics",
            presets=(
                _SMOKE,
                _LAPTOP,
                _GPU,
            ),
            default_preset="laptop",
            builtin_data=("digits", SYNTHETIC),
            needs=("fit",),
            no_update_because="Keras updates inside fit",
            matching=Matching(
                options={
                    **_EXACT,
                    "compute_dtype": "float64",
                    "batch_norm": "cross_replica",
                },
                remark=f"{_IMAGES}, in float64, without dropout",
            ),
            # Deep networks of Keras do at their initial weights, to percents.
            amplifies_rounding=True,
        ),
        WorkloadInfo(
            name="transformer",
            version="1",
            example_unit="tokens",
            description="a decoder-only Transformer: a language model of bytes",
            module="workloads.transformer.workload",
            config_module="workloads.transformer.config",
            metrics_module="workloads.transformer.config",
            presets=(
                PresetInfo(
                    name="smoke",
                    description="seconds, for tests: 1 M parameters",
                    data="tensorflow_source",
                    per_replica_batch_size=8 * 64,
                    num_warmup_steps=2,
                    num_measured_steps=10,
                ),
                PresetInfo(
                    name="laptop",
                    description="minutes per sweep on CPU cores: 10 M parameters",
                    data="tensorflow_source",
                    per_replica_batch_size=8 * 128,
                    num_warmup_steps=2,
                    num_measured_steps=10,
                    budget="120s",
                ),
                PresetInfo(
                    name="gpu",
                    description="GPUs such as H100: 350 M parameters, synthetic data",
                    data=SYNTHETIC,
                    per_replica_batch_size=16 * 1024,
                    num_warmup_steps=20,
                    num_measured_steps=100,
                    options=_GPU_OPTIONS,
                ),
                PresetInfo(
                    name="paper",
                    description="the size of GPipe: 6 B parameters; more than a device",
                    data="tensorflow_source",
                    per_replica_batch_size=32 * 1024,
                    num_warmup_steps=20,
                    num_measured_steps=100,
                ),
            ),
            default_preset="laptop",
            builtin_data=("tensorflow_source", SYNTHETIC),
            other_data="no other",
            data_module="workloads.data.text_names",
            batch_divisors=("sequence_length", "num_microbatches"),
            draws_with="dropout",
            memory_module="workloads.transformer.config",
            matching=Matching(
                options={**_EXACT, "dropout": 0.0},
                remark="without dropout",
                of_pipelines=(
                    "pipeline_stages",
                    "num_microbatches",
                    "schedule",
                    "recompute",
                ),
            ),
        ),
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
    from workloads.data import folders

    return folders.absolute(name) if folders.is_folder(name) else name


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
