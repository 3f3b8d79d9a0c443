"""The optimizer methods that Keras and its users call on a wrapped optimizer.

In Keras 3, an update is ``optimizer.apply(grads, variables)``. Every such method must
average over replicas first, or raise an error that says why it does not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator._tf import compat as _tf_compat
from replicator.errors import OptimizerOptionError
from replicator.step import context as context_lib
from replicator.validation.arguments import listed

if TYPE_CHECKING:
    from collections.abc import Iterable


class KerasSpelling:
    """Methods of a Keras optimizer, in terms of ``apply_gradients``."""

    if TYPE_CHECKING:
        wrapped: Any

        def apply_gradients(self, grads_and_vars: Iterable[tuple[Any, Any]]) -> Any:
            """Averages the gradients over replicas and updates the variables."""

    @tf.autograph.experimental.do_not_convert  # as Keras' own updates
    def apply(self, grads: Iterable[Any], trainable_variables: Any = None) -> Any:
        """Does what ``apply_gradients`` does, with the interface of Keras 3.

        Args:
          grads: One gradient per variable.
          trainable_variables: The variables; by default those that the optimizer was
            built with.

        Returns:
          The wrapped optimizer's iteration counter.

        Raises:
          CollectiveContextError: Called outside a step function.
          OptimizerOptionError: ``loss_scale`` is set, but the loss was not scaled.
          TypeError: Pairs, as ``apply_gradients`` takes them.
          ValueError: There is no gradient, or not one per variable.
        """
        context_lib.require("apply")
        if trainable_variables is None:
            trainable_variables = _tf_compat.optimized_variables(self.wrapped)
        if trainable_variables is None:
            raise ValueError(
                "apply() got gradients but no variables, and the optimizer was not "
                "built with any; write optimizer.apply(grads, variables)"
            )
        said = "apply() takes a list of gradients and a list of variables"
        grads, variables = listed(grads, said), listed(trainable_variables, said)
        if any(isinstance(grad, tuple) for grad in grads):
            raise TypeError(
                "apply() got pairs of gradient and variable; write "
                "optimizer.apply(grads, variables), or "
                "optimizer.apply_gradients(zip(grads, variables))"
            )
        if len(grads) != len(variables):
            raise ValueError(
                f"apply() got {len(grads)} gradients for {len(variables)} variables; "
                "pass one per variable, in the same order, such as "
                "tape.gradient(loss, variables)"
            )
        return self.apply_gradients(zip(grads, variables, strict=True))

    def stateless_apply(self, *_arguments: Any, **_options: Any) -> Any:
        """Always raises: Keras would update without the gradients of other replicas.

        Raises:
          OptimizerOptionError: Always.
        """
        raise OptimizerOptionError(
            "stateless_apply() of a wrapped optimizer would skip the average over "
            "replicas; write optimizer.apply(grads, variables) in the step function"
        )

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {type(self.wrapped).__name__}>"

    def __str__(self) -> str:
        # compile() quotes it if an object is not a Keras optimizer.
        return (
            f"{self!r}, which Keras' compile() and fit() cannot use, because they do "
            "not support replicas: write a step function that computes the gradients "
            "and calls optimizer.apply(grads, variables), and run it with "
            "repl.run(step_fn, inputs)"
        )


def check_is_not_wrapped(optimizer: Any) -> None:
    """Rejects an optimizer that is already wrapped.

    Raises:
      TypeError: It is already wrapped.
    """
    if isinstance(optimizer, KerasSpelling):
        raise TypeError(
            f"wrap_optimizer got an optimizer that is already wrapped, {optimizer!r}; "
            "use it as it is, or wrap a new Keras optimizer"
        )
