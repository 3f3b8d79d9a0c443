"""What training steps share: compilation, layouts, batch norm and precision."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

import replicator
from workloads.data.images import Images
from workloads.metrics import quality
from workloads.spec import JIT_COMPUTE

if TYPE_CHECKING:
    import numpy as np

    from workloads.data.images import Augmentation
    from workloads.spec import Metric, QualityMetric, SanityCheck


# ``compute``: forward and backward pass of each replica. The step around them stays a
# graph: random numbers are drawn before, and collectives and updates run after. So the
# same step runs on every backend, and draws the same numbers as without XLA.


# Assignments of the program that is being traced; None outside of one.
_deferred: ContextVar[list[tuple[Any, tf.Tensor]] | None] = ContextVar(
    "deferred", default=None
)


def assign(variable: Any, value: tf.Tensor) -> None:
    """Assigns a value that is the same on all replicas.

    In a function that ``compiled`` returns it is an output, assigned afterwards: stock
    strategies choose the replica that assigns, which they cannot in a function.

    Args:
      variable: A variable whose aggregation is ``only_first_replica``.
      value: A tensor of its shape and type.
    """
    deferred = _deferred.get()
    if deferred is None:
        variable.assign(value)
    else:
        deferred.append((variable, value))


def copy_of(variable: Any, name: str) -> keras.Variable:
    """Returns an untrained copy of a variable, to which all replicas write the same."""
    return keras.Variable(
        variable.numpy(), trainable=False, aggregation="only_first_replica", name=name
    )


def compiled(function: Callable[..., Any], jit: str) -> Callable[..., Any]:
    """Returns a function, compiled by XLA where ``jit`` is ``compute``.

    Args:
      function: Takes and returns tensors, in any nesting; sparse gradients stay sparse.
        It assigns by ``assign``, and has no collectives.
      jit: The option of that name of a workload: ``off`` or ``compute``.
    """
    return Compiled(function) if jit == JIT_COMPUTE else function


class Compiled:
    """A function that XLA compiles; sparse gradients are values and indices in it."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self.program = tf.function(self._flat, jit_compile=True, autograph=False)

    def __call__(self, *args: Any) -> Any:
        """Calls the compiled function; arguments and results as of the original."""
        flat, values = self.program(*args)
        for variable, value in zip(self._assigned, values, strict=True):
            variable.assign(value)
        # A shape that a program returns is a tensor like any other, of which nobody
        # could know that it is the same on all replicas.
        leaves = [
            leaf
            if shape is None
            else tf.IndexedSlices(*leaf, dense_shape=tf.constant(shape, tf.int64))
            for leaf, shape in zip(flat, self._shapes, strict=True)
        ]
        return tf.nest.pack_sequence_as(self._outputs, leaves)

    def _flat(self, *args: Any) -> tuple[list[Any], list[tf.Tensor]]:
        assignments: list[tuple[Any, tf.Tensor]] = []
        token = _deferred.set(assignments)
        try:
            outputs = self._function(*args)
        finally:
            _deferred.reset(token)
        self._outputs = tf.nest.map_structure(lambda _: 0, outputs)
        self._assigned = [variable for variable, _ in assignments]
        self._shapes, flat = [], []
        for leaf in tf.nest.flatten(outputs):
            is_sparse = isinstance(leaf, tf.IndexedSlices)
            shape = tf.get_static_value(leaf.dense_shape) if is_sparse else None
            self._shapes.append(shape)
            flat.append((leaf.values, leaf.indices) if is_sparse else leaf)
        return flat, [value for _, value in assignments]


# Keras computes in NHWC. TensorFlow's graph optimizer converts convolutions on GPUs to
# NCHW in float32, and keeps NHWC in 16 bits, for which tensor cores from compute
# capability 8.0 on are made. A conversion puts a transposition wherever the layouts
# meet.

_OPTIMIZER = "layout_optimizer"


# Of batch normalization of ResNet (He et al. 2016) and the published SN-GAN code.
MOMENTUM = 0.9


