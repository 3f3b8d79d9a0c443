"""Private names of Keras: batch norm, losses, its files; and of random numbers."""

from __future__ import annotations

import contextlib
import functools
import operator
import re
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf
from keras.src.losses import loss
from keras.src.random.seed_generator import SeedGenerator
from keras.src.saving.keras_saveable import KerasSaveable
from tensorflow.python import pywrap_tfe
from tensorflow.python.eager import backprop
from tensorflow.python.eager import context as eager_context
from tensorflow.python.ops import (
    gen_math_ops,
    gen_random_ops,
    gen_stateless_random_ops_v2,
)
from tensorflow.python.trackable import base as trackable

from replicator._tf.compat import depends_on, replaced

if TYPE_CHECKING:
    import random


OF_NO_EXAMPLE = "replicator_statistics_of_no_example"
"""Name of what stands for the statistics of a batch without rows: whatever it is, no
row is normalized by it."""


def ignore_empty_batches() -> contextlib.AbstractContextManager[None]:
    """Lets Keras' batch normalization take batches without examples (test_layers)."""
    # In the last step of an epoch a replica may have no example. The mean of nothing is
    # NaN, which would become the moving statistics and, through the gradient of
    # ``gamma``, every weight. Such a replica uses and keeps its moving statistics,
    # unless the layer is synchronized: those of the batches of all replicas are never
    # nothing.

    def moments(of_keras: Any, layer: Any, inputs: Any, mask: Any) -> tuple[Any, Any]:
        mean, variance = of_keras(layer, inputs, mask)
        is_of_all = layer.synchronized and mask is None
        if is_of_all or inputs.shape[0] is not None:
            return mean, variance
        has_examples = tf.size(inputs) > 0

        def chosen(new: tf.Tensor, moving: Any) -> tf.Tensor:
            kept = tf.cast(moving.value, new.dtype)
            return tf.where(has_examples, new, tf.identity(kept, name=OF_NO_EXAMPLE))

        return (
            chosen(mean, layer.moving_mean),
            chosen(variance, layer.moving_variance),
        )

    kind = keras.layers.BatchNormalization
    return replaced(kind, "_moments", moments, in_all_graphs=True)


def layers_of(model: Any) -> list[Any]:
    """A model of Keras or tf_keras and all layers within it (test_fit_refusals)."""
    return list(model._flatten_layers())  # noqa: SLF001


# What ends a tape, and what divides: owner and name.
GRADIENT = backprop.GradientTape, "gradient"
DIVISIONS = (gen_math_ops, "real_div"), (gen_math_ops, "div_no_nan")
# What reduces losses of examples, or the number of a loss function, by a mask.
REDUCTION = loss, "reduce_weighted_values"
_TF_KERAS_METRICS = "tf_keras.src.metrics.base_metric"


def numeric_metrics() -> list[Any]:
    """The classes of metrics that take numbers (test_fit, test_communities)."""
    module = sys.modules.get(_TF_KERAS_METRICS)
    others = [] if module is None else [module.Reduce]
    return [keras.metrics.Mean, keras.metrics.Sum, *others]


def is_recorded() -> bool:
    """Whether a tape records, as one of gradients of gradients does (test_fit)."""
    return not pywrap_tfe.TFE_Py_TapeSetIsEmpty()


# Keras finds it as an attribute of an object that it saves, and calls its
# ``save_own_variables`` and ``load_own_variables``.
class SidecarState(KerasSaveable):
    """State with a group of its own in Keras' files (test_keras_saving)."""

    def _obj_type(self) -> str:
        return "Optimizer"  # Keras looks into these attributes only


# ``isinstance`` and Keras' files take it for an instance of that class. TensorFlow sees
# the children of the object inside, and leaves with it what a restored checkpoint has
# for variables that are made later. Attributes that are not its own are read from the
# object inside and written to it.
class OptimizerProxy(trackable.Trackable):
    """Something that passes for what its ``wrapped`` holds (test_wrapper)."""

    wrapped: Any

    def __getattr__(self, name: str) -> Any:
        if name == "wrapped":  # not yet set while unpickling or copying
            raise AttributeError(name)
        return getattr(self.wrapped, name)

    def __setattr__(self, name: str, value: Any) -> None:
        # `optimizer.learning_rate = 0.01` must reach the optimizer that does the work.
        # What constructors set before `wrapped` is this object's own.
        if "wrapped" not in vars(self) or name in vars(self):
            object.__setattr__(self, name, value)
        else:
            setattr(self.wrapped, name, value)

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        kind: type = self.wrapped.__class__
        return kind


# What the graph of objects is made of; values are those of the variables in it.
for _name in (
    "_deferred_dependencies",
    "_handle_deferred_dependencies",
    "_lookup_dependency",
    "_maybe_initialize_trackable",
    "_track_trackable",
    "_trackable_children",
    "_unconditional_checkpoint_dependencies",
    "_unconditional_dependency_names",
    "_update_uid",
):
    setattr(OptimizerProxy, _name, property(operator.attrgetter(f"wrapped.{_name}")))


# ``keras.src.losses.loss.reduce_weighted_values`` divides by what is valid in the
# tensors that it gets: in one micro-batch. While a stage is traced it divides by the
# size instead, which is equal for all micro-batches, and the share of what is valid is
# noted, so that both can be summed apart.

_MEANS = ("mean", "sum_over_batch_size")
_WEIGHTED = "mean_with_sample_weight"
# Of a tensor times what no example changes.
_LINEAR = frozenset({"AddN", "Cast", "Identity", "Mul", "Neg", "RealDiv"})


