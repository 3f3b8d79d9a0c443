"""The collectives of the grammar: what each takes, gives and means, as documented.

A meaning is a function from the values of all replicas to the results of all replicas.
Gradients follow from it; see ``lockstep``. Nothing of the library is used here.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from fuzzing.operations import MAX_RANK, MAX_SIZE, size
from fuzzing.syntax import BOOL, FLOAT, HALF, Type

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Values = list[tf.Tensor]  # one per replica

MAX_REPLICAS = 3
REDUCTIONS = ("sum", "mean", "min", "max")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Collective:
    # Takes all values and the parameter; returns all results.
    meaning: Callable[[Values, Any], Values]
    # Whether it takes a type, given the parameter and R.
    takes: Callable[[Type, Any, int], bool] = lambda *_: True
    # The result's type, given the operand's and R.
    gives: Callable[[Type, int], Type] = lambda type_, _: type_
    # What its second argument can be, given R; None for no argument.
    parameters: Callable[[int], Sequence[Any]] = lambda _: (None,)
    is_same: bool = True  # Whether all replicas get the same.


def reduce_all(op, values):
    """A reduction over replicas, as the documentation words it."""
    stacked = tf.stack(values)
    if stacked.dtype == tf.bool:
        return {"min": tf.reduce_all, "max": tf.reduce_any}[op](stacked, axis=0)
    if stacked.dtype == tf.float16 and op == "mean":  # of large ones, too
        wide = tf.reduce_mean(tf.cast(stacked, tf.float32), axis=0)
        return tf.cast(wide, tf.float16)
    return {
        "sum": tf.reduce_sum,
        "mean": tf.reduce_mean,
        "min": tf.reduce_min,
        "max": tf.reduce_max,
    }[op](stacked, axis=0)


def _for_all(value, values):
    return [tf.identity(value) for _ in values]


def _is_reduced(type_, op, _):
    # A sum of halves of any size may be infinite by right.
    takes = {
        "sum": type_.dtype not in (BOOL, HALF),
        "mean": type_.dtype in (FLOAT, HALF),
    }
    return takes.get(op, True)


def _is_divided(type_, num_replicas):
    return bool(type_.shape) and type_.shape[0] % num_replicas == 0


def _is_stacked(type_, *_):
    is_small = size(type_.shape) * MAX_REPLICAS <= MAX_SIZE
    return len(type_.shape) < MAX_RANK and is_small


def _received(values, pairs):
    source = {target: sender for sender, target in pairs}
    return [
        tf.identity(values[source[r]]) if r in source else tf.zeros_like(value)
        for r, value in enumerate(values)
    ]


def _exchanged(values, _):
    parts = [tf.split(value, len(values)) for value in values]
    return [tf.concat(column, 0) for column in zip(*parts, strict=True)]


COLLECTIVES = {
    "all_reduce": Collective(
        meaning=lambda values, op: _for_all(reduce_all(op, values), values),
        takes=_is_reduced,
        parameters=lambda _: REDUCTIONS,
    ),
    "all_gather": Collective(
        meaning=lambda values, _: _for_all(tf.stack(values), values),
        takes=_is_stacked,
        gives=lambda type_, count: Type(type_.dtype, (count, *type_.shape)),
    ),
    "broadcast": Collective(
        meaning=lambda values, source: _for_all(values[source], values),
        parameters=range,
    ),
    "reduce_scatter": Collective(
        meaning=lambda values, op: tf.split(reduce_all(op, values), len(values)),
        takes=lambda type_, op, count: (
            _is_reduced(type_, op, count) and _is_divided(type_, count)
        ),
        gives=lambda type_, count: Type(
            type_.dtype, (type_.shape[0] // count, *type_.shape[1:])
        ),
        parameters=lambda _: REDUCTIONS,
        is_same=False,
    ),
    "all_to_all": Collective(
        meaning=_exchanged,
        takes=lambda type_, _, count: _is_divided(type_, count),
        is_same=False,
    ),
    "permute": Collective(
        meaning=_received,
        # Around a ring, down a pipeline, and to itself only.
        parameters=lambda count: (
            tuple((r, (r + 1) % count) for r in range(count)),
            tuple((r + 1, r) for r in range(count - 1)),
            ((count - 1, count - 1),),
        ),
        is_same=False,
    ),
}
