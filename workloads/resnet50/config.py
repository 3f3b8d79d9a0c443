"""Configuration of ResNet-50: the published recipe and its presets.

The planner imports this module, so it does not import TensorFlow.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from workloads.options import (
    EXTERNAL_WRITES,
    INPUT_DTYPES,
    apply_options,
    check_choice,
    check_conv_layout,
    check_jit,
    check_range,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

VERSIONS = ("v1", "v1.5")
OPTIMIZERS = ("momentum", "lars")
COMPUTE_DTYPES = ("float32", "mixed_bfloat16", "mixed_float16")
STATISTICS = ("local", "cross_replica")
DOWNSAMPLING = 32  # the last feature map is image_size / 32 pixels wide


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ResNet50Config:
    """Settings of computation and training; defaults are the paper's.

    Attributes:
      version: ``v1.5`` strides in the 3x3 convolution of a block (Goyal 2017), ``v1``
        in the first 1x1 (He 2015).
      image_size: Height and width of the network's input, in pixels.
      num_classes: Outputs; 1000 as published, whatever the data set, so that the
        network and its gradients keep the published size.
      compute_dtype: ``float32``, or with float32 variables ``mixed_bfloat16`` or
        ``mixed_float16``, which scales the loss dynamically.
      jit: ``off``, ``compute`` (XLA compiles forward and backward pass) or ``step``
        (also collectives and updates).
      conv_layout: ``nhwc`` keeps the layout of the model in convolutions; ``auto`` lets
        TensorFlow's optimizer convert them to NCHW, as it does on GPUs in float32.
      tf32: Whether float32 products and convolutions use TF32 where GPUs have it.
      external_writes: ``never`` promises the replicator that no variable is written
        outside its steps, so that it need not look.
      batch_norm: ``local`` normalizes by each replica's own batch, as published;
        ``cross_replica`` by the global batch.
      zero_gamma: Whether the last batch norm of a block starts at zero.
      learning_rate_per_256: Learning rate at a global batch of 256 examples; it grows
        in proportion to the global batch.
      lr_warmup_epochs: Length of the ramp when the global batch is above 256.
      optimizer: ``momentum`` (Goyal 2017), or ``lars`` with its own schedule, for
        global batches of 16,384 and more.
      num_epochs: Length of the whole training: the learning rate of ``momentum`` falls
        to a tenth after 3/9, 6/9 and 8/9 of it, that of ``lars`` to zero at its end.
      momentum: Heavy-ball momentum (no Nesterov step).
      weight_decay: L2 factor on kernels; not on biases nor batch-norm parameters.
      label_smoothing: Fraction of the label that is spread over all classes.
      shuffle_buffer_size: Examples in the shuffle buffer of one input pipeline.
      num_input_threads: Threads of one input pipeline, on GPUs per GPU that it feeds.
      input_dtype: ``float32``, or ``uint8``: pixels are sent to devices as they are
        stored, and normalised there.
      cache_data: Whether encoded images stay in memory after the first epoch.
      evaluation_batch_size: Examples per evaluation step, on one device.
    """

    version: str = "v1.5"
    image_size: int = 224
    num_classes: int = 1000
    compute_dtype: str = "float32"
    jit: str = "off"
    conv_layout: str = "auto"
    tf32: bool = True
    external_writes: str = "detect"
    batch_norm: str = "local"
    zero_gamma: bool = True
    learning_rate_per_256: float = 0.1
    lr_warmup_epochs: float = 5.0
    optimizer: str = "momentum"
    num_epochs: float = 90.0
    momentum: float = 0.9
    weight_decay: float = 1e-4
    label_smoothing: float = 0.0
    shuffle_buffer_size: int = 16384
    num_input_threads: int = 8
    input_dtype: str = "float32"
    cache_data: bool = False
    evaluation_batch_size: int = 128

    def __post_init__(self) -> None:
        check_choice("version", self.version, VERSIONS)
        check_choice("optimizer", self.optimizer, OPTIMIZERS)
        check_range("num_epochs", self.num_epochs, low=1.0)
        check_choice("compute_dtype", self.compute_dtype, COMPUTE_DTYPES)
        check_choice("batch_norm", self.batch_norm, STATISTICS)
        check_jit(self.jit, self.batch_norm)
        check_choice("external_writes", self.external_writes, EXTERNAL_WRITES)
        check_conv_layout(self.conv_layout, self.jit)
        check_choice("input_dtype", self.input_dtype, INPUT_DTYPES)
        if self.image_size < DOWNSAMPLING or self.image_size % DOWNSAMPLING:
            raise ValueError(
                f"option image_size={self.image_size!r} must be a multiple of "
                f"{DOWNSAMPLING}, because the network halves it five times: use "
                "32, 64 or 224, for example"
            )
        for name in (
            "num_classes",
            "shuffle_buffer_size",
            "num_input_threads",
            "evaluation_batch_size",
        ):
            check_range(name, getattr(self, name), low=1)
        check_range("learning_rate_per_256", self.learning_rate_per_256, low=0.0)
        check_range("lr_warmup_epochs", self.lr_warmup_epochs, low=0.0)
        check_range("weight_decay", self.weight_decay, low=0.0)
        for name in ("momentum", "label_smoothing"):
            check_range(name, getattr(self, name), low=0.0, below=1.0)


def make_config(preset: str, options: Mapping[str, Any]) -> ResNet50Config:
    """Returns the preset's configuration with ``options`` in place of its values.

    Args:
      preset: A name in ``PRESETS``.
      options: Fields of ``ResNet50Config`` to override.

    Raises:
      ValueError: Unknown preset or option, or a value of a wrong type or range.
    """
    return apply_options("resnet50", PRESETS, preset, options)


# Measured on one CPU core at 64 px and 8 examples: weight decay takes 8 % of a step, as
# it reads every parameter once more, and shrinks weights by about 1e-4 of themselves in
# the tens of steps that these presets run.
_CPU_PRESET = ResNet50Config(
    weight_decay=0.0,
    shuffle_buffer_size=2048,
    num_input_threads=1,
    evaluation_batch_size=64,
)

PRESETS: dict[str, ResNet50Config] = {
    "smoke": dataclasses.replace(_CPU_PRESET, image_size=32),
    # Linear scaling down to 16 examples gives a rate of 0.006, with which the minutes
    # of a laptop end before the digits are learned.
    "laptop": dataclasses.replace(
        _CPU_PRESET, image_size=64, learning_rate_per_256=2.0, num_epochs=9.0
    ),
    "gpu": ResNet50Config(compute_dtype="mixed_bfloat16", input_dtype="uint8"),
    "paper": ResNet50Config(),
}
