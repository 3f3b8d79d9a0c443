"""The TensorFlow operations of the grammar: templates, and the types that they take.

Floating-point operations are smooth, or have their corner at an odd constant that no
value meets but by accident: where a derivative jumps, two right answers differ by more
than rounding. Results stay of moderate size.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from fuzzing.syntax import BOOL, FLOAT, HALF, INT, Type

if TYPE_CHECKING:
    from collections.abc import Callable

    Shape = tuple[int, ...]

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
