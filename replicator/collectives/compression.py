"""Gradient compression: float32 tensors are sent in 16 bits.

Each value is rounded to the nearest number of the narrow type, ties to even, before it
leaves its memory. With u = 2^-8 for bfloat16 (8 significant bits) or 2^-11 for float16
(11 bits), and R operands g_r of which none over- or underflows, the error of a mean
that is summed in float32 and rounded once more before it is sent back is at most

    u * (sum_r |g_r| / R) * (1 + u) + u * |mean|,

and rounding to nearest is unbiased if the low bits of the operands are uniform.
bfloat16 has the exponent range of float32, so nothing overflows. float16 overflows
above 65,504 and underflows below 6e-8: scale the loss (Micikevicius et al. 2018).

By route:

- replicas that share memory: nothing is sent, so nothing is rounded;
- between memories of one program (devices, or remote workers of one client): rounded by
  the sender, summed with float32 accumulation on the owner device, and rounded once
  before they are sent back, so that all replicas get the same bits;
- NCCL: sums float16 in float16; TensorFlow's does not take bfloat16, which is reduced
  on owner devices;
- ``tf.IndexedSlices`` are gathered, not summed: values are rounded on every route;
- stock strategies of ``tf.distribute``: cast first, so summed in 16 bits.

Weights and optimizer state stay in their own type everywhere.
"""

from __future__ import annotations

import tensorflow as tf

from replicator.errors import OptimizerOptionError
from replicator.validation.arguments import is_one_of, shown

_WIRE_DTYPES = {"bfloat16": tf.bfloat16, "float16": tf.float16}
UNIT_ROUNDOFF = {"bfloat16": 2.0**-8, "float16": 2.0**-11}


def check(compression: str | None) -> tf.DType | None:
    """Returns the type in which tensors are sent, or None for their own."""
    if compression is None:
        return None
    if not is_one_of(compression, _WIRE_DTYPES):
        raise OptimizerOptionError(
            f"compression={shown(compression)} is unknown; use 'bfloat16' (the "
            "exponent range of float32, 8 significant bits), 'float16' (11 significant "
            "bits, needs loss_scale), or None"
        )
    return _WIRE_DTYPES[compression]