def batch_norm(statistics: str, num_channels: int, **options: Any) -> Any:
    """Creates and builds a layer that normalizes channels by the batch."""
    kind = replicator.CrossReplicaBatchNormalization
    if statistics == "local":
        kind = FusedBatchNorm
    layer = kind(momentum=MOMENTUM, **options)
    layer.build((None, None, None, num_channels))
    return layer


class FusedBatchNorm(keras.layers.BatchNormalization):
    """Normalization over this replica's batch, by one kernel."""

    def call(self, inputs: Any, training: bool = False) -> Any:
        size = self.moving_mean.shape
        result = tf.raw_ops.FusedBatchNormV3(
            x=inputs,
            scale=tf.ones(size) if self.gamma is None else self.gamma.value,
            offset=tf.zeros(size) if self.beta is None else self.beta.value,
            mean=self.moving_mean.value,
            variance=self.moving_variance.value,
            epsilon=self.epsilon,
            # The weight of the batch in the new moving statistics; the kernel mixes.
            exponential_avg_factor=1.0 - self.momentum if training else 1.0,
            is_training=training,
        )
        if training:
            self.moving_mean.assign(result.batch_mean)
            self.moving_variance.assign(result.batch_variance)
        return result.y


# Norms, activations, pooling and the update are left out, as is usual for model FLOPs
# (PaLM, Chowdhery et al. 2022, appendix B): the count must not depend on how they are
# computed.


def products_of(layer: Any, size: int = 1) -> int:
    """Returns the multiply-adds of a layer on an image of ``size`` times ``size``."""
    return math.prod(layer.kernel.shape) * size**2


def flops_of(products: Sequence[int]) -> int:
    """Returns the operations of an example in a step, of the multiply-adds of layers.

    Two per multiply-add; forward, and backward for weights and inputs, but the first
    layer's: pixels need no gradient.
    """
    return 2 * (3 * sum(products) - products[0])


class Schedule(keras.optimizers.schedules.LearningRateSchedule):
    """A learning rate by the number of updates; a dataclass, whose fields configure."""

    def get_config(self) -> dict[str, Any]:
        fields: Any = dataclasses.fields(self)
        return {field.name: getattr(self, field.name) for field in fields}


def _variables_of(layer: Any, path: str) -> Iterator[tuple[str, np.ndarray]]:
    """Yields variables with their paths: attributes that lead there, and a name."""
    inside: set[int] = set()
    for name, value in vars(layer).items():
        named = {f"{path}.{name}": value}
        if isinstance(value, (list, tuple)):
            named = {f"{path}.{name}.{k}": each for k, each in enumerate(value)}
        for prefix, each in named.items():
            if isinstance(each, keras.layers.Layer) and not name.startswith("_"):
                inside |= {id(variable) for variable in each.variables}
                yield from _variables_of(each, prefix)
    for variable in layer.variables:
        if id(variable) not in inside:
            yield f"{path}.{variable.name}", variable.numpy()


# TF32 keeps 10 bits of mantissa in float32 products and convolutions on GPUs. It is on
# in TensorFlow by default. Workloads set it explicitly, so that a record says which one
# it is, whatever a program before them has set.


@contextlib.contextmanager
def dtype_policy(policy: str) -> Iterator[None]:
    """Creates layers in a block with a dtype policy, then restores the previous one."""
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(policy)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


def set_up(repl: replicator.Replicator, config: Any) -> None:
    """Sets what a configuration says of the number types and layouts of a process."""
    is_served = repl.num_programs < repl.num_workers
    # Those of all workers, once they are connected; CPUs have no TF32.
    if not config.tf32 and is_served and tf.config.list_logical_devices("GPU"):
        raise ValueError(
            f"option tf32=False does not reach the GPUs of {type(repl).__name__}, "
            "whose workers only serve TensorFlow: leave it True, or use a backend such "
            "as multi_worker"
        )
    tf.config.experimental.enable_tensor_float_32_execution(config.tf32)
    is_set = tf.config.optimizer.get_experimental_options().get(_OPTIMIZER) is False
    is_kept = getattr(config, "conv_layout", "auto") == "nhwc"
    # Set back after a program before this one; a trial has a process of its own.
    if is_kept != is_set and hasattr(config, "conv_layout"):
        tf.config.optimizer.set_experimental_options({_OPTIMIZER: not is_kept})


