"""What the harness measures of the language model: settings, presets, metrics.

The planner imports this module, so TensorFlow is imported when something is built.
"""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING

from workloads import spec
from workloads.data.text_files import CHUNK_SIZE, NUM_TOKENS
from workloads.spec import limited

if TYPE_CHECKING:
    from replicator.backends.sharding import Held

# float16 would need a scale of the loss.
COMPUTE_DTYPES = ("float32", "mixed_bfloat16")
SCHEDULES = ("one_forward_one_backward", "fill_drain")
UNSHARDED = "none"
PARAMETERS = "parameters"
LEVELS = (UNSHARDED, "state", "gradients", PARAMETERS)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TransformerConfig(spec.TrainingConfig):
    """Settings of computation and training; defaults are those of the papers."""

    num_layers: int = limited(120, "blocks of attention and feed-forward", low=1)
    width: int = limited(2048, "length of the vector of a token", low=2)
    feed_forward_width: int = limited(8192, "hidden units of a feed-forward", low=1)
    num_heads: int = limited(32, "attention heads of a layer; divide width", low=1)
    sequence_length: int = limited(
        1024, "tokens predicted together", low=2, high=CHUNK_SIZE
    )
    dropout: float = limited(
        0.1,
        "share of the values that is dropped after the embedding and each sub-layer, in"
        " training",
        low=0.0,
        below=1.0,
    )
    compute_dtype: str = limited(
        "float32", "of layers; variables are float32", choices=COMPUTE_DTYPES
    )
    mesh: str = limited(
        "1x1", "devices of a replica of dtensor, 1xN: they share heads and hidden units"
    )
    pipeline_stages: int = limited(1, "devices of a replica, a stage on each", low=1)
    num_microbatches: int = limited(1, "parts of a replica's batch", low=1, high=1024)
    schedule: str = limited(SCHEDULES[0], "see replicator.Pipeline", choices=SCHEDULES)
    recompute: bool = limited(False, "whether a stage repeats its forward pass")
    sharded_update: str = limited(
        UNSHARDED, "see Replicator.wrap_optimizer", choices=LEVELS
    )
    learning_rate_factor: float = limited(
        1.0, "of Vaswani et al. 2017, section 5.3", low=0.0
    )
    lr_warmup_steps: int = limited(4_000, "steps of its linear ramp", low=1)
    shuffle_buffer_size: int = limited(
        16_384, "in the shuffle buffer of a pipeline", low=1
    )
    # An interval needs several files.
    num_evaluation_examples: int = limited(
        931, "held-out sequences that are scored", low=16
    )
    evaluation_batch_size: int = limited(32, "sequences per evaluation step", low=1)

    def __post_init__(self) -> None:
        spec.TrainingConfig.__post_init__(self)
        if self.width % 2 or self.width % self.num_heads:
            raise ValueError(
                f"option width={self.width!r} must be even, for pairs of sinusoids, "
                f"and a multiple of num_heads={self.num_heads!r}, which share it: use "
                f"for example {2 * self.num_heads}"
            )
        self._check_mesh()
        self._check_pipeline()

    @property
    def num_mesh_devices(self) -> int:
        return int(self.mesh.removeprefix("1x"))

    def _check_mesh(self) -> None:
        if not re.fullmatch("1x[1-9][0-9]{0,3}", self.mesh, re.ASCII):
            raise ValueError(
                f"option mesh={self.mesh!r} must be 1xN, with N devices of a replica; "
                "the number of replicas is --replicas: use for example 1x2"
            )
        for name in ("num_heads", "feed_forward_width"):
            if getattr(self, name) % self.num_mesh_devices:
                raise ValueError(
                    f"option mesh={self.mesh!r} divides {name}={getattr(self, name)!r} "
                    f"over {self.num_mesh_devices} devices, which leaves a rest: use "
                    "another mesh, or a multiple"
                )

    @property
    def is_pipeline(self) -> bool:
        return self.pipeline_stages > 1 or self.num_microbatches > 1

    def _check_pipeline(self) -> None:
        num_parts = self.num_layers + 2
        if self.pipeline_stages > num_parts:
            raise ValueError(
                f"option pipeline_stages={self.pipeline_stages!r} is more than the "
                f"{num_parts} parts of a model of num_layers={self.num_layers!r}, its "
                f"embedding and its head included: use at most {num_parts}"
            )
        if self.is_pipeline and self.jit != spec.JIT_OFF:
            raise ValueError(
                f"option jit={self.jit!r} compiles a step as a whole, and a pipeline "
                "is many calls of its stages: use jit 'off', or pipeline_stages 1 and "
                "num_microbatches 1"
            )
        if self.pipeline_stages > 1 and self.sharded_update == PARAMETERS:
            raise ValueError(
                f"option sharded_update={PARAMETERS!r} stores each variable on one "
                "device of all, and a stage has its own: use 'gradients', or "
                "pipeline_stages 1"
            )
        without_effect = {"schedule": SCHEDULES[0], "recompute": False}
        for name, default in without_effect.items():
            value = getattr(self, name)
            if not self.is_pipeline and value != default:
                raise ValueError(
                    f"option {name}={value!r} has no effect without a pipeline: set "
                    "pipeline_stages to at least 2, or leave it out"
                )


