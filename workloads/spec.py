"""The interface between a workload and the harness."""

from __future__ import annotations

import abc
import dataclasses
import difflib
import functools
import math
import re
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import replicator


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
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


class StepProgram(abc.ABC):
    """A workload built on one replicator: the object that is stepped and timed.

    Attributes:
      per_replica_batch_size: Examples one replica consumes in one step.
      global_batch_size: Examples all replicas consume in one step.
      num_parameters: Trainable scalars of the model (one copy).
      flops_per_example: Floating-point operations of one example in a training step, by
        the model alone: two per multiply-add; None if they were not counted.
      compute_dtype: Number type of most of them.
    """

    per_replica_batch_size: int
    global_batch_size: int
    num_parameters: int
    flops_per_example: int | None = None
    compute_dtype: str = "float32"

    @abc.abstractmethod
    def run(self, num_steps: int = 1) -> float:
        """Runs steps and returns the last loss (mean over the global batch).

        Returns after all device work is finished, so a clock read next to the call
        measures the step.
        """

    def dispatch(self) -> Callable[[], float]:
        """Starts a step; returns a function that waits for it and returns its loss.

        Several steps can be started before the first is waited for, which keeps a GPU
        busy while the host prepares the next one; wait in the order of the steps.
        Programs that use the results of each step on the host have ended it when this
        returns.
        """
        loss = self.run()
        return lambda: loss

    @abc.abstractmethod
    def evaluate(self) -> tuple[QualityMetric, ...]:
        """Measures quality on held-out data; outside every timed window."""

    def samples(self) -> bytes | None:
        """Returns a picture of what the program makes, as PNG, or None."""
        return None

    def start_window(self) -> None:  # noqa: B027 - most programs count nothing
        """Starts the window that ``window_metrics`` describes.

        Called on every process, right before the first measured step.
        """

    def pause(self) -> None:  # noqa: B027 - most programs do nothing between steps
        """Stops what runs in the background, such as actors, until ``resume``.

        In a relay, every process calls this between its turns, so that a waiting
        program does not disturb the one that is measured. The time until ``resume``
        is not part of the window.
        """

    def resume(self) -> None:  # noqa: B027 - most programs do nothing between steps
        """Continues what ``pause`` stopped."""

    def window_metrics(self) -> tuple[QualityMetric, ...]:
        """Returns further metrics of the steps since ``start_window``.

        Rates and fractions of the whole trial, besides the throughput: every process
        calls this, outside of every timed window, and gets the same values.
        """
        return ()

    def num_environment_steps(self) -> int | None:
        """Returns the environment steps of the whole trial so far.

        Every process calls this. None if the workload has no environment.
        """
        return None

    def losses_of_replicas(self) -> tuple[float, ...]:
        """Returns the losses of the last step, one per replica of the whole trial.

        Every process calls this. Empty if the program does not keep them separate.
        """
        return ()

    def save(self, directory: str) -> str | None:  # noqa: ARG002 - for programs that can
        """Writes a checkpoint in place of the previous one; every process calls this.

        Args:
          directory: Directory of the checkpoints, visible to all processes.

        Returns:
          The prefix of its files, or None where a program cannot be saved.

        Raises:
          FloatingPointError: A variable is not finite; the previous checkpoint is kept.
        """
        return None

    @abc.abstractmethod
    def sanity(self) -> tuple[SanityCheck, ...]:
        """Checks the conditions for using any number; outside timed windows."""

    @abc.abstractmethod
    def agree(self, value: int) -> int:
        """Returns the value of the first process; every process calls this."""

    @abc.abstractmethod
    def explain(self) -> str:
        """Returns the replicator's description of the collectives in one step."""


class Workload(abc.ABC):
    """A reference program that can be built on any replicator.

    Attributes:
      name: The name in the catalogue.
      version: Changes whenever the meaning of a measured number changes.
      example_unit: Plural unit of an example, such as ``images``.
    """

    name: str
    version: str
    example_unit: str

    def prepare(self, *, data: str) -> None:  # noqa: B027 - most data needs nothing
        """Prepares the data set, if this needs to be done once per machine.

        Called before anything is timed, so that the first trial on a machine does not
        start more slowly than the others; and before the replicator is created, so it
        must not run TensorFlow ops, after which no virtual devices can be created.

        Raises:
          ValueError: The data set cannot be prepared; the message says what to do.
        """

    @abc.abstractmethod
    def build(
        self,
        replicator: replicator.Replicator,
        *,
        preset: str,
        data: str,
        per_replica_batch_size: int,
        seed: int,
        options: Mapping[str, Any],
    ) -> StepProgram:
        """Builds variables, input pipelines and the step on ``replicator``.

        Raises:
          ValueError: Unknown preset, data set or option; the message lists them.
        """


