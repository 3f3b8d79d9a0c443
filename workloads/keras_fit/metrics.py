"""The metrics of ``fit``: those of image classification, without TensorFlow."""

from __future__ import annotations

from workloads.resnet50.config import METRICS

__all__ = ["METRICS"]
