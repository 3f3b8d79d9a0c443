"""Configuration of ResNet-50: the published recipe and its presets.

The planner imports this module, so it does not import TensorFlow.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING

from workloads.spec import ImageConfig, Metric, configurations, limited

if TYPE_CHECKING:
    import numpy as np


VERSIONS = ("v1", "v1.5")
OPTIMIZERS = ("momentum", "lars")
COMPUTE_DTYPES = ("float32", "mixed_bfloat16", "mixed_float16")
DOWNSAMPLING = 32  # the last feature map is image_size / 32 pixels wide


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ResNet50Config(ImageConfig):
    """Settings of computation and training; defaults are the paper's.

    ``num_classes`` is 1000 as published, whatever the data set, so that the network and
    its gradients keep the published size. ``mixed_float16`` scales the loss
    dynamically.
    """

    image_size: int = 224
    num_classes: int = limited(1000, low=1)
    compute_dtype: str = limited("float32", choices=COMPUTE_DTYPES)
    num_input_threads: int = limited(8, low=1)
    # ``v1.5`` strides in the 3x3 convolution of a block (Goyal 2017), ``v1`` in the
    # first 1x1 (He 2015).
    version: str = limited("v1.5", choices=VERSIONS)
    zero_gamma: bool = True  # Whether the last batch norm of a block starts at zero.
    # Learning rate at a global batch of 256 examples; it grows in proportion to the
    # global batch.
    learning_rate_per_256: float = limited(0.1, low=0.0)
    # Length of the ramp when the global batch is above 256.
    lr_warmup_epochs: float = limited(5.0, low=0.0)
    # ``momentum`` (Goyal 2017), or ``lars`` with its own schedule, for global batches
    # of 16,384 and more.
    optimizer: str = limited("momentum", choices=OPTIMIZERS)
    # Length of the whole training: the learning rate of ``momentum`` falls to a tenth
    # after 3/9, 6/9 and 8/9 of it, that of ``lars`` to zero at its end.
    num_epochs: float = limited(90.0, low=1.0)
    # Heavy-ball momentum (no Nesterov step).
    momentum: float = limited(0.9, low=0.0, below=1.0)
    # L2 factor on kernels; not on biases nor batch-norm parameters.
    weight_decay: float = limited(1e-4, low=0.0)
    # Fraction of the label that is spread over all classes.
    label_smoothing: float = limited(0.0, low=0.0, below=1.0)
    # Examples per evaluation step, on one device.
    evaluation_batch_size: int = limited(128, low=1)

    def __post_init__(self) -> None:
        ImageConfig.__post_init__(self)
        if self.image_size < DOWNSAMPLING or self.image_size % DOWNSAMPLING:
            raise ValueError(
                f"option image_size={self.image_size!r} must be a multiple of "
                f"{DOWNSAMPLING}, because the network halves it five times: use "
                "32, 64 or 224, for example"
            )


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

make_config = configurations("resnet50", PRESETS)


# ``--help`` reads their names, so NumPy is imported only to measure.


def is_in_top(logits: np.ndarray, labels: np.ndarray, *, k: int) -> np.ndarray:
    """Returns whether each label is among the k largest logits, bool [n].

    Classes that tie at the boundary are all among them. Logits that are not finite
    recognise nothing.
    """
    import numpy as np

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
