"""What the harness measures of the language model; imports no TensorFlow by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from workloads.spec import (
    EXACT,
    GPU_OPTIONS,
    SYNTHETIC,
    Matching,
    Metric,
    PresetInfo,
    WorkloadInfo,
)
from workloads.study import Study

if TYPE_CHECKING:
    from workloads.spec import QualityMetric, SanityCheck

INFO = WorkloadInfo(
    name="transformer",
    version="1",
    example_unit="tokens",
    description="a decoder-only Transformer: a language model of bytes",
    module="workloads.transformer.study",
    config_module="workloads.transformer.config",
    metrics_module="workloads.transformer.study",
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
            options=GPU_OPTIONS,
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
    data_module="workloads.data.text_files",
    batch_divisors=("sequence_length", "num_microbatches"),
    draws_with="dropout",
    memory_module="workloads.transformer.config",
    matching=Matching(
        options={**EXACT, "dropout": 0.0},
        remark="without dropout",
        of_pipelines=(
            "pipeline_stages",
            "num_microbatches",
            "schedule",
            "recompute",
        ),
    ),
)

METRICS = (
    Metric(
        name="bits_per_byte",
        title="Bits per byte",
        unit="bit",
        protocol="num_evaluation_examples sequences of held-out files, each byte from "
        "those before it in its sequence; n is files",
        is_higher_better=False,
    ),
)


def evaluate(training: Any) -> tuple[QualityMetric, ...]:
    """Measures bits per byte; bytes of a file are alike, so n counts files."""
    from workloads import quality

    bits, files = training.bits_per_byte()
    (metric,) = METRICS
    return (quality.mean_over_groups(metric, bits, files),)


def flops(training: Any) -> int:
    """Returns the floating-point operations of one token in a training step."""
    from workloads.transformer.config import training_flops

    return training_flops(training.config)


def prepare(data: str) -> None:
    """Writes the text once per machine."""
    from workloads.data import text

    text.open_source(data)


def check(training: Any) -> SanityCheck:
    """Says which text was read."""
    from workloads.data import text

    return text.check(training.source)


WORKLOAD = Study(
    INFO,
    train="workloads.transformer.train",
    flops=flops,
    evaluate=evaluate,
    prepare=prepare,
    check=check,
)
