"""A wrapped optimizer is a Keras optimizer, for Keras and for its users.

It passes for an instance of the class of the optimizer inside (``__class__``), has its
attributes, and is saved as that one. What it adds is here: in Keras 3, an update is
``optimizer.apply(grads, variables)``, and every such method must average over replicas
first, or raise an error that says why it does not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import tensorflow as tf

from replicator._tf import compat as _tf_compat
from replicator._tf.keras_parts import OptimizerProxy, SidecarState
from replicator.core import context
from replicator.core.validation import listed
from replicator.errors import OptimizerOptionError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from replicator.variables.ownership import Ownership


# The file is that of the optimizer inside, number by number, so that it can be loaded
# without this library, and the other way round. State of options (a dynamic loss scale,
# an unfinished accumulation) is in a group beside it, which Keras skips if nobody asks.


class OptionVariable(NamedTuple):
    variable: Any  # A Keras variable.
    initial: float = 0.0  # What all its elements are at first.


class OptionsState(SidecarState):
    """The state that options of ``wrap_optimizer`` add to a Keras optimizer."""

    def __init__(self) -> None:
        # By name. Keras' own names would differ between processes.
        self.entries: dict[str, OptionVariable] = {}
        # Calls since the last update if each replica has sums of its own, which a file
        # of Keras cannot hold; else None.
        self.count: Any = None

    def save_own_variables(self, store: Any) -> None:
        count = 0 if self.count is None else int(self.count)
        if count:
            raise OptimizerOptionError(
                f"Keras cannot save the gradients of {count} calls that each replica "
                "has accumulated since the last update; save after a call that "
                "updates, or by repl.make_checkpoint_manager()"
            )
        for name, entry in self.entries.items():
            store[name] = entry.variable.numpy()

    def load_own_variables(self, store: Any) -> None:
        """Reads what there is; the rest starts anew, as without the option before."""
        saved = set(store.keys())
        for name, entry in self.entries.items():
            shape, dtype = entry.variable.shape, entry.variable.dtype
            start = np.full(shape, entry.initial, dtype)
            entry.variable.assign(store[name] if name in saved else start)


class KerasAdapter(OptimizerProxy):
    """Methods of a Keras optimizer, in terms of ``apply_gradients``."""

    _ownership: Ownership | None
    _is_built: bool

    def __init__(self) -> None:
        # The state that options add to that of the Keras optimizer.
        self.options_state = OptionsState()

    def __dir__(self) -> Iterable[str]:
        # Keras saves what it finds here, and would save `wrapped` a second time.
        names = {*vars(self), *dir(type(self)), *dir(self.wrapped)}
        return sorted(names - {"wrapped"})

    @property
    def built(self) -> bool:
        """Whether all state exists, that of options included; Keras asks."""
        return self._is_built and self.wrapped.built

    def save_own_variables(self, store: Any) -> None:
        """Writes the state of the optimizer inside, as Keras without replicas."""
        for index, variable in enumerate(self._plain_variables()):
            store[str(index)] = variable.numpy()

    def load_own_variables(self, store: Any) -> None:
        """Reads what Keras has saved, with or without replicas."""
        variables = self._plain_variables()
        if len(store.keys()) != len(variables):
            self.wrapped.load_own_variables(store)  # which says that it cannot
            return
        for index, variable in enumerate(variables):
            variable.assign(store[str(index)])

    def _plain_variables(self) -> list[Any]:
        """The state that the optimizer inside would have by itself."""
        ownership = self._ownership
        if ownership is not None and any(
            ownership.is_elsewhere(_tf_compat.unwrap(variable))
            for variable in self.wrapped.variables
        ):
            raise OptimizerOptionError(
                "Keras cannot save or load an optimizer whose state "
                "sharded_update=True keeps in several processes; use "
                "repl.make_checkpoint_manager()"
            )
        own = {id(entry.variable) for entry in self.options_state.entries.values()}
        return [v for v in self.wrapped.variables if id(v) not in own]

    if TYPE_CHECKING:

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
        context.check_in_replica("apply")
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
        """Always raises: Keras would update without the gradients of other replicas."""
        raise OptimizerOptionError(
            "stateless_apply() of a wrapped optimizer would skip the average over "
            "replicas; write optimizer.apply(grads, variables) in the step function"
        )

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {type(self.wrapped).__name__}>"


def check_can_be_wrapped(optimizer: Any) -> None:
    if isinstance(optimizer, KerasAdapter):
        raise TypeError(
            f"wrap_optimizer got an optimizer that is already wrapped, {optimizer!r}; "
            "use it as it is, or wrap a new Keras optimizer"
        )
    for needed in ("apply", "build", "iterations"):
        if not hasattr(optimizer, needed):
            raise TypeError(
                f"wrap_optimizer needs a Keras 3 optimizer, but "
                f"{type(optimizer).__name__!r} has no {needed!r}; pass for "
                "example keras.optimizers.SGD(0.1, momentum=0.9), or keep "
                "an optimizer of another kind unwrapped and pass averages to it: "
                "apply_gradients(zip(replicator.all_mean(grads), variables))"
            )
