"""What Keras and its users call a wrapped optimizer by.

Keras 3 spells an update ``optimizer.apply(grads, variables)``. Everything that Keras'
own optimizer would do alone has to go through the average over replicas, or to say why
it does not.
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
        """Does what ``apply_gradients`` does, in the spelling of Keras 3.

        Args:
          grads: One gradient per variable.
          trainable_variables: The variables; by default those that the optimizer was
            built with.

        Returns:
          The wrapped optimizer's iteration counter.

        Raises:
          CollectiveContextError: Called outside a step function.
          OptimizerOptionError: The loss was not scaled, though ``loss_scale`` is set.
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
        """Refused: Keras would update without the gradients of other replicas.

        Raises:
          OptimizerOptionError: Always.
        """
        raise OptimizerOptionError(
            "stateless_apply() of a wrapped optimizer would go round the average over "
            "replicas; write optimizer.apply(grads, variables) in the step function"
        )

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {type(self.wrapped).__name__}>"

    def __str__(self) -> str:
        # Keras quotes it where compile() finds that it is none of its optimizers.
        return (
            f"{self!r}, which Keras' compile() and fit() cannot use, since they know "
            "nothing of replicas: write a step function that takes the gradients and "
            "calls optimizer.apply(grads, variables), and run it with "
            "repl.run(step_fn, inputs)"
        )


def check_is_not_wrapped(optimizer: Any) -> None:
    """Refuses to wrap an optimizer twice.

    Raises:
      TypeError: It is wrapped already.
    """
    if isinstance(optimizer, KerasSpelling):
        raise TypeError(
            f"wrap_optimizer got an optimizer that is wrapped already, {optimizer!r}; "
            "wrap it once and use that, or wrap a new Keras optimizer"
        )
