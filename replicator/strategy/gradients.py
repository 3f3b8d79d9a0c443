"""The sums of gradients that optimizers ask of ``tf.distribute``.

In a step of ``repl.run`` they are left as they are: ``wrap_optimizer`` has averaged
them. In a step of ``strategy.run`` they are summed, since losses were divided by the
number of replicas. In the step of a Keras model nothing divides losses, whether Keras
computes them or the step does, and gradients of variables are averaged as a tape
returns them: what the step or its optimizer makes of them, such as a clip, is made of
the averages. A replica counts by its examples there, so that the last, partial batch of
an epoch is one like all others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator._tf import compat as _tf_compat
from replicator._tf import keras_parts as _tf_keras_parts
from replicator.collectives import reductions
from replicator.collectives.differentiable import values_of, with_values
from replicator.core import context as context_lib
from replicator.core.step import at_lines, line_of
from replicator.errors import StrategyError
from replicator.optimizer.options import CLIPS
from replicator.optimizer.stages import scaled_gradient
from replicator.optimizer.wrapper import ReplicatedOptimizer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_LIBRARIES = ("keras", "tf_keras")


class GradientSum:
    """What becomes of the sums of gradients in one step."""

    def __init__(
        self,
        num_replicas: int = 1,
        *,
        is_of_model: bool = False,
        num_examples: tf.Tensor | None = None,
    ) -> None:
        self._num_replicas = num_replicas
        self._is_of_model = is_of_model
        self._num_examples = num_examples
        self._weight: tf.Tensor | None = None
        self._means: set[Any] = set()  # operations of gradients that are averaged
        # Whether an optimizer, or a tape, has asked for gradients of all.
        self.has_updated = False

    @property
    def divisor(self) -> int:
        return 1 if self._is_of_model else self._num_replicas

    def of(self, grads: Any, optimizer: Any = None) -> Any:
        """Joins gradients over replicas, for an optimizer."""
        if not context_lib.are_gradients_divided() or self._num_replicas == 1:
            return grads
        _check(optimizer, may_clip=self._is_of_model)
        self.has_updated = True
        if self._is_of_model:
            leaves = self._of_model(tf.nest.flatten(grads))
            return tf.nest.pack_sequence_as(grads, leaves)
        return reductions.all_sum(grads)

    def of_tape(
        self, gradient: Any, tape: Any, target: Any, sources: Any, *args: Any, **kw: Any
    ) -> Any:
        """Gradients as ``tape.gradient`` returns them, of variables averaged."""
        grads = gradient(tape, target, sources, *args, **kw)
        is_inner = _tf_compat.is_control_flow_graph(_tf_compat.current_graph())
        if is_inner or _tf_keras_parts.is_recorded():
            return grads  # of these, the step takes gradients again, or updates apart
        leaves = tf.nest.flatten(grads)
        places = [
            place
            for place, source in enumerate(tf.nest.flatten(sources))
            if isinstance(_tf_compat.unwrap(source), tf.Variable)
            and leaves[place] is not None
        ]
        means = self._averaged([leaves[place] for place in places]) if places else []
        for place, mean in zip(places, means, strict=True):
            leaves[place] = mean
        return tf.nest.pack_sequence_as(grads, leaves)

    def _averaged(self, grads: Sequence[Any]) -> list[Any]:
        self.has_updated = True
        means = list(reductions.all_mean(self._weighted(grads)))
        self._means |= {values_of(mean).op for mean in means}
        return means

    def _of_model(self, grads: Sequence[Any]) -> list[Any]:
        """Gradients of the whole batch: those that no tape returned are averaged."""
        before = self._means
        own = [
            grad
            for grad in grads
            if not (before and _tf_compat.depends_on(values_of(grad), before))
        ]
        means = dict(zip(map(id, own), self._averaged(own) if own else (), strict=True))
        for grad in grads:
            op = values_of(grad).op
            if id(grad) not in means and op not in self._means:
                where = at_lines([line_of(op.traceback)])
                context_lib.require("apply_gradients").require_same(
                    values_of(grad), f"a step of fit(){where} {_NOT_OF_MEANS}"
                )
        return [means.get(id(grad), grad) for grad in grads]

    def mean(self, values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """The means over all examples of what are some over those of each replica."""
        return list(reductions.all_mean(self._weighted(values)))

    def of_scaler(self, grads: Any, scaler: Any) -> Any:
        """Sums gradients before ``LossScaleOptimizer`` asks whether they are finite."""
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

    def unscale(self, grads: list[Any]) -> list[Any]:
        """Multiplies gradients, so that their mean is the sum; see ``of``."""
        self.has_updated = True
        grads, factor = self._weighted(grads), self.divisor
        return [scaled_gradient(x, factor) for x in grads] if factor != 1 else grads

    def of_merge(self, merge_fn: Callable[..., Any]) -> Callable[[Any], Any]:
        """How a function that ``merge_call`` runs sums over replicas."""
        owner = getattr(merge_fn, "__self__", None)
        library = str(getattr(merge_fn, "__module__", "")).partition(".")[0]
        is_optimizer = isinstance(owner, tf.compat.v1.train.Optimizer)
        return self.of if is_optimizer or library in _LIBRARIES else reductions.all_sum

    def weight(self) -> tf.Tensor | None:
        """By what gradients of this replica are multiplied; None if by 1 on all."""
        # Gradients that pass collectives of the model meet those of other replicas,
        # which have weights of their own.
        if self._num_examples is None or self._num_replicas == 1:
            return None
        if self._weight is None:
            own = tf.cast(self._num_examples, tf.float64)
            total = reductions.all_sum(own)
            # Exactly 1 where all have as many.
            whole = own * float(self._num_replicas)
            self._weight = tf.math.divide_no_nan(whole, total)
        return self._weight

    def share(self, dtype: tf.DType) -> tf.Tensor:
        """The share of this replica in all examples."""
        weight = self.weight()
        weight = tf.ones([]) if weight is None else weight
        return tf.cast(weight / float(self._num_replicas), dtype)

    def _weighted(self, grads: Any) -> Any:
        """Gradients of replicas that count by their examples."""
        # Of a replica that has none, a mean is not a number, and counts nothing.
        weight = self.weight()

        def counted(grad: Any) -> Any:
            values = values_of(grad)
            by = tf.cast(weight, values.dtype)
            return with_values(grad, tf.math.multiply_no_nan(values, by))

        return grads if weight is None else list(map(counted, grads))


def _check(optimizer: Any, *, may_clip: bool) -> None:
    """Rejects what an optimizer does before gradients are joined."""
    kind = type(optimizer).__name__
    steps = getattr(optimizer, "gradient_accumulation_steps", None)
    if steps and _tf_compat.is_control_flow_graph(_tf_compat.current_graph()):
        raise StrategyError(
            f"{kind}(gradient_accumulation_steps={steps!r}) joins the gradients of "
            "replicas in a branch of Keras, where replicas cannot communicate; write "
            f"repl.wrap_optimizer({kind}(...), accumulation_steps={steps!r}), which "
            "updates alike, or gradient_accumulation_steps=None"
        )
    clips = [name for name in CLIPS if getattr(optimizer, name, None)]
    if clips and not may_clip:
        raise StrategyError(
            f"{kind}({clips[0]}={getattr(optimizer, clips[0])!r}) clips the "
            "gradient of each replica before they are joined, so an update is not "
            f"that of one device; write repl.wrap_optimizer({kind}(...)), which "
            "averages first"
        )


_NOT_OF_MEANS = (
    "computes with gradients what is more than a function of them, of examples, random "
    "numbers or a state of this replica, so that the update is not that of one device; "
    'write gradients = tf.distribute.get_replica_context().all_reduce("mean", '
    "gradients) before it, and make the rest the same on all replicas"
)
