"""Settings of ResNet-50: the published recipe and its presets.

The planner imports this module, so it does not import TensorFlow.
"""

from __future__ import annotations

import dataclasses

from workloads.spec import (
    OF_DTYPE,
    OF_IMAGE_SIZE,
    OF_INPUT_THREADS,
    ImageConfig,
    configurations,
    limited,
)

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

    image_size: int = limited(224, OF_IMAGE_SIZE)
    num_classes: int = limited(1000, "outputs, whatever the data set has", low=1)
    compute_dtype: str = limited("float32", OF_DTYPE, choices=COMPUTE_DTYPES)
    num_input_threads: int = limited(8, OF_INPUT_THREADS, low=1)
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
