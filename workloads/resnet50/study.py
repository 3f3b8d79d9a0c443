"""What the harness measures of ResNet-50; imports no TensorFlow until it is built."""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Any

from workloads.spec import (
    EXACT,
    GPU,
    LAPTOP,
    OF_BATCH_NORM,
    SMOKE,
    SYNTHETIC,
    Matching,
    Metric,
    PresetInfo,
    WorkloadInfo,
)
from workloads.study import Study

if TYPE_CHECKING:
    import numpy as np

    from workloads.spec import QualityMetric

INFO = WorkloadInfo(
    name="resnet50",
    version="3",
    example_unit="images",
    description="ResNet-50 image classification with the recipe of Goyal 2017",
    module="workloads.resnet50.study",
    config_module="workloads.resnet50.config",
    metrics_module="workloads.resnet50.study",
    presets=(
        SMOKE,
        dataclasses.replace(LAPTOP, budget="40s"),
        GPU,
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
        options={**EXACT, "batch_norm": "cross_replica"}, remark=OF_BATCH_NORM
    ),
)


def is_in_top(logits: np.ndarray, labels: np.ndarray, *, k: int) -> np.ndarray:
    """Returns whether each label is among the k largest logits, bool [n].

    Classes that tie at the boundary are all among them. Logits that are not finite
    recognise nothing.
    """
    import numpy as np  # --help reads the names of metrics without it

    own = np.take_along_axis(logits, labels[:, np.newaxis], axis=1)
    is_near: np.ndarray = (logits > own).sum(axis=1) < k
    return is_near & np.isfinite(logits).all(axis=1)


METRICS = (
    Metric(
        name="top_1",
        title="Top-1 accuracy",
        unit="ratio",
        protocol="labels that have the largest logit, of the whole held-out split",
        is_higher_better=True,
        of=functools.partial(is_in_top, k=1),
    ),
    Metric(
        name="top_5",
        title="Top-5 accuracy",
        unit="ratio",
        protocol="labels among the five largest logits, of the whole held-out split",
        is_higher_better=True,
        of=functools.partial(is_in_top, k=5),
    ),
)


def evaluate(training: Any) -> tuple[QualityMetric, ...]:
    """Measures all ``METRICS`` on the whole held-out split."""
    from workloads import quality

    source = training.source
    found = quality.of_examples(METRICS, training.predictions())
    num_examples = found[0].num_examples
    expected = source.num_evaluation_examples
    if num_examples != expected:
        raise RuntimeError(
            f"evaluation counted {num_examples} examples of {source.name!r}, "
            f"but its {source.evaluation_split!r} split has {expected}"
        )
    return found


def flops(training: Any) -> int:
    """Returns the floating-point operations of one image in a training step."""
    from workloads.resnet50 import model

    config = training.config
    return model.training_flops(
        image_size=config.image_size,
        num_classes=config.num_classes,
        version=config.version,
    )


WORKLOAD = Study(INFO, train="workloads.resnet50.train", evaluate=evaluate, flops=flops)
