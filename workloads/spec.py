"""What a workload declares for the harness, and what its figures are made of."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import importlib
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import replicator
    from replicator.backends.sharding import Held


@dataclasses.dataclass(frozen=True, slots=True)
class SanityCheck:
    """One correctness check: a number whose sanity check failed is not a result."""

    name: str
    is_passed: bool
    detail: str


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class QualityMetric:
    """A learning-quality figure: value, unit, count n and its interval.

    ``protocol`` says in one line what else the figure depends on, such as the network
    that scores images; figures of two protocols share no axis. Empty if it
    depends on nothing else.
    """

    name: str
    value: float
    unit: str
    num_examples: int
    low: float
    high: float
    confidence: float
    method: str
    protocol: str = ""


# The planner imports this module, so it does not import TensorFlow.

SYNTHETIC = "synthetic"
"""Random data of the right shapes: isolates compute, and has nothing to learn."""

# What XLA compiles: nothing, or forward and backward pass of each replica.
JIT_OFF = "off"
JIT_COMPUTE = "compute"


def check_choice(name: str, value: Any, allowed: Iterable[Any]) -> None:
    """Raises unless an option has one of the allowed values."""
    if value not in allowed:
        raise ValueError(f"option {name}={value!r} must be one of {_listed(allowed)}")


def check_range(
    name: str,
    value: float,
    *,
    low: float,
    below: float = math.inf,
    high: float = math.inf,
) -> None:
    """Raises unless an option is within its limits."""
    if not low <= value <= high or value >= below:
        limit = "" if below == math.inf else f" and below {below}"
        limit += "" if high == math.inf else f" and at most {high}"
        raise ValueError(f"option {name}={value!r} must be at least {low}{limit}")


def _listed(names: Iterable[Any]) -> str:
    return ", ".join(repr(name) for name in names)


def _suggestion(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


# A field that is made by ``limited`` says what is allowed, and is checked when a
# configuration is created.

OF_DTYPE = "float32, or 16 bits with float32 variables"
OF_IMAGE_SIZE = "height and width of images, in pixels"
OF_INPUT_THREADS = "threads of one input pipeline, on GPUs per GPU that it feeds"
STATISTICS = ("local", "cross_replica")
ABOUT, _CHECK = "about", "check"


def limited(
    default: Any, about: str = "", *, choices: Sequence[Any] = (), **limits: Any
) -> Any:
    """Declares a field with what is allowed.

    Args:
      default: Its value unless it is given.
      about: What it means, in a line for ``--help``.
      choices: All allowed values; empty for a range.
      **limits: ``low``, ``below`` and ``high``, as for ``check_range``.
    """
    check: Callable[..., None] | None = None
    if choices:
        check = functools.partial(check_choice, allowed=choices)
    elif limits:
        check = functools.partial(check_range, **limits)
    return dataclasses.field(default=default, metadata={ABOUT: about, _CHECK: check})


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TrainingConfig:
    """Settings of computation of all workloads."""

    jit: str = limited(
        JIT_OFF,
        "off, or compute: XLA compiles forward and backward pass",
        choices=(JIT_OFF, JIT_COMPUTE),
    )
    tf32: bool = limited(True, "whether float32 products use TF32 where GPUs have it")
    external_writes: str = limited(
        "detect",
        "never promises the replicator that no variable is written outside its steps,"
        " so that it need not look",
        choices=("detect", "never"),
    )

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            if check := field.metadata.get(_CHECK):
                check(field.name, getattr(self, field.name))


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ImageConfig(TrainingConfig):
    """Settings of workloads on labelled images."""

    image_size: int  # Height and width of images, in pixels.
    num_classes: int = limited(10, "outputs, whatever the data set has", low=1)
    compute_dtype: str = limited("float32", OF_DTYPE)
    conv_layout: str = limited(
        "auto",
        "nhwc keeps the layout of the model in convolutions; auto lets TensorFlow's"
        " optimizer convert them to NCHW, as it does on GPUs in float32",
        choices=("auto", "nhwc"),
    )
    batch_norm: str = limited(
        "local",
        "local normalizes by each replica's own batch, as published; cross_replica by"
        " the global batch",
        choices=STATISTICS,
    )
    shuffle_buffer_size: int = limited(
        16_384, "in the shuffle buffer of a pipeline", low=1
    )
    num_input_threads: int = limited(4, OF_INPUT_THREADS, low=1)
    input_dtype: str = limited(
        "float32",
        "float32, or uint8: pixels are sent to devices as they are stored, and"
        " normalised there",
        choices=("float32", "uint8"),
    )
    cache_data: bool = limited(False, "encoded images stay in memory")

    def __post_init__(self) -> None:
        # Of a class with slots, super() finds another class.
        TrainingConfig.__post_init__(self)
        if self.jit != JIT_OFF and self.batch_norm != "local":
            raise ValueError(
                f"option jit={self.jit!r} with batch_norm={self.batch_norm!r} would "
                "need collectives in a function that is compiled for one replica: use "
                "batch_norm 'local', or jit 'off'"
            )
        if self.jit != JIT_OFF and self.conv_layout != "auto":
            raise ValueError(
                f"option conv_layout={self.conv_layout!r} has no effect with "
                f"jit={self.jit!r}, where XLA chooses the layout of each convolution: "
                "leave one of the two out"
            )


_NAME = re.compile(r"[a-z][a-z0-9_]*")
_KINDS = {
    bool: "true or false",
    int: "an integer",
    float: "a finite number",
    str: "a string",
}


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Metric:
    """The facts about a metric; its value in a trial is a ``QualityMetric``.

    Reports, gates, help and exports read them, and plans of studies record them.

    Attributes:
      name: As in records and on the command line, such as ``top_1``.
      title: What readers call it, such as ``Top-1 accuracy``.
      unit: Of its values; ``ratio`` for fractions, ``1`` for scores without a unit.
      protocol: How it is measured, and on how many examples, in one line.
      is_higher_better: Which way it gets better; None if neither way is better.
      tolerance: The loss, relative to the baseline, that its gate accepts by default.
      is_of_window: Whether it is a rate of the measured window, not what was learned.
      of: Computes it from what the workload observes. For what was learned, the value
        of each example (``quality.example_metrics``); None if another module does.
    """

    name: str
    title: str
    unit: str
    protocol: str
    is_higher_better: bool | None
    tolerance: float = 0.05
    is_of_window: bool = False
    of: Callable[..., Any] | None = None

    @property
    def is_judged(self) -> bool:
        """Whether a gate can say which of two results is better."""
        return self.is_higher_better is not None and not self.is_of_window

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ValueError(
                f"metric name {self.name!r} is a column and an option: use small"
                " letters, digits and underscores, such as 'top_1'"
            )
        if not 0.0 < self.tolerance < 1.0:
            raise ValueError(
                f"metric {self.name!r} has tolerance={self.tolerance!r}: use a ratio"
                " between 0 and 1, such as 0.05"
            )


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class PresetInfo:
    """Facts about a preset for the planner."""

    name: str  # The name on the command line.
    description: str  # One line.
    data: str  # The default data set.
    per_replica_batch_size: int  # Examples per replica and step.
    num_warmup_steps: int = 20  # Steps before the measured window.
    num_measured_steps: int = 100  # Steps of the measured window.
    config: Any = None  # Its settings, in which options replace fields.
    # Training budget of a quality run of the default sweep, such as ``40s``; empty if
    # the default sweep has none.
    budget: str = ""
    num_evaluations: int = 5  # Number of evaluations in a quality run.
    # Options that a plan adds to those of the user, and records.
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class EquivalenceCheck:
    """What a workload changes so that N replicas can be matched with one."""

    options: Mapping[str, Any]  # Options in place of the requested ones.
    remark: str  # What this changes, in words.
    data: str = ""  # The data in place of the requested one; empty if it stays.
    # Options that the one replica does not have: it runs on one device, whatever the
    # others are split over.
    of_splits: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class WorkloadInfo:
    """A workload: facts for the planner, and how it is built on a replicator.

    Facts, configurations and checks do without TensorFlow.
    """

    name: str  # The name on the command line.
    version: str  # Changes whenever the meaning of a measured number changes.
    example_unit: str  # Plural unit of an example, such as ``images``.
    description: str  # One line.
    presets: tuple[PresetInfo, ...]  # The presets, smallest first.
    default_preset: str  # The preset if none is given.
    # Data sets that need neither network nor preparation by the user.
    builtin_data: tuple[str, ...]
    # Module whose ``Training`` (``common/training.py``) has data, model and step; it
    # needs TensorFlow. Empty of a program of the user's.
    train: str = ""
    # ``MODULE:CLASS`` of what is stepped and timed: a ``StepProgram``.
    program: str = "workloads.program:StepProgram"
    metrics: tuple[Metric, ...] = ()  # All that it measures, in the order of reports.
    # Description of the other allowed data names.
    other_data: str = "a TFDS name or folder:PATH"
    # Module whose ``check`` checks all other names, and may return one with an absolute
    # path; without TensorFlow.
    data_module: str = "workloads.data.names"
    # Module whose ``check`` says whether this machine can run a plan; without
    # TensorFlow. Empty if any machine can.
    machine_module: str = ""
    # Why the host uses the results of each step before the next, so that steps cannot
    # be queued; empty if they can.
    syncs_because: str = ""
    needs: tuple[str, ...] = ()  # Capabilities of backends without which it cannot run.
    # Why its steps cannot leave out their update, or empty.
    no_update_because: str = ""
    # How N replicas are matched with one; None if they cannot be.
    equivalence: EquivalenceCheck | None = None
    # Why they cannot, where there is no ``matching``.
    not_matched_because: str = "the workload does not say how it can be"
    # Options of whose product every batch of a replica is a multiple, such as the
    # tokens of a sequence.
    batch_divisors: tuple[str, ...] = ()
    # Whether a step does, outside of its pipeline. Each backend has its own numbers
    # then, so its losses are not those of another.
    draws_random_numbers: bool = False
    # Whether its models do so much that, after one step, losses of two right backends
    # differ. N replicas are matched with one in float64 then.
    amplifies_rounding: bool = False
    # Option that makes a step draw some unless it is 0; empty if none does.
    draws_with: str = ""
    # The axis ``model`` of the mesh of a replica splits dimensions of these names.
    mesh_layout: Mapping[str, str] = dataclasses.field(default_factory=dict)
    # Module whose ``held`` says what each replica keeps of the weights, from a
    # configuration; without TensorFlow. Empty if that is not counted.
    memory_module: str = ""

    def on_mesh(self, num_replicas: int, num_devices: int) -> dict[str, Any]:
        """Options of the backend ``dtensor``, with so many devices of each replica."""
        sizes = {"batch": num_replicas, "model": num_devices}
        return {"mesh": sizes, "layout": self.mesh_layout}

    def make_config(self, preset: str, options: Mapping[str, Any]) -> Any:
        """Returns the configuration of a preset; ``options`` replace its values.

        Raises:
          ValueError: Unknown preset or option, or a value of a wrong type or range.
        """
        presets = {each.name: each.config for each in self.presets}
        if preset not in presets:
            raise ValueError(
                f"preset {preset!r} is unknown to {self.name}: allowed are "
                f"{_listed(presets)}{_suggestion(preset, presets)}"
            )
        chosen = presets[preset]
        fields = dataclasses.fields(chosen)
        defaults: dict[str, Any] = {field.name: field.default for field in fields}
        converted: dict[str, Any] = {}
        for name, value in options.items():
            if name not in defaults:
                raise ValueError(
                    f"option {name!r} is unknown to {self.name}: allowed are "
                    f"{_listed(defaults)}{_suggestion(name, defaults)}"
                )
            kind = type(defaults[name])
            if kind is float and type(value) is int:
                value = float(value)  # noqa: PLW2901 - an integer is a fine number
            # Exactly, since bool is an int in Python.
            if type(value) is not kind or (kind is float and not math.isfinite(value)):
                raise ValueError(f"option {name}={value!r} must be {_KINDS[kind]}")
            converted[name] = value
        return dataclasses.replace(chosen, **converted)

    def check_data(self, name: str) -> str:
        """Returns the name of a data set with absolute paths; writes nothing.

        Raises:
          ValueError: The workload cannot read it here; the message says what it can.
        """
        checked: str | None = None
        if name not in self.builtin_data:
            checked = importlib.import_module(self.data_module).check(name)
        return checked or name

    def check_machine(
        self, preset: str, options: Mapping[str, Any], **planned: Any
    ) -> None:
        """Raises ``ValueError`` unless this machine can run what is planned.

        ``planned`` are ``data``, ``global_batch_size`` and ``num_workers``.
        """
        if self.machine_module:
            config = self.make_config(preset, options)
            importlib.import_module(self.machine_module).check(config, **planned)

    def held(
        self, preset: str, options: Mapping[str, Any], *, num_replicas: int
    ) -> list[Held]:
        """Returns what each replica owns on each of its devices, in bytes."""
        module = importlib.import_module(self.memory_module)
        return module.held(self.make_config(preset, options), num_replicas)

    def memory_table(
        self, preset: str, options: Mapping[str, Any], *, num_replicas: int
    ) -> list[str]:
        """What a device keeps by level of sharding, as ``Replicator.summary`` does."""
        from replicator.backends import sharding

        owned = self.held(preset, options, num_replicas=num_replicas)
        is_split = any(own.place for own in owned)
        refused = sharding.OF_SPLIT_REPLICAS if is_split else ""
        return sharding.table(owned, None, refused=refused)

    def prepare(self, *, data: str) -> None:
        """Prepares what a workload keeps on a machine, before anything is timed."""
        if data != SYNTHETIC:
            importlib.import_module(self.train).Training.prepare(data)

    def build(
        self,
        replicator: replicator.Replicator,
        *,
        preset: str,
        options: Mapping[str, Any],
        per_replica_batch_size: int,
        **batches: Any,
    ) -> Any:
        """Builds variables, input pipelines and the step; returns the program.

        ``batches`` are ``data`` and ``seed``.

        Raises:
          ValueError: Unknown preset, data set or option; the message lists them.
        """
        config = self.make_config(preset, options)
        if per_replica_batch_size < 1 and not self.batch_divisors:
            raise ValueError(
                f"per_replica_batch_size {per_replica_batch_size!r} must be at least 1"
            )
        size = per_replica_batch_size
        training = importlib.import_module(self.train).Training(
            replicator, config, per_replica_batch_size=size, **batches
        )
        module, _, name = self.program.partition(":")
        kind = getattr(importlib.import_module(module), name)
        return kind(replicator, training, self)

    def warm_up(
        self,
        preset: str = "gpu",
        *,
        dtypes: Sequence[str | None] = ("float32", None),
        per_replica_batch_size: int = 8,
    ) -> None:
        """Compiles what TensorFlow has no machine code for, and measures nothing.

        Builds and runs a program of each compute type twice: step 2 reads what step 1
        wrote.

        Args:
          preset: A preset of this workload.
          dtypes: Compute types; None is the preset's own.
          per_replica_batch_size: Kernels are the same for any.
        """
        import tensorflow as tf

        import replicator

        for gpu in tf.config.list_physical_devices("GPU"):
            tf.config.experimental.set_memory_growth(gpu, enable=True)
        self.prepare(data=SYNTHETIC)
        if not hasattr(self.make_config(preset, {}), "compute_dtype"):
            dtypes = (None,)  # it has one number type
        for dtype in dtypes:
            program = self.build(
                replicator.create("in_graph", num_replicas=1),
                preset=preset,
                data=SYNTHETIC,
                per_replica_batch_size=per_replica_batch_size,
                seed=0,
                options={} if dtype is None else {"compute_dtype": dtype},
            )
            for _ in range(2):
                program.run(1)
            del program
            tf.keras.backend.clear_session()


# What workloads on images share, so that their rates can be compared.

# Rounding in 16 bits, or of XLA, is larger than what a match has to see.
EXACT: Final = {"compute_dtype": "float32", "jit": "off", "tf32": False}
OF_BATCH_NORM: Final = "batch normalization over the global batch"
# On GPUs every variable has a copy per device, and looking for writes outside the steps
# reads all of them twice in every dispatch. No workload writes any.
GPU_OPTIONS: Final = {"external_writes": "never"}
SMOKE = PresetInfo(
    name="smoke",
    description="seconds, for tests: 32 px",
    data="digits",
    per_replica_batch_size=4,
    num_warmup_steps=2,
    num_measured_steps=4,
    num_evaluations=2,
)
LAPTOP = PresetInfo(
    name="laptop",
    description="minutes per sweep on CPU cores: 64 px",
    data="digits",
    per_replica_batch_size=8,
    num_warmup_steps=3,
    num_measured_steps=16,
)
GPU = PresetInfo(
    name="gpu",
    description="GPUs such as H100: 224 px, bfloat16, synthetic data",
    data=SYNTHETIC,
    per_replica_batch_size=256,
    options=GPU_OPTIONS,
)
