"""Operations and collectives of the grammar: what they take, give and mean.

Floating-point operations are smooth, or have their corner at an odd constant that no
value meets but by accident: where a derivative jumps, two right answers differ by more
than rounding. Results stay of moderate size.

A meaning is a function from the values of all replicas to the results of all replicas,
as documented. Gradients follow from it; see ``lockstep``. Nothing of the library is
used here.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import tensorflow as tf
from fuzzing.syntax import BOOL, FLOAT, HALF, INT, Type

if TYPE_CHECKING:
    from collections.abc import Callable

    Shape = tuple[int, ...]
    from collections.abc import Sequence

    Values = list[tf.Tensor]  # one per replica


MAX_SIZE = 24
MAX_RANK = 3


@dataclasses.dataclass(frozen=True)
class Operation:
    template: str  # Python with ``{0}``, ``{1}`` for the arguments.
    takes: str  # What the first argument must be: its dtype.
    # The result's type, given the first argument's shape.
    gives: Callable[[Shape], Type]
    # Whether it takes a first argument of this shape.
    fits: Callable[[Shape], bool] = lambda _: True
    # Types of the further arguments, given the first one's shape; a tuple of allowed
    # types for each.
    others: Callable[[Shape], tuple[tuple[Type, ...], ...]] = lambda _: ()


def _same(dtype):
    return lambda shape: Type(dtype, shape)


def _scalar(dtype):
    return lambda _: Type(dtype)


def _like(dtype):
    """One more argument: of the same shape, or a scalar."""
    return lambda shape: ((Type(dtype, shape), Type(dtype)),)


def _has_rank(*ranks):
    return lambda shape: len(shape) in ranks and all(shape)


def size(shape):
    count = 1
    for length in shape:
        count *= length
    return count


_UNARY = (
    "tf.tanh({0})",
    "tf.sigmoid({0})",
    "tf.sin({0})",
    "tf.square({0})",
    "tf.nn.softplus({0})",
    "-{0}",
    "0.7 * {0} + 0.1",
    "tf.math.rsqrt(tf.square({0}) + 1.3)",
    "tf.exp(tf.sin({0}))",
    "tf.nn.relu({0} + 0.37193)",
    "tf.clip_by_value({0}, -0.91371, 1.13713)",
    "tf.where({0} > 0.12347, {0}, 0.5 * {0})",
    "tf.stop_gradient({0})",
    "tf.identity({0})",
    "tf.zeros_like({0})",
    "tf.ones_like({0}) * 0.25",
)
_OF_SEVERAL = (
    "tf.nn.softmax({0})",
    "tf.cumsum({0})",
    "tf.reverse({0}, [0])",
    "{0} - tf.reduce_mean({0}, axis=0)",
)
_BINARY = (
    "{0} + {1}",
    "{0} - {1}",
    "{0} * {1}",
    "{0} / (1.5 + tf.square({1}))",
    "tf.maximum({0}, {1} + 0.21737)",
    "tf.math.squared_difference({0}, {1})",
)
_REDUCE = ("tf.reduce_sum", "tf.reduce_mean", "tf.reduce_logsumexp", "tf.reduce_prod")


def _elementwise():
    found = [Operation(t, FLOAT, gives=_same(FLOAT)) for t in _UNARY]
    found += [
        Operation(t, FLOAT, gives=_same(FLOAT), fits=_has_rank(1, 2, 3))
        for t in _OF_SEVERAL
    ]
    return found + [
        Operation(t, FLOAT, gives=_same(FLOAT), others=_like(FLOAT)) for t in _BINARY
    ]


def _reductions():
    found = []
    for name in (*_REDUCE, "tf.reduce_max"):
        found += [
            Operation(f"{name}({{0}})", FLOAT, gives=_scalar(FLOAT)),
            Operation(
                f"{name}({{0}}, axis=0)",
                FLOAT,
                fits=_has_rank(1, 2, 3),
                gives=lambda shape: Type(FLOAT, shape[1:]),
            ),
            Operation(
                f"{name}({{0}}, axis=-1, keepdims=True)",
                FLOAT,
                fits=_has_rank(1, 2, 3),
                gives=lambda shape: Type(FLOAT, (*shape[:-1], 1)),
            ),
        ]
    return found


SHAPES = [
    Operation(
        "tf.reshape({0}, [-1])", FLOAT, gives=lambda shape: Type(FLOAT, (size(shape),))
    ),
    Operation(
        "tf.transpose({0})",
        FLOAT,
        fits=_has_rank(2),
        gives=lambda shape: Type(FLOAT, shape[::-1]),
    ),
    Operation(
        "tf.expand_dims({0}, 0)",
        FLOAT,
        fits=_has_rank(0, 1, 2),
        gives=lambda shape: Type(FLOAT, (1, *shape)),
    ),
    Operation(
        "{0}[0]",
        FLOAT,
        fits=_has_rank(1, 2, 3),
        gives=lambda shape: Type(FLOAT, shape[1:]),
    ),
    Operation(
        "{0}[1:]",
        FLOAT,
        fits=lambda shape: bool(shape) and shape[0] > 1,
        gives=lambda shape: Type(FLOAT, (shape[0] - 1, *shape[1:])),
    ),
    Operation(
        "tf.stack([{0}, {1}])",
        FLOAT,
        fits=lambda shape: len(shape) < MAX_RANK and 2 * size(shape) <= MAX_SIZE,
        others=lambda shape: ((Type(FLOAT, shape),),),
        gives=lambda shape: Type(FLOAT, (2, *shape)),
    ),
    Operation(
        "tf.concat([{0}, {1}], 0)",
        FLOAT,
        fits=lambda shape: bool(shape) and 2 * size(shape) <= MAX_SIZE,
        others=lambda shape: ((Type(FLOAT, shape),),),
        gives=lambda shape: Type(FLOAT, (2 * shape[0], *shape[1:])),
    ),
    Operation(
        "tf.matmul({0}, {1}, transpose_b=True)",
        FLOAT,
        fits=_has_rank(2),
        others=lambda shape: ((Type(FLOAT, shape),),),
        gives=lambda shape: Type(FLOAT, (shape[0], shape[0])),
    ),
    Operation(
        "tf.linalg.matvec({0}, {1})",
        FLOAT,
        fits=_has_rank(2),
        others=lambda shape: ((Type(FLOAT, (shape[1],)),),),
        gives=lambda shape: Type(FLOAT, shape[:1]),
    ),
    Operation(
        "tf.gather({0}, tf.math.floormod({1}, tf.shape({0})[0]))",
        FLOAT,
        fits=_has_rank(1, 2),
        others=lambda _: ((Type(INT, (3,)),),),
        gives=lambda shape: Type(FLOAT, (3, *shape[1:])),
    ),
    Operation(
        "tf.math.unsorted_segment_sum({0}, tf.math.floormod({1}, 2), 2)",
        FLOAT,
        fits=lambda shape: shape[:1] == (3,),
        others=lambda _: ((Type(INT, (3,)),),),
        gives=lambda shape: Type(FLOAT, (2, *shape[1:])),
    ),
    Operation(
        "tf.reduce_sum(tf.boolean_mask({0}, {1}), axis=0)",
        FLOAT,
        fits=_has_rank(1, 2),
        others=lambda shape: ((Type(BOOL, shape[:1]),),),
        gives=lambda shape: Type(FLOAT, shape[1:]),
    ),
]
DISCRETE = [
    *(
        Operation(t, INT, gives=_same(INT), others=_like(INT))
        for t in ("{0} + {1}", "{0} * {1}", "tf.maximum({0}, {1})")
    ),
    *(
        Operation(t, INT, gives=_same(INT))
        for t in ("tf.math.floormod({0}, 5)", "3 - {0}", "{0} // 2")
    ),
    Operation("tf.reduce_sum({0})", INT, gives=_scalar(INT)),
    Operation("tf.cast({0}, FLOAT) / 4", INT, gives=_same(FLOAT)),
    *(
        Operation(t, INT, gives=_same(BOOL), others=_like(INT))
        for t in ("{0} < {1}", "tf.equal({0}, {1})", "{0} >= 2 + {1}")
    ),
    Operation("{0} > 0.31721", FLOAT, gives=_same(BOOL)),
    Operation("tf.logical_not({0})", BOOL, gives=_same(BOOL)),
    *(
        Operation(t, BOOL, gives=_same(BOOL), others=_like(BOOL))
        for t in ("tf.logical_and({0}, {1})", "tf.math.logical_xor({0}, {1})")
    ),
    Operation("tf.reduce_any({0})", BOOL, gives=_scalar(BOOL)),
    Operation("tf.cast({0}, tf.int32)", BOOL, gives=_same(INT)),
    Operation(
        "tf.where({0}, {1}, {2})",
        BOOL,
        others=lambda shape: ((Type(FLOAT, shape),), (Type(FLOAT, shape),)),
        gives=_same(FLOAT),
    ),
]
# Of any size that float16 has: none of them makes one larger.
HALVES = [
    *(
        Operation(t, HALF, gives=_same(HALF))
        for t in ("-{0}", "{0} * 0.5", "tf.abs({0})")
    ),
    Operation("tf.maximum({0}, {1})", HALF, gives=_same(HALF), others=_like(HALF)),
    Operation("tf.cast({0}, FLOAT) / 65504.0", HALF, gives=_same(FLOAT)),
    Operation("tf.cast(60000.0 * tf.sin({0}), tf.float16)", FLOAT, gives=_same(HALF)),
]
RANDOM = [
    Operation(
        (f"tf.cast(tf.random.stateless_normal({list(shape)}, [{{0}}, 7]), FLOAT)"),
        INT,
        fits=_has_rank(0),
        gives=lambda _, shape=shape: Type(FLOAT, shape),
    )
    for shape in ((), (3,), (2, 3))
]
# What any transformation of a whole function can take.
PLAIN_OPERATIONS = (*_elementwise(), *_reductions())
OPERATIONS = (*PLAIN_OPERATIONS, *SHAPES, *DISCRETE, *RANDOM)


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
