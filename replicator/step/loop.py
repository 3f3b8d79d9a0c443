"""Several steps per dispatch: a loop around a replicated step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import tensorflow as tf

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def repeat(
    step: Callable[[tf.Tensor], Sequence[tf.Tensor]],
    num_steps: int | tf.Tensor,
    specs: Sequence[tf.TensorSpec],
) -> list[tf.Tensor]:
    """Runs ``step`` ``num_steps`` times in the graph being built."""
    if isinstance(num_steps, int) and num_steps == 1:
        return list(step(tf.constant(0)))
    # The loop needs initial values; they are never read.
    start = [tf.zeros([d or 0 for d in s.shape], s.dtype) for s in specs]

    def body(index: tf.Tensor, *_previous: tf.Tensor) -> list[tf.Tensor]:
        return [index + 1, *step(index)]

    final = tf.while_loop(
        lambda index, *_: index < num_steps,
        body,
        [tf.constant(0), *start],
        shape_invariants=[tf.TensorShape([]), *(s.shape for s in specs)],
        # Training steps depend on each other: more iterations would only use memory.
        parallel_iterations=1,
    )
    return list(final[1:])