# Presets for minutes on CPUs: after 4,000 steps of a ramp they would be over. Of rates
# that were tried for 150 and 300 steps, these had the lowest loss.
_CPU_PRESET = TransformerConfig(
    dropout=0.0,
    lr_warmup_steps=40,
    learning_rate_factor=0.1,
    num_evaluation_examples=128,
)

# Look-ups, norms, softmax, activations and the update are left out, as for ResNet-50
# (``workloads/resnet50/model.py``). Attention is counted as it is computed: over the
# whole sequence, of which the mask hides half.


def flops_by_part(config: TransformerConfig) -> list[int]:
    """Returns the multiply-adds of one token forward in each part of the model."""
    width = config.width
    weights = 4 * width**2 + 2 * width * config.feed_forward_width
    # Scores of all tokens of the sequence, and their weighted sum.
    attention = 2 * config.sequence_length * width
    return [0, *[weights + attention] * config.num_layers, width * NUM_TOKENS]


def variables_of_parts(config: TransformerConfig) -> list[list[int]]:
    """Returns the scalars of each trainable variable, by part of the model."""
    width, hidden = config.width, config.feed_forward_width
    norm = [width, width]
    block = [*norm, *[width**2] * 4, *norm]
    block += [width * hidden, hidden, hidden * width, width]
    head = [*norm, width * NUM_TOKENS, NUM_TOKENS]
    return [[NUM_TOKENS * width], *[block] * config.num_layers, head]


# The same shares as those of ``wrap_optimizer(sharded_update=...)``: whole variables,
# the largest first, each to the replica that has the least. Without TensorFlow.

_FLOAT32 = 4
_OF_ADAM = 2  # the averages of a gradient and of its square


def held(config: TransformerConfig, num_replicas: int) -> list[Held]:
    """Returns what each replica owns on each of its devices, in bytes."""
    import replicator
    from replicator.backends.sharding import Held

    parts = variables_of_parts(config)
    cut = replicator.balance_stages(flops_by_part(config), config.pipeline_stages)
    stages = []
    for position, indices in enumerate(cut):
        loads = [0] * num_replicas
        sizes = [size for index in indices for size in parts[index]]
        for size in sorted(sizes, reverse=True):
            loads[loads.index(min(loads))] += _FLOAT32 * size
        stages += [Held(load, _OF_ADAM * load, position) for load in loads]
    return stages


METRICS = (
    spec.Metric(
        name="bits_per_byte",
        title="Bits per byte",
        unit="bit",
        protocol="num_evaluation_examples sequences of held-out files, each byte from "
        "those before it in its sequence; n is files",
        is_higher_better=False,
    ),
)


WORKLOAD = spec.WorkloadInfo(
    name="transformer",
    version="1",
    example_unit="tokens",
    description="a decoder-only Transformer: a language model of bytes",
    train="workloads.transformer.train",
    presets=(
        spec.PresetInfo(
            name="smoke",
            description="seconds, for tests: 1 M parameters",
            data="tensorflow_source",
            per_replica_batch_size=8 * 64,
            num_warmup_steps=2,
            num_measured_steps=10,
            config=dataclasses.replace(
                _CPU_PRESET,
                num_layers=4,
                width=144,
                feed_forward_width=576,
                num_heads=4,
                sequence_length=64,
                learning_rate_factor=0.25,
                num_evaluation_examples=64,
            ),
        ),
        spec.PresetInfo(
            name="laptop",
            description="minutes per sweep on CPU cores: 10 M parameters",
            data="tensorflow_source",
            per_replica_batch_size=8 * 128,
            num_warmup_steps=2,
            num_measured_steps=10,
            config=dataclasses.replace(
                _CPU_PRESET,
                num_layers=8,
                width=320,
                feed_forward_width=1280,
                num_heads=5,
                sequence_length=128,
            ),
            budget="120s",
        ),
        spec.PresetInfo(
            name="gpu",
            description="GPUs such as H100: 350 M parameters, synthetic data",
            data=spec.SYNTHETIC,
            per_replica_batch_size=16 * 1024,
            config=TransformerConfig(
                num_layers=28,
                width=1024,
                feed_forward_width=4096,
                num_heads=16,
                dropout=0.0,
                compute_dtype="mixed_bfloat16",
            ),
            options=spec.GPU_OPTIONS,
        ),
        spec.PresetInfo(
            name="paper",
            description="the size of GPipe: 6 B parameters; more than a device",
            data="tensorflow_source",
            per_replica_batch_size=32 * 1024,
            config=TransformerConfig(),
        ),
    ),
    default_preset="laptop",
    builtin_data=("tensorflow_source", spec.SYNTHETIC),
    other_data="no other",
    data_module="workloads.data.text_files",
    metrics=METRICS,
    batch_divisors=("sequence_length", "num_microbatches"),
    draws_with="dropout",
    # As Megatron-LM splits a block (Shoeybi et al. 2019, section 3).
    mesh_layout={"heads": "model", "hidden": "model"},
    memory_module="workloads.transformer.study",
    equivalence=spec.EquivalenceCheck(
        options={**spec.EXACT, "dropout": 0.0},
        remark="without dropout",
        of_splits=(
            "mesh",
            "pipeline_stages",
            "num_microbatches",
            "schedule",
            "recompute",
        ),
    ),
)
