"""Settings that workloads share, and their limits; imports no TensorFlow.

A field that is made by ``limited`` says what is allowed, and is checked when a
configuration is created.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from workloads.options import (
    EXTERNAL_WRITES,
    INPUT_DTYPES,
    check_choice,
    check_conv_layout,
    check_jit,
    check_range,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

STATISTICS = ("local", "cross_replica")
_CHOICES = "choices"


def limited(default: Any, *, choices: Sequence[Any] = (), **limits: float) -> Any:
    """Declares a field with what is allowed.

    Args:
      default: Its value unless it is given.
      choices: All allowed values; empty for a range.
      **limits: ``low``, ``below`` and ``high``, as for ``check_range``.
    """
    allowed = {_CHOICES: choices} if choices else limits
    return dataclasses.field(default=default, metadata=allowed)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TrainingConfig:
    """Settings of computation of all workloads.

    Attributes:
      jit: ``off``, or ``compute``: XLA compiles forward and backward pass.
      tf32: Whether float32 products and convolutions use TF32 where GPUs have it.
      external_writes: ``never`` promises the replicator that no variable is written
        outside its steps, so that it need not look.
    """

    jit: str = "off"
    tf32: bool = True
    external_writes: str = limited("detect", choices=EXTERNAL_WRITES)

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if _CHOICES in field.metadata:
                check_choice(field.name, value, field.metadata[_CHOICES])
            elif field.metadata:
                check_range(field.name, value, **field.metadata)
        check_jit(self.jit)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ImageConfig(TrainingConfig):
    """Settings of workloads on labelled images.

    Attributes:
      image_size: Height and width of images, in pixels.
      num_classes: Classes of the network, whatever the data set has.
      compute_dtype: ``float32``, or 16 bits with float32 variables.
      conv_layout: ``nhwc`` keeps the layout of the model in convolutions; ``auto`` lets
        TensorFlow's optimizer convert them to NCHW, as it does on GPUs in float32.
      batch_norm: ``local`` normalizes by each replica's own batch, as published;
        ``cross_replica`` by the global batch.
      shuffle_buffer_size: Examples in the shuffle buffer of one input pipeline.
      num_input_threads: Threads of one input pipeline, on GPUs per GPU that it feeds.
      input_dtype: ``float32``, or ``uint8``: pixels are sent to devices as they are
        stored, and normalised there.
      cache_data: Whether encoded images stay in memory after the first epoch.
    """

    image_size: int
    num_classes: int = limited(10, low=1)
    compute_dtype: str = "float32"
    conv_layout: str = "auto"
    batch_norm: str = limited("local", choices=STATISTICS)
    shuffle_buffer_size: int = limited(16_384, low=1)
    num_input_threads: int = limited(4, low=1)
    input_dtype: str = limited("float32", choices=INPUT_DTYPES)
    cache_data: bool = False

    def __post_init__(self) -> None:
        # Of a class with slots, super() finds another class.
        TrainingConfig.__post_init__(self)
        check_jit(self.jit, self.batch_norm)
        check_conv_layout(self.conv_layout, self.jit)
