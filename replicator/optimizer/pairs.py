"""Checks of the gradients and variables that are passed to an optimizer."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from replicator._tf import compat as _tf_compat
from replicator.step.values import tensor_of
from replicator.validation.arguments import listed, shown


def pairs_of(grads_and_vars: Any) -> list[tuple[Any, Any]]:
    """Returns the pairs that are passed to ``apply_gradients``."""
    said = (
        "apply_gradients() takes pairs of gradient and variable; write "
        "optimizer.apply_gradients(zip(grads, variables)), or "
        "optimizer.apply(grads, variables)"
    )
    pairs = listed(grads_and_vars, said)
    for pair in pairs:
        if not (isinstance(pair, (tuple, list)) and len(pair) == 2):  # noqa: PLR2004
            raise TypeError(f"{said}, but got {shown(pair)} instead of a pair")
    return [
        (grad if grad is None else _gradient_of(grad, variable), variable)
        for grad, variable in pairs
    ]


def with_gradient(pairs: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """Returns the pairs that have a gradient."""
    given = [pair for pair in pairs if pair[0] is not None]
    if not given:
        raise ValueError(
            "apply_gradients() got no gradient: all of them are None, so no "
            "variable would be trained; check that the loss depends on the "
            "variables"
        )
    return given


def variables_of(variables: Any, caller: str) -> list[Any]:
    """Returns the variables that an optimizer updates."""
    said = f"{caller}() takes a list of variables, such as model.trainable_variables"
    found = listed(variables, said)
    for variable in found:
        if not _tf_compat.is_variable(variable):
            raise TypeError(f"{said}, but got {shown(variable)} among them")
    return found


def check_are_optimized(optimizer: Any, variables: list[Any]) -> None:
    """Rejects variables for which a Keras optimizer has no state."""
    for variable in variables:
        if not _tf_compat.is_optimized(optimizer, variable):
            raise ValueError(
                f"apply_gradients() got the variable {variable.name!r}, but the "
                "optimizer was built with others and has no state for it; call "
                "optimizer.build(variables) with all of them before the first step, "
                "or create an optimizer for each set of variables"
            )


def _gradient_of(grad: Any, variable: Any) -> Any:
    """Returns the gradient of a variable as a tensor; slices stay slices."""
    if not _tf_compat.is_variable(variable):
        raise TypeError(
            f"apply_gradients() got {shown(variable)} instead of a variable; pass "
            "tf.Variable or Keras variables, such as model.trainable_variables"
        )
    if not isinstance(grad, tf.IndexedSlices):
        grad = tensor_of(grad, f"the gradient of {variable.name!r} must be a tensor")
    shape, expected = _shape_of(grad), tf.TensorShape(variable.shape)
    if not shape.is_compatible_with(expected):
        raise ValueError(
            f"the gradient of {variable.name!r} has shape {shape}, but the "
            f"variable has shape {expected}; pass them in the "
            "same order, such as zip(tape.gradient(loss, variables), variables)"
        )
    return grad


def _shape_of(grad: tf.Tensor | tf.IndexedSlices) -> tf.TensorShape:
    """The shape of a gradient, as far as it is known."""
    if not isinstance(grad, tf.IndexedSlices):
        return grad.shape
    rows = tf.convert_to_tensor(grad.values).shape
    if rows.rank is not None:
        rows = tf.TensorShape([None]).concatenate(rows[1:])
    if isinstance(grad.dense_shape, tf.Tensor):
        dense = tf.get_static_value(grad.dense_shape)
        whole = tf.TensorShape(None if dense is None else list(dense))
        rows = whole if not rows.is_compatible_with(whole) else rows.merge_with(whole)
    return rows
