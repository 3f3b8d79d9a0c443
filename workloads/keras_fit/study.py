"""What the harness measures of ``fit``; imports no TensorFlow until it is built."""

from __future__ import annotations

from typing import Any

from workloads.resnet50.study import METRICS, evaluate
from workloads.spec import (
    EXACT,
    GPU,
    LAPTOP,
    OF_BATCH_NORM,
    SMOKE,
    SYNTHETIC,
    Matching,
    WorkloadInfo,
)
from workloads.study import Study

__all__ = ["INFO", "METRICS", "WORKLOAD", "evaluate"]

INFO = WorkloadInfo(
    name="keras_fit",
    version="1",
    example_unit="images",
    description="fit of Keras: ResNet50 of keras.applications, or any model",
    module="workloads.keras_fit.study",
    config_module="workloads.keras_fit.config",
    metrics_module="workloads.keras_fit.study",
    presets=(
        SMOKE,
        LAPTOP,
        GPU,
    ),
    default_preset="laptop",
    builtin_data=("digits", SYNTHETIC),
    needs=("fit",),
    no_update_because="Keras updates inside fit",
    matching=Matching(
        options={
            **EXACT,
            "compute_dtype": "float64",
            "batch_norm": "cross_replica",
        },
        remark=f"{OF_BATCH_NORM}, in float64, without dropout",
    ),
    # Deep networks of Keras do at their initial weights, to percents.
    amplifies_rounding=True,
)


def flops(training: Any) -> int | None:
    """Returns the floating-point operations of one image in a training step."""
    from workloads.keras_fit import models

    return models.training_flops(training.model)


WORKLOAD = Study(
    INFO,
    train="workloads.keras_fit.train",
    flops=flops,
    evaluate=evaluate,
    program="workloads.keras_fit.loop_program:KerasProgram",
)
