"""What the harness measures of ResNet-50: settings, presets, metrics.

The planner imports this module, so TensorFlow is imported when something is built.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING

from workloads import spec
from workloads.spec import limited

if TYPE_CHECKING:
    import numpy as np

VERSIONS = ("v1", "v1.5")
OPTIMIZERS = ("momentum", "lars")
COMPUTE_DTYPES = ("float32", "mixed_bfloat16", "mixed_float16")
DOWNSAMPLING = 32  # the last feature map is image_size / 32 pixels wide


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ResNet50Config(spec.ImageConfig):
    """Settings of computation and training; defaults are the paper's.

    ``num_classes`` is 1000, whatever the data set: the network's published size.
    """

    image_size: int = limited(224, spec.OF_IMAGE_SIZE)
    num_classes: int = limited(1000, "outputs, whatever the data set has", low=1)
    compute_dtype: str = limited("float32", spec.OF_DTYPE, choices=COMPUTE_DTYPES)
    num_input_threads: int = limited(8, spec.OF_INPUT_THREADS, low=1)
    version: str = limited(
        "v1.5",
        "v1.5 strides in the 3x3 convolution of a block (Goyal 2017), v1 in the first"
        " 1x1 (He 2015)",
        choices=VERSIONS,
    )
    zero_gamma: bool = limited(True, "last batch norm of a block starts at 0")
    learning_rate_per_256: float = limited(
        0.1, "at a global batch of 256; grows with it", low=0.0
    )
    lr_warmup_epochs: float = limited(
        5.0, "ramp where the global batch is above 256", low=0.0
    )
    optimizer: str = limited(
        "momentum",
        "momentum (Goyal 2017), or lars with its own schedule, for global batches of"
        " 16,384 and more",
        choices=OPTIMIZERS,
    )
    num_epochs: float = limited(
        90.0,
        "of the whole training: the rate of momentum falls to a tenth after 3/9, 6/9"
        " and 8/9 of it, the rate of lars to zero at its end",
        low=1.0,
    )
    momentum: float = limited(0.9, "heavy ball, no Nesterov step", low=0.0, below=1.0)
    weight_decay: float = limited(1e-4, "L2 factor on kernels only", low=0.0)
    label_smoothing: float = limited(
        0.0, "share of the label spread over classes", low=0.0, below=1.0
    )
    evaluation_batch_size: int = limited(128, "examples per evaluation step", low=1)

    def __post_init__(self) -> None:
        spec.ImageConfig.__post_init__(self)
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


def is_in_top(logits: np.ndarray, labels: np.ndarray, *, k: int) -> np.ndarray:
    """Returns whether labels are among the k largest logits, ties included."""
    import numpy as np  # --help reads the names of metrics without it

    own = np.take_along_axis(logits, labels[:, np.newaxis], axis=1)
    is_near: np.ndarray = (logits > own).sum(axis=1) < k
    return is_near & np.isfinite(logits).all(axis=1)


METRICS = (
    spec.Metric(
        name="top_1",
        title="Top-1 accuracy",
        unit="ratio",
        protocol="labels that have the largest logit, of the whole held-out split",
        is_higher_better=True,
        of=functools.partial(is_in_top, k=1),
    ),
    spec.Metric(
        name="top_5",
        title="Top-5 accuracy",
        unit="ratio",
        protocol="labels among the five largest logits, of the whole held-out split",
        is_higher_better=True,
        of=functools.partial(is_in_top, k=5),
    ),
)


WORKLOAD = spec.WorkloadInfo(
    name="resnet50",
    version="3",
    example_unit="images",
    description="ResNet-50 image classification with the recipe of Goyal 2017",
    train="workloads.resnet50.train",
    presets=(
        dataclasses.replace(
            spec.SMOKE, config=dataclasses.replace(_CPU_PRESET, image_size=32)
        ),
        # Linear scaling down to 16 examples gives a rate of 0.006, with which the
        # minutes of a laptop end before the digits are learned.
        dataclasses.replace(
            spec.LAPTOP,
            budget="40s",
            config=dataclasses.replace(
                _CPU_PRESET, image_size=64, learning_rate_per_256=2.0, num_epochs=9.0
            ),
        ),
        dataclasses.replace(
            spec.GPU,
            config=ResNet50Config(compute_dtype="mixed_bfloat16", input_dtype="uint8"),
        ),
        spec.PresetInfo(
            name="paper",
            description="the published hyperparameters: 224 px, ImageNet",
            data="imagenet2012",
            per_replica_batch_size=32,
            config=ResNet50Config(),
        ),
    ),
    default_preset="laptop",
    builtin_data=("digits", spec.SYNTHETIC),
    metrics=METRICS,
    equivalence=spec.EquivalenceCheck(
        options={**spec.EXACT, "batch_norm": "cross_replica"}, remark=spec.OF_BATCH_NORM
    ),
)