@contextlib.contextmanager
def noted_means() -> Iterator[list[tuple[tf.Tensor, tf.Tensor]]]:
    """Notes numerators and denominators in this thread (test_kept_by_keras)."""
    means: list[tuple[tf.Tensor, tf.Tensor]] = []

    def reduce(
        original: Any,
        values: Any,
        sample_weight: Any = None,
        mask: Any = None,
        reduction: Any = "sum_over_batch_size",
        dtype: Any = None,
    ) -> Any:
        values = tf.convert_to_tensor(values)
        is_weighted = reduction == _WEIGHTED and (
            sample_weight is not None or mask is not None
        )
        is_masked = reduction in _MEANS and mask is not None
        if values.shape.rank == 0 or not (is_weighted or is_masked):
            return original(values, sample_weight, mask, reduction, dtype)
        values = tf.cast(values, dtype or values.dtype)
        weights = loss.apply_mask(sample_weight, mask, values.dtype, "sum")
        of_size = original(values, weights, None, "sum_over_batch_size", dtype)
        if is_masked:
            share = tf.reduce_mean(tf.cast(mask, values.dtype))
        else:
            size = tf.cast(tf.size(values), values.dtype)
            _, weights = loss.squeeze_or_expand_to_same_rank(values, weights)
            share = tf.reduce_sum(tf.cast(weights, values.dtype)) / size
        means.append((of_size, share))
        return of_size

    with replaced(*REDUCTION, reduce, in_all_graphs=True):
        yield means


def is_multiple(result: tf.Tensor, part: tf.Tensor) -> bool:
    """Whether a loss is a part of it times a factor that no example changes."""
    captured = {id(inner) for _, inner in result.graph.captures}
    given = {x.op for x in result.graph.inputs if id(x) not in captured}
    while result is not part:
        if result.op.type not in _LINEAR or not result.op.inputs:
            return False
        first, *others = result.op.inputs
        if others and result.op.type == "Mul" and not depends_on(first, {part.op}):
            first, others = others[0], [first]
        if result.op.type == "AddN" and others:
            return False
        if any(depends_on(other, given) for other in others):
            return False
        result = first
    return True


# While a step is verified, random numbers are constants, in the graph that is built.
# Uniform numbers are above the usual thresholds, so that dropout and augmentation do
# nothing; integers are the middle of their range.

_CONSTANTS = (
    (gen_random_ops, "random_uniform", 0.9),
    (gen_random_ops, "random_standard_normal", 0.4),
    (gen_random_ops, "truncated_normal", 0.4),
    (gen_random_ops, "random_uniform_int", None),
    (gen_stateless_random_ops_v2, "stateless_random_uniform_v2", 0.9),
    (gen_stateless_random_ops_v2, "stateless_random_normal_v2", 0.4),
    (gen_stateless_random_ops_v2, "stateless_truncated_normal_v2", 0.4),
    (gen_stateless_random_ops_v2, "stateless_random_uniform_int_v2", None),
)
_IS_RANDOM = re.compile(r"Random|Multinomial|StatelessShuffle|TruncatedNormal|^Rng")


@contextlib.contextmanager
def random_constants() -> Iterator[None]:
    """Has random ops return constants (test_verify)."""
    with contextlib.ExitStack() as stack:
        for module, name, value in _CONSTANTS:
            constant = functools.partial(_constant, value)
            stack.enter_context(replaced(module, name, constant))
        yield


def _constant(
    value: float | None, _: Any, shape: Any, *args: Any, **options: Any
) -> Any:
    if value is not None:
        return tf.fill(shape, tf.cast(value, options.get("dtype") or args[0]))
    low, high = args[:2] if args else (options["minval"], options["maxval"])
    return tf.fill(shape, low + (high - low) // 2)


def left_random(graph: Any) -> list[Any]:
    """The operations of a graph that draw, also within the functions that it calls."""
    drawing = {
        function.definition.signature.name
        for function in graph._functions.values()  # noqa: SLF001
        if any(_IS_RANDOM.search(node.op) for node in function.definition.node_def)
    }
    return [
        op
        for op in graph.get_operations()
        if _IS_RANDOM.search(op.type)
        or any(attr.func.name in drawing for attr in op.node_def.attr.values())
    ]


def eager_generator() -> random.Random | None:
    """From what eager operations without a seed draw theirs (test_verify)."""
    # None in a process without a global seed: each then has one of its own.
    return getattr(eager_context.context(), "_rng", None)


# ``keras.src.random.SeedGenerator.next`` reads a variable and moves it on. Within a
# stage it is replaced, for the thread that traces, by an argument of the stage.


def drawing(
    generators: list[Any], seeds: Sequence[tf.Tensor] | None
) -> contextlib.AbstractContextManager[None]:
    """Notes who draws in this thread, and answers by seeds in turn (test_pipeline)."""

    # Inside Keras a layer holds its own generator, so that nothing less than the method
    # reaches every draw. Without seeds, each gets one that is not used.
    def draw(_: Any, generator: Any, *_args: Any, **_options: Any) -> tf.Tensor:
        generators.append(generator)
        if seeds is None:
            return tf.zeros(generator.state.shape, generator.state.dtype)
        return seeds[len(generators) - 1]

    return replaced(SeedGenerator, "next", draw, in_all_graphs=True)


def generator_spec(generator: Any) -> tf.TensorSpec:
    """What a generator of Keras returns (test_pipeline)."""
    return tf.TensorSpec(generator.state.shape, generator.state.dtype)
