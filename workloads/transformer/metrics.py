"""The metrics of the language model; without TensorFlow."""

from __future__ import annotations

from workloads.metric import Metric

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