# The planner imports this module, so it does not import TensorFlow.

SYNTHETIC = "synthetic"
"""Random data of the right shapes: isolates compute, and has nothing to learn."""

JIT_OFF = "off"
JIT_COMPUTE = "compute"
JITS = (JIT_OFF, JIT_COMPUTE)
"""What XLA compiles: nothing, or forward and backward pass of each replica."""

CONV_LAYOUTS = ("auto", "nhwc")
"""Order of dimensions in convolutions: what TensorFlow finds faster, or the model's."""

EXTERNAL_WRITES = ("detect", "never")
"""Whether a replicator with copies looks for variables that were written outside steps;
whoever creates it reads this, and other backends have nothing to look for."""

INPUT_DTYPES = ("float32", "uint8")
"""Types in which pixels are sent to the devices of replicas."""

_Config = TypeVar("_Config")


def apply_options(
    workload: str,
    presets: Mapping[str, _Config],
    preset: str,
    options: Mapping[str, Any],
) -> _Config:
    """Returns a preset's configuration with ``options`` in place of its values."""
    if preset not in presets:
        raise ValueError(
            f"preset {preset!r} is unknown to {workload}: allowed are "
            f"{_listed(presets)}{_suggestion(preset, presets)}"
        )
    chosen: Any = presets[preset]
    defaults = {field.name: field.default for field in dataclasses.fields(chosen)}
    for name, value in options.items():
        if name not in defaults:
            raise ValueError(
                f"option {name!r} is unknown to {workload}: allowed are "
                f"{_listed(defaults)}{_suggestion(name, defaults)}"
            )
        _check_type(name, value, type(defaults[name]))
    converted: dict[str, Any] = {
        name: float(value) if isinstance(defaults[name], float) else value
        for name, value in options.items()
    }
    found: _Config = dataclasses.replace(chosen, **converted)
    return found


def configurations(
    workload: str, presets: Mapping[str, _Config]
) -> Callable[[str, Mapping[str, Any]], _Config]:
    """Returns ``apply_options`` of one workload: from a preset and options."""
    return functools.partial(apply_options, workload, presets)


def check_choice(name: str, value: Any, allowed: Iterable[Any]) -> None:
    """Raises unless an option has one of the allowed values."""
    if value not in allowed:
        raise ValueError(f"option {name}={value!r} must be one of {_listed(allowed)}")


def check_jit(jit: Any, batch_norm: str = "local") -> None:
    """Raises unless the compiled part of a step is one that XLA can compile."""
    check_choice("jit", jit, JITS)
    if jit == JIT_COMPUTE and batch_norm != "local":
        raise ValueError(
            f"option jit={jit!r} with batch_norm={batch_norm!r} would need collectives "
            "in a function that is compiled for one replica: use batch_norm 'local', "
            "or jit 'off'"
        )


def check_conv_layout(conv_layout: Any, jit: str) -> None:
    """Raises unless the layout of convolutions is one that can be requested."""
    check_choice("conv_layout", conv_layout, CONV_LAYOUTS)
    if conv_layout != "auto" and jit != JIT_OFF:
        raise ValueError(
            f"option conv_layout={conv_layout!r} has no effect with jit={jit!r}, where "
            "XLA chooses the layout of each convolution: leave one of the two out"
        )


def check_range(
    name: str,
    value: float,
    *,
    low: float,
    below: float | None = None,
    high: float | None = None,
) -> None:
    """Raises unless an option is within its limits."""
    is_above = (below is not None and value >= below) or (
        high is not None and value > high
    )
    if value < low or is_above:
        limit = "" if below is None else f" and below {below}"
        limit += "" if high is None else f" and at most {high}"
        raise ValueError(f"option {name}={value!r} must be at least {low}{limit}")


def _check_type(name: str, value: Any, expected: type) -> None:
    # bool is an int in Python, and an int is a fine float.
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    matches = {
        bool: isinstance(value, bool),
        int: isinstance(value, int) and not isinstance(value, bool),
        float: is_number and math.isfinite(value),
        str: isinstance(value, str),
    }
    if not matches[expected]:
        kind = {bool: "true or false", int: "an integer", float: "a finite number"}
        raise ValueError(
            f"option {name}={value!r} must be {kind.get(expected, 'a string')}"
        )


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
_CHOICES = "choices"
_LIMITS = ("low", "below", "high")
ABOUT = "about"


