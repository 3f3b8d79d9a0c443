"""What the harness measures of SN-GAN: settings, presets, metrics.

The planner imports this module, so TensorFlow is imported when something is built.
"""

from __future__ import annotations

import dataclasses

from workloads import spec
from workloads.spec import limited

LAYOUTS = ("cifar", "imagenet")
EXTRACTORS = ("digits", "inception")
# float16 would need a loss scale for each of the two losses.
COMPUTE_DTYPES = ("float32", "mixed_bfloat16")
NUM_INCEPTION_FEATURES = 2048
FIRST_SIZE = 4  # height and width of the generator's first feature map


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class SNGANConfig(spec.ImageConfig):
    """Settings of computation and training; the papers' values at 32 px by default."""

    image_size: int = limited(32, spec.OF_IMAGE_SIZE)
    compute_dtype: str = limited("float32", spec.OF_DTYPE, choices=COMPUTE_DTYPES)
    layout: str = limited(
        "cifar",
        "cifar keeps the number of channels over all sizes (Miyato et al. 2018, table"
        " 4), imagenet halves it with every doubling (table 6); images are 4 pixels"
        " times a power of two wide",
        choices=LAYOUTS,
    )
    latent_size: int = limited(128, "length of z ~ N(0, I)", low=1)
    generator_channels: int = limited(256, "widest map of the generator", low=1)
    discriminator_channels: int = limited(128, "of its first block", low=1)
    num_discriminator_steps: int = limited(5, "per generator update", low=1)
    generator_batch_factor: int = limited(
        2,
        "generated images of a generator update, as a multiple of the real images of a"
        " discriminator update",
        low=1,
    )
    generator_learning_rate: float = limited(2e-4, "Adam's, before the decay", low=0.0)
    discriminator_learning_rate: float = limited(
        2e-4, "Adam's, before the decay", low=0.0
    )
    beta_1: float = limited(0.0, "Adam's decay of the mean", low=0.0, below=1.0)
    beta_2: float = limited(0.9, "Adam's decay of the square", low=0.0, below=1.0)
    num_steps: int = limited(
        250_000,
        "discriminator updates of the whole training; the learning rate falls linearly"
        " to zero at its end",
        low=1,
    )
    decay_start: float = limited(
        0.0, "share of num_steps after which it falls", low=0.0, high=1.0
    )
    ema_decay: float = limited(
        0.0,
        "decay of the average of the generator's weights that is used for pictures and"
        " scores; 0 uses the weights themselves",
        low=0.0,
        below=1.0,
    )
    extractor: str = limited(
        "inception", "whose features scores use", choices=EXTRACTORS
    )
    extractor_weights: str = limited("", "file of its weights, for inception")
    # Scores need a covariance, and several images of every class.
    num_metric_examples: int = limited(
        5_000, "generated images that are scored", low=100
    )

    def __post_init__(self) -> None:
        spec.ImageConfig.__post_init__(self)
        doublings = self.num_doublings
        if doublings < 1 or FIRST_SIZE << doublings != self.image_size:
            raise ValueError(
                f"option image_size={self.image_size!r} must be 4 times a power of "
                "two, because the generator starts at 4 pixels and doubles them: use "
                "for example 16, 32 or 128"
            )
        if (
            self.extractor == "inception"
            and self.num_metric_examples <= NUM_INCEPTION_FEATURES
        ):
            raise ValueError(
                f"option num_metric_examples={self.num_metric_examples!r} must be "
                f"above {NUM_INCEPTION_FEATURES} with extractor 'inception', which has "
                "as many features: FID has no interval below; use for example 5000"
            )
        if self.layout == "imagenet" and self.generator_channels % (1 << doublings):
            raise ValueError(
                f"option generator_channels={self.generator_channels!r} must be a "
                f"multiple of {1 << doublings}, because layout 'imagenet' halves it "
                f"{doublings - 1} times: use for example {16 << doublings}"
            )

    @property
    def num_doublings(self) -> int:
        """Blocks of the generator, each of which doubles height and width."""
        return max(self.image_size // FIRST_SIZE, 1).bit_length() - 1

    @property
    def block_channels(self) -> tuple[int, ...]:
        """Channels of the generator's first feature map and after each block."""
        first, count = self.generator_channels, self.num_doublings
        if self.layout == "cifar":
            return (first,) * (count + 1)
        # 1024 and then 1024, 512, 256, 128, 64 at the published size.
        return (first, *(first >> index for index in range(count)))


_DIGITS = SNGANConfig(
    image_size=16,
    generator_channels=32,
    discriminator_channels=32,
    latent_size=32,
    # One to one with unequal rates, as in SAGAN, but higher: a run of minutes on two
    # cores has few updates. At 2e-4 and 4e-4 the classes still look the same after
    # 600 updates, as their scales and shifts start equal; at these, 95 % of the
    # images are recognised after 1,000.
    num_discriminator_steps=1,
    generator_learning_rate=5e-4,
    discriminator_learning_rate=1e-3,
    decay_start=1.0,
    ema_decay=0.99,
    extractor="digits",
    num_metric_examples=1_000,
    shuffle_buffer_size=2048,
    num_input_threads=1,
)

_PAPER = SNGANConfig(
    layout="imagenet",
    image_size=128,
    num_classes=1000,
    generator_channels=1024,
    discriminator_channels=64,
    num_steps=2_250_000,
    decay_start=400 / 450,
)

_GENERATED = "num_metric_examples generated images"


SCORES = (
    spec.Metric(
        name="fid",
        title="FID",
        unit="1",
        protocol=f"{_GENERATED} against the training images",
        is_higher_better=False,
    ),
    spec.Metric(
        name="kid",
        title="KID",
        unit="1",
        protocol=f"{_GENERATED} against the training images",
        is_higher_better=False,
    ),
    spec.Metric(
        name="inception_score",
        title="Inception Score",
        unit="1",
        protocol=_GENERATED,
        is_higher_better=True,
    ),
)
"""Computed by ``workloads/metrics``."""

CLASSIFIED = (
    spec.Metric(
        name="recognised",
        title="Recognised",
        unit="ratio",
        protocol=f"classifier of digits gives the wanted class, of {_GENERATED}",
        is_higher_better=True,
        of=lambda logits, labels: logits.argmax(axis=-1) == labels,
    ),
)
"""Of the classifier of digits, which was trained on the classes of the data."""


WORKLOAD = spec.WorkloadInfo(
    name="sngan",
    version="3",
    example_unit="images",
    description="class-conditional SN-GAN with projection discriminator, FID",
    train="workloads.sngan.train",
    presets=(
        spec.PresetInfo(
            name="smoke",
            description="seconds, for tests: 16 px, 8 channels",
            data="digits",
            per_replica_batch_size=16,
            num_warmup_steps=2,
            num_measured_steps=4,
            config=dataclasses.replace(
                _DIGITS,
                generator_channels=8,
                discriminator_channels=8,
                latent_size=8,
                num_metric_examples=200,
            ),
        ),
        spec.PresetInfo(
            name="laptop",
            description="minutes per sweep on CPU cores: 16 px, 32 channels",
            data="digits",
            per_replica_batch_size=64,
            num_warmup_steps=4,
            num_measured_steps=30,
            budget="150s",
            config=_DIGITS,
        ),
        spec.PresetInfo(
            name="gpu",
            description="GPUs such as H100: 128 px, synthetic data",
            data=spec.SYNTHETIC,
            per_replica_batch_size=64,
            options=spec.GPU_OPTIONS,
            # Scored as digits, since weights of Inception are a file that a user has to
            # give; synthetic data is not scored.
            config=dataclasses.replace(
                _PAPER,
                compute_dtype="mixed_bfloat16",
                extractor="digits",
                num_input_threads=8,
                input_dtype="uint8",
            ),
        ),
        spec.PresetInfo(
            name="paper",
            description="the published hyperparameters: 128 px, ImageNet",
            data="imagenet2012",
            per_replica_batch_size=16,
            config=_PAPER,
        ),
    ),
    default_preset="laptop",
    builtin_data=("digits", spec.SYNTHETIC),
    metrics=SCORES + CLASSIFIED,
    equivalence=spec.EquivalenceCheck(
        options={**spec.EXACT, "batch_norm": "cross_replica"},
        remark=f"{spec.OF_BATCH_NORM}, and noise by position in it",
    ),
    draws_random_numbers=True,
)
