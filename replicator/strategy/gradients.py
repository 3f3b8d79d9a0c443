"""The sums of gradients that optimizers ask of ``tf.distribute``.

In a step of ``repl.run`` they are left as they are: ``wrap_optimizer`` has averaged
them. In a step of ``strategy.run`` they are summed, since losses were divided by the
number of replicas. In the step of a Keras model nothing divides losses, whether Keras
computes them or the step does, and gradients are averaged where the tape has ended:
what the step or its optimizer makes of them, such as a clip, is made of the averages. A
replica counts by its examples there, so that the last, partial batch of an epoch is one
like all others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator._tf import compat as _tf_compat
from replicator.collectives import reductions
from replicator.errors import StrategyError
from replicator.optimizer.gradients import times
from replicator.optimizer.wrapper import ReplicatedOptimizer
from replicator.step import context as context_lib
from replicator.step.lines import line_of, shown
from replicator.strategy import tape_calls
from replicator.strategy.derived import Derivation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

_CLIPPING = ("clipnorm", "global_clipnorm", "clipvalue")
_LIBRARIES = ("keras", "tf_keras")


class GradientSum:
    """What becomes of the sums of gradients in one step.

    Attributes:
      means: By reference of a gradient that a tape has returned, its average; of those
        that were averaged in the step of a Keras model.
    """

    def __init__(
        self,
        num_replicas: int = 1,
        *,
        is_of_model: bool = False,
        num_examples: tf.Tensor | None = None,
    ) -> None:
        """Prepares.

        Args:
          num_replicas: Those that the optimizer joins; 1 in steps of ``repl.run``.
          is_of_model: Whether the step is that of a Keras model.
          num_examples: Those of this replica, a scalar, if they weigh its gradients.
        """
        self._num_replicas = num_replicas
        self._is_of_model = is_of_model
        self._num_examples = num_examples
        self._weight: tf.Tensor | None = None
        self.means: dict[Any, tf.Tensor] = {}

    @property
    def divisor(self) -> int:
        """By what losses are to be divided."""
        return 1 if self._is_of_model else self._num_replicas

    @property
    def are_equal(self) -> bool:
        """Whether all replicas have the same number of examples."""
        return self._num_examples is None

    def of(self, grads: Any, optimizer: Any = None) -> Any:
        """Joins gradients over replicas, for an optimizer.

        Raises:
          StrategyError: The result would not be the gradient of one device.
        """
        if not context_lib.are_gradients_divided() or self._num_replicas == 1:
            return grads
        _check_does_not_accumulate(optimizer)
        if self._is_of_model:
            leaves = tf.nest.flatten(grads)
            return tf.nest.pack_sequence_as(grads, self._averaged(leaves))
        _check_does_not_clip(optimizer)
        return reductions.all_sum(grads)

    def _averaged(self, grads: Sequence[Any]) -> list[Any]:
        """The gradients of the whole batch; what a step made of them is made again."""
        sparse = [grad for grad in grads if isinstance(grad, tf.IndexedSlices)]
        dense = [
            tf.convert_to_tensor(grad)
            for grad in grads
            if not isinstance(grad, tf.IndexedSlices)
        ]
        derived = Derivation(dense, tape_calls.is_result)
        _check_derived(derived, sparse)
        # What no tape has returned, such as a gradient in closed form.
        own = [grad for grad in dense if not derived.depends(grad)]
        means = iter(
            reductions.all_mean(self._weighted([*derived.sources, *own, *sparse]))
        )
        of_tape = [next(means) for _ in derived.sources]
        pairs = zip(derived.sources, of_tape, strict=True)
        self.means |= {source.ref(): mean for source, mean in pairs}
        made = list(zip(dense, derived.again(of_tape), strict=True))
        for old, new in made:
            if derived.depends(old) and old.ref() not in self.means:
                context = context_lib.require("apply_gradients")
                context.require_same(new, _at(old.op, _NOT_OF_MEANS))
        of_dense = [new if derived.depends(old) else next(means) for old, new in made]
        rest = iter(of_dense)
        return [
            next(means if isinstance(grad, tf.IndexedSlices) else rest)
            for grad in grads
        ]

    def mean(self, values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """The means over all examples of what are some over those of each replica."""
        return list(reductions.all_mean(self._weighted(values)))

    def of_scaler(self, grads: Any, scaler: Any) -> Any:
        """Sums gradients before Keras' ``LossScaleOptimizer`` asks if they are finite.

        Raises:
          StrategyError: The optimizer inside would average in a branch.
        """
        inner = scaler.inner_optimizer
        if isinstance(inner, ReplicatedOptimizer):
            kind = type(inner.wrapped).__name__
            raise StrategyError(
                f"compile() put a wrapped {kind} into Keras' LossScaleOptimizer, as "
                "the model computes in float16; write compile(repl.wrap_optimizer("
                f'{kind}(...), loss_scale="dynamic"), ..., auto_scale_loss=False)'
            )
        given = [grad for grad in grads if grad is not None]
        rest = iter(self.of(given, inner))
        return [None if grad is None else next(rest) for grad in grads]

    def undivided(self, grads: list[Any]) -> list[Any]:
        """Multiplies gradients, so that their mean is the sum; see ``of``."""
        grads = self._weighted(grads)
        factor = self.divisor
        return grads if factor == 1 else [times(grad, factor) for grad in grads]

    def of_merge(self, merge_fn: Callable[..., Any]) -> Callable[[Any], Any]:
        """How a function that ``merge_call`` runs sums over replicas."""
        owner = getattr(merge_fn, "__self__", None)
        library = str(getattr(merge_fn, "__module__", "")).partition(".")[0]
        is_optimizer = isinstance(owner, tf.compat.v1.train.Optimizer)
        return self.of if is_optimizer or library in _LIBRARIES else reductions.all_sum

    def weight(self) -> tf.Tensor | None:
        """By what gradients of this replica are multiplied; None if by 1 on all.

        Gradients that pass collectives of the model meet those of other replicas, which
        have weights of their own.
        """
        if self._num_examples is None or self._num_replicas == 1:
            return None
        if self._weight is None:
            own = tf.cast(self._num_examples, tf.float64)
            total = reductions.all_sum(own)
            # Exactly 1 where all have as many.
            whole = own * float(self._num_replicas)
            self._weight = tf.math.divide_no_nan(whole, total)
        return self._weight

    def _weighted(self, grads: Any) -> Any:
        """Gradients of replicas that count by their examples.

        Of a replica that has none, a mean is not a number, and counts nothing.
        """
        weight = self.weight()
        if weight is None:
            return grads
        return [_counted(grad, weight) for grad in grads]


def _counted(grad: Any, weight: tf.Tensor) -> Any:
    """A gradient times a weight; a mean over no examples, no number, is not counted."""
    if isinstance(grad, tf.IndexedSlices):
        values = _counted(grad.values, weight)
        return tf.IndexedSlices(values, grad.indices, grad.dense_shape)
    return tf.math.multiply_no_nan(grad, tf.cast(weight, grad.dtype))


def _check_does_not_clip(optimizer: Any) -> None:
    clips = [name for name in _CLIPPING if getattr(optimizer, name, None)]
    if clips:
        kind = type(optimizer).__name__
        raise StrategyError(
            f"{kind}({clips[0]}={getattr(optimizer, clips[0])!r}) clips the "
            "gradient of each replica before they are joined, so an update is not "
            f"that of one device; write repl.wrap_optimizer({kind}(...)), which "
            "averages first"
        )


def _check_does_not_accumulate(optimizer: Any) -> None:
    steps = getattr(optimizer, "gradient_accumulation_steps", None)
    if steps and _tf_compat.is_control_flow_graph(_tf_compat.current_graph()):
        kind = type(optimizer).__name__
        raise StrategyError(
            f"{kind}(gradient_accumulation_steps={steps!r}) joins the gradients of "
            "replicas in a branch of Keras, where replicas cannot communicate; write "
            f"repl.wrap_optimizer({kind}(...), accumulation_steps={steps!r}), which "
            "updates alike, or gradient_accumulation_steps=None"
        )


_NOT_OF_MEANS = (
    "computes with gradients what is more than a function of them, of examples, random "
    "numbers or a state of this replica, so that the update is not that of one device; "
    'write gradients = tf.distribute.get_replica_context().all_reduce("mean", '
    "gradients) before it, and make the rest the same on all replicas"
)
_SPARSE = (
    "computes with a sparse gradient, as an embedding has, before it is averaged over "
    "replicas; make it dense first, by tf.convert_to_tensor(gradient), or leave "
    "clipping to repl.wrap_optimizer(optimizer, global_clipnorm=c)"
)


def _check_derived(derived: Derivation, sparse: Iterable[tf.IndexedSlices]) -> None:
    """Rejects what cannot be made again of averages.

    Raises:
      StrategyError: Names the line.
    """
    if derived.has_effects:
        op = next(op for op in derived.operations if op.op_def.is_stateful)
        raise StrategyError(_at(op, _NOT_OF_MEANS))
    parts: set[Any] = set()
    for grad in sparse:
        values = Derivation([grad.values, grad.indices], tape_calls.is_result)
        parts |= {source.ref() for source in values.sources}
        if values.operations:
            raise StrategyError(_at(values.operations[-1], _SPARSE))
    of_rows = [
        source
        for source in derived.sources
        if source.ref() in parts or source.dtype.is_integer
    ]
    if of_rows:
        raise StrategyError(_at(derived.operations[-1], _SPARSE))


def _at(op: Any, message: str) -> str:
    return f"a step of fit(){shown([line_of(op.traceback)])} {message}"