def limited(
    default: Any, about: str = "", *, choices: Sequence[Any] = (), **limits: float
) -> Any:
    """Declares a field with what is allowed.

    Args:
      default: Its value unless it is given.
      about: What it means, in a line for ``--help``.
      choices: All allowed values; empty for a range.
      **limits: ``low``, ``below`` and ``high``, as for ``check_range``.
    """
    allowed = {_CHOICES: choices} if choices else limits
    return dataclasses.field(default=default, metadata={ABOUT: about, **allowed})


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TrainingConfig:
    """Settings of computation of all workloads."""

    jit: str = limited("off", "off, or compute: XLA compiles forward and backward pass")
    tf32: bool = limited(True, "whether float32 products use TF32 where GPUs have it")
    external_writes: str = limited(
        "detect",
        "never promises the replicator that no variable is written outside its steps,"
        " so that it need not look",
        choices=EXTERNAL_WRITES,
    )

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if _CHOICES in field.metadata:
                check_choice(field.name, value, field.metadata[_CHOICES])
            elif limits := {k: v for k, v in field.metadata.items() if k in _LIMITS}:
                check_range(field.name, value, **limits)
        check_jit(self.jit)


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
        choices=INPUT_DTYPES,
    )
    cache_data: bool = limited(False, "encoded images stay in memory")

    def __post_init__(self) -> None:
        # Of a class with slots, super() finds another class.
        TrainingConfig.__post_init__(self)
        check_jit(self.jit, self.batch_norm)
        check_conv_layout(self.conv_layout, self.jit)


# A workload declares its metrics in ``workloads/NAME/study.py``. Reports, gates, help
# and exports read the declaration, which plans of studies record.

_NAME = re.compile(r"[a-z][a-z0-9_]*")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Metric:
    """The facts about a metric; its value in a trial is a ``QualityMetric``.

    Attributes:
      name: As in records and on the command line, such as ``top_1``.
      title: What readers call it, such as ``Top-1 accuracy``.
      unit: Of its values; ``ratio`` for fractions, ``1`` for scores without a unit.
      protocol: How it is measured, and on how many examples, in one line.
      is_higher_better: Which way it gets better; None if neither way is better.
      tolerance: The loss, relative to the baseline, that its gate accepts by default.
      is_of_window: Whether it is a rate of the measured window, not what was learned.
      of: Computes it from what the workload observes. For what was learned, the value
        of each example (``quality.of_examples``); None if another module computes it.
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


TFDS_NAMES: Final = "workloads.data.names"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class PresetInfo:
    """Facts about a preset for the planner."""

    name: str  # The name on the command line.
    description: str  # One line.
    data: str  # The default data set.
    per_replica_batch_size: int  # Examples per replica and step.
    num_warmup_steps: int  # Steps before the measured window.
    num_measured_steps: int  # Steps of the measured window.
    # Training budget of a quality run of the default sweep, such as ``40s``; empty if
    # the default sweep has none.
    budget: str = ""
    num_evaluations: int = 5  # Number of evaluations in a quality run.
    # Options that a plan adds to those of the user, and records.
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Matching:
    """What a workload changes so that N replicas can be matched with one."""

    options: Mapping[str, Any]  # Options in place of the requested ones.
    remark: str  # What this changes, in words.
    data: str = ""  # The data in place of the requested one; empty if it stays.
    # Options that the one replica does not have: it runs on one device, whatever the
    # others are split over.
    of_pipelines: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class WorkloadInfo:
    """Facts about a workload for the planner."""

    name: str  # The name on the command line.
    version: str  # Changes whenever the meaning of a measured number changes.
    example_unit: str  # Plural unit of an example, such as ``images``.
    description: str  # One line.
    # Module whose attribute ``WORKLOAD`` is the workload; needs TensorFlow.
    module: str
    # Module whose ``make_config`` checks options; without TensorFlow.
    config_module: str
    # Module whose ``METRICS`` are all that the workload measures; without TensorFlow.
    metrics_module: str
    presets: tuple[PresetInfo, ...]  # The presets, smallest first.
    default_preset: str  # The preset if none is given.
    # Data sets that need neither network nor preparation by the user.
    builtin_data: tuple[str, ...]
    # Description of the other allowed data names.
    other_data: str = "a TFDS name or folder:PATH"
    # Module whose ``check`` checks all other names; without TensorFlow.
    data_module: str = TFDS_NAMES
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
    matching: Matching | None = None
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
    # Module whose ``held`` says what each replica keeps of the weights, from a
    # configuration; without TensorFlow. Empty if that is not counted.
    memory_module: str = ""


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
    num_warmup_steps=20,
    num_measured_steps=100,
    options=GPU_OPTIONS,
)