class Training:
    """What the harness asks of a training.

    Besides, it has ``input_fn``, which returns the batches of an input pipeline, and
    ``step_fn`` or ``cycle``.
    """

    source: Any = None
    trackables: dict[str, Any]
    batch_per_example = 1
    input_fn: Callable[..., tf.data.Dataset]
    step_fn: Callable[..., Any]

    def __init__(
        self,
        repl: replicator.Replicator,
        config: Any,
        *,
        data: str,
        per_replica_batch_size: int,
        seed: int,
    ) -> None:
        set_up(repl, config)
        self.config, self.data, self.seed = config, data, seed
        self.global_batch_size = per_replica_batch_size * repl.num_replicas_in_sync

    def train(self, repl: replicator.Replicator, inputs: Any, step: int) -> Any:
        """Runs a step on all replicas; returns its outputs."""
        return repl.run(self.cycle[step % len(self.cycle)], inputs)

    @functools.cached_property
    def cycle(self) -> Sequence[Callable[..., Any]]:
        """Steps that take turns; each one object, as a step is traced per function."""
        return (self.step_fn,)

    def close(self) -> None:
        """Ends what runs beside the steps."""

    @staticmethod
    def prepare(data: str) -> None:
        """Prepares what a machine keeps; runs no op, so that devices can be made."""

    def flops(self) -> int | None:
        """Returns the operations of the model for one example: two per multiply-add."""
        return None

    def evaluate(self, metrics: Sequence[Metric]) -> tuple[QualityMetric, ...]:
        """Measures what was learned; random data has nothing to learn."""
        del metrics
        return ()

    def check(self) -> tuple[SanityCheck, ...]:
        """Checks the data, besides what all programs check."""
        return ()

    def samples(self) -> bytes | None:
        """Returns a picture of what the training makes, as PNG, or None."""
        return None

    def match(self, num_replicas: int) -> None:
        """Lets N replicas draw what one would: N are compared with one."""

    def weights(self) -> dict[str, np.ndarray]:
        """Returns the models' variables by path, such as ``model.stem.kernel``."""
        found: dict[str, np.ndarray] = {}
        for name, trackable in self.trackables.items():
            if isinstance(trackable, keras.Model):
                found.update(_variables_of(trackable, name))
        return found

    def matched_draws(self) -> dict[str, np.ndarray]:
        """Returns what every matched step draws, by name, for all replicas."""
        return {}


class ImageTraining(Training):
    """What a training on labelled images has: settings, data, held-out predictions."""

    model: Any
    augmentation: Augmentation | None = None  # by default that of the data

    def __init__(
        self, repl: replicator.Replicator, config: Any, **batches: Any
    ) -> None:
        super().__init__(repl, config, **batches)
        kind = self.augmentation
        self.images = Images(
            repl, config, data=self.data, seed=self.seed, augmentation=kind
        )
        self.source = self.images.source
        self._predict = tf.function(
            lambda images: self.model(images, training=False), autograph=False
        )

    def input_fn(self, context: replicator.InputContext) -> tf.data.Dataset:
        """Returns the batches of one input pipeline, each for one replica."""
        size = context.get_per_replica_batch_size(self.global_batch_size)
        return self.images.batches(context, size)

    def evaluate(self, metrics: Sequence[Metric]) -> tuple[QualityMetric, ...]:
        """Measures metrics on the whole held-out split, on one device."""
        source = self.source
        if source is None:  # random images have no labels to be found
            return ()
        scores = quality.example_metrics(metrics, self._predictions())
        num_examples = scores[0].num_examples
        if num_examples != source.num_evaluation_examples:
            raise RuntimeError(
                f"evaluation counted {num_examples} examples of {source.name!r}, but "
                f"its {source.evaluation_split!r} split has "
                f"{source.num_evaluation_examples}"
            )
        return scores

    def _predictions(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        size = self.config.evaluation_batch_size
        for batch in self.images.whole_split(self.source.evaluation_split, size):
            is_example = batch["is_example"].numpy()
            predicted = self._predict(batch["image"]).numpy()
            yield predicted[is_example], batch["label"].numpy()[is_example]
