"""Gradients that each replica clipped by itself, before they are averaged.

The norm of an average is not the average of norms, so a clip before the average limits
something else than in one-device code. It is found by the names that TensorFlow gives
to the results of ``tf.clip_by_global_norm`` and its like; what was averaged before it
was clipped is right, and is told apart by the proof of what replicas have in common.
"""

from __future__ import annotations

import re
from typing import Any

import tensorflow as tf

from replicator.optimizer.gradients import values_of
from replicator.step import context as context_lib
from replicator.step.tracing import line_of, shown

# tf.clip_by_global_norm numbers its results.
_CLIP = re.compile(r"(?:^|/)clip_by_(norm|value|global_norm)(?:_\d+)?(?:/_\d+)?$")
_INSTEAD = {
    "norm": "clipnorm=c of the Keras optimizer",
    "value": "clipvalue=c of the Keras optimizer",
    "global_norm": "wrap_optimizer(optimizer, global_clipnorm=c)",
}


def check_not_clipped(grads: list[Any]) -> None:
    """Refuses the step if each replica clipped a gradient by its own norm."""
    context = context_lib.require("apply_gradients")
    for grad in map(values_of, grads):
        is_computed = tf.is_symbolic_tensor(grad)
        found = _CLIP.search(grad.op.name) if is_computed else None
        if found is not None:
            how = found.group(1)
            context.require_same(
                grad,
                f"gradients were clipped by tf.clip_by_{how}"
                f"{shown([line_of(grad.op.traceback)])} before they are averaged, so "
                "each replica clips its own, unlike one device; clip the average, by "
                f"{_INSTEAD[how]}; if each replica shall clip its own, write the "
                "average before the update: apply_gradients(zip(replicator."
                "all_mean(grads), variables))",
            )
