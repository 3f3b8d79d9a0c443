"""What the harness measures of SN-GAN; imports no TensorFlow until it is built."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from workloads.spec import (
    EXACT,
    GPU_OPTIONS,
    OF_BATCH_NORM,
    SYNTHETIC,
    Matching,
    Metric,
    PresetInfo,
    WorkloadInfo,
)
from workloads.study import Study

if TYPE_CHECKING:
    import numpy as np

INFO = WorkloadInfo(
    name="sngan",
    version="3",
    example_unit="images",
    description="class-conditional SN-GAN with projection discriminator, FID",
    module="workloads.sngan.study",
    config_module="workloads.sngan.config",
    metrics_module="workloads.sngan.study",
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
            options=GPU_OPTIONS,
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
        options={**EXACT, "batch_norm": "cross_replica"},
        remark=f"{OF_BATCH_NORM}, and noise by position in it",
    ),
    draws_random_numbers=True,
)

_GENERATED = "num_metric_examples generated images"


def is_recognised(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Returns whether the largest logit is that of the wanted class, bool [n]."""
    is_right: np.ndarray = logits.argmax(axis=-1) == labels
    return is_right


SCORES = (
    Metric(
        name="fid",
        title="FID",
        unit="1",
        protocol=f"{_GENERATED} against the training images",
        is_higher_better=False,
    ),
    Metric(
        name="kid",
        title="KID",
        unit="1",
        protocol=f"{_GENERATED} against the training images",
        is_higher_better=False,
    ),
    Metric(
        name="inception_score",
        title="Inception Score",
        unit="1",
        protocol=_GENERATED,
        is_higher_better=True,
    ),
)
"""Computed by ``workloads/metrics``, which has one more: ``fid_infinity``."""

CLASSIFIED = (
    Metric(
        name="recognised",
        title="Recognised",
        unit="ratio",
        protocol=f"classifier of digits gives the wanted class, of {_GENERATED}",
        is_higher_better=True,
        of=is_recognised,
    ),
)
"""Of the classifier of digits, which was trained on the classes of the data."""

METRICS = SCORES + CLASSIFIED


def flops(training: Any) -> int:
    """Returns the floating-point operations of one image in a training step."""
    from workloads.sngan import networks

    return networks.training_flops(training.config)


def prepare(data: str) -> None:
    """Writes the embedded digits and trains their classifier, once per machine."""
    from workloads.data.names import DIGITS
    from workloads.data.sources import open_source
    from workloads.metrics.digits import prepare_digits

    open_source(data)
    if data == DIGITS:
        prepare_digits()


WORKLOAD = Study(
    INFO,
    train="workloads.sngan.train",
    flops=flops,
    prepare=prepare,
    program="workloads.sngan.program:SNGANProgram",
)
