"""What Keras hangs on variables and tensors, while a stage is traced.

Updates are of what a layer keeps beside its weights. Keras' own scope for stateless
calls says what a layer would assign; it is assigned once per batch, from all
micro-batches: averages of batch norm as the mean of what they would assign (Huang et
al. 2019, appendix), other variables as their ``aggregation`` says.

With mixed precision, a layer casts its weights where it reads them: once per task. So
what is cast is noted as well, and can be given: cast once per step, outside the tasks.

A mask is an attribute of a tensor. It crosses a cut beside the tensor.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

from replicator._tf import compat as _tf_compat
from replicator._tf import distribute as _tf_distribute
from replicator.errors import CreateVariableInStepError

if TYPE_CHECKING:
    from collections.abc import Mapping

_MASK = "_keras_mask"  # of Keras and tf_keras


class Updates(keras.StatelessScope):
    """What a stage would assign, in one trace of it; variables keep their values.

    Attributes:
      variables: Of Keras, in the order of their first update.
      casts: Variables that are read in another type, and that type, in their order.
      read: Variables of Keras, by the id of their ``tf.Variable``.
      refused: What a layer does that no pipeline can do, each a sentence.
    """

    def __init__(self, given: Mapping[tuple[int, str], Any]) -> None:
        super().__init__(collect_losses=True)
        self._values: dict[int, Any] = {}
        self._given = given
        self.variables: list[Any] = []
        self.casts: dict[tuple[int, str], Any] = {}
        self.read: dict[int, Any] = {}
        self.refused: list[str] = []

    @property
    def values(self) -> list[Any]:
        """The last value of each of the variables."""
        return [self._values[id(variable)] for variable in self.variables]

    def get_current_value(self, variable: Any) -> Any:
        """What was assigned or is given for a variable as it is read; None for none."""
        assigned = super().get_current_value(variable)
        if assigned is not None:
            return assigned
        inner = _tf_compat.unwrap(variable)
        if inner is variable:  # Keras makes no tf.Variable in this scope
            raise CreateVariableInStepError(variable.path)
        self.read[id(inner)] = variable
        if variable.trainable and getattr(variable, "overwrite_with_gradient", False):
            self.refused.append(
                f"has {variable.path!r}, whose gradient is its next value, as with "
                "float8, and not a mean over micro-batches; use another dtype policy"
            )
        wanted = str(variable.dtype)  # within a layer of mixed precision: its own
        if wanted == inner.dtype.name:
            return None
        key = id(variable), wanted
        self.casts[key] = variable
        return self._given.get(key)

    def add_update(self, update: tuple[Any, Any]) -> None:
        super().add_update(update)
        variable, value = update
        if id(variable) not in self._values:
            self.variables.append(variable)
        self._values[id(variable)] = value
        owner = _tf_distribute.layer_in_call()
        is_batch_norm = isinstance(owner, keras.layers.BatchNormalization)
        if variable.trainable:
            self.refused.append(
                f"assigns {variable.path!r} in layer {_name(owner)}, which is trained "
                "as well; create it with trainable=False"
            )
        elif variable.aggregation == "none" and not is_batch_norm:
            self.refused.append(
                f"assigns {variable.path!r} in layer {_name(owner)}, and micro-batches "
                "can be joined in more than one way; say in add_weight(aggregation=) "
                "whether their 'sum' is added or their 'mean' is kept, or "
                "'only_first_replica' if all assign the same"
            )

    def add_loss(self, loss: Any) -> None:
        super().add_loss(loss)
        frame: Any = inspect.currentframe()
        layer = frame.f_back.f_locals["self"]
        self.refused.append(
            f"has a loss of its own in layer {_name(layer)} (add_loss, or an "
            "activity_regularizer), which would be of one micro-batch at a time; "
            "return what it needs from the stages and add it in loss_fn"
        )


def joined(variable: Any, values: list[Any]) -> Any:
    """The value of a variable after what micro-batches would assign."""
    if variable.aggregation == "only_first_replica":
        return values[0]
    if variable.aggregation == "sum":
        before = tf.convert_to_tensor(_tf_compat.unwrap(variable))
        return before + tf.add_n([value - before for value in values])
    return tf.cast(tf.add_n(values) / len(values), values[0].dtype)


def with_masks(nest: Any) -> tuple[Any, dict[int, Any]]:
    """A nest, and the masks of its tensors by their places."""
    masks = {
        place: getattr(tensor, _MASK, None)
        for place, tensor in enumerate(tf.nest.flatten(nest))
    }
    return nest, {p: mask for p, mask in masks.items() if mask is not None}


def masked(pair: tuple[Any, Mapping[int, Any]]) -> Any:
    """The nest of a pair as of ``with_masks``, its tensors with their masks."""
    nest, masks = pair
    flat = tf.nest.flatten(nest)
    for place, mask in masks.items():
        setattr(flat[place], _MASK, mask)
    return nest


def _name(layer: Any) -> str:
    return repr(getattr(layer, "name", None) or type(layer).__name__)
