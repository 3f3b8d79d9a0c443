"""Controls of a study: programs that leave one part of training out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

import replicator
from workloads.matching import Delegating
from workloads.spec import SanityCheck, StepProgram

if TYPE_CHECKING:
    from collections.abc import Iterable

    from workloads.program import ReplicatedProgram
    from workloads.spec import QualityMetric


# Everything is built as for the case, and every "step" reads the batches of a step to
# the devices of the replicas, in one dispatch. Where that takes as long as the step of
# the case, faster replicas would wait for their batches. Nothing is trained.


class InputOnlyProgram(StepProgram):
    """A program that only reads what another one would train on."""

    def __init__(self, program: ReplicatedProgram) -> None:
        self._program = program
        self.per_replica_batch_size = program.per_replica_batch_size
        self.global_batch_size = program.global_batch_size
        self.num_parameters = program.num_parameters

    def run(self, num_steps: int = 1) -> float:
        """Reads the batches of steps, and returns 0: there is no loss."""
        self._program.read(num_steps)
        return 0.0

    def evaluate(self) -> tuple[QualityMetric, ...]:
        """Nothing is trained, so nothing is evaluated."""
        return ()

    def start_window(self) -> None:
        """Starts the window of the program; see ``StepProgram.start_window``."""
        self._program.start_window()

    def pause(self) -> None:
        """Stops what runs in the background; see ``StepProgram.pause``."""
        self._program.pause()

    def resume(self) -> None:
        """Continues what ``pause`` stopped."""
        self._program.resume()

    def window_metrics(self) -> tuple[QualityMetric, ...]:
        """Returns what the program counted; see ``StepProgram.window_metrics``."""
        return self._program.window_metrics()

    def num_environment_steps(self) -> int | None:
        """Returns the environment steps of the whole trial so far."""
        return self._program.num_environment_steps()

    def sanity(self) -> tuple[SanityCheck, ...]:
        """Says that there is nothing to check."""
        return (
            SanityCheck(
                name="input_only",
                is_passed=True,
                detail="not checked: this control reads batches and runs no step",
            ),
        )

    def agree(self, value: int) -> int:
        """Returns the value of the first process; see ``StepProgram.agree``."""
        return self._program.agree(value)

    def explain(self) -> str:
        """Returns the collectives of what was run, of which there are none."""
        return self._program.explain()


# Gradients are computed and summed over replicas as in the case; one number of each sum
# is used, so that TensorFlow computes all of it. What follows is left out: clipping,
# the optimizer's arithmetic and its writes, which take time without any communication.
# Learning means nothing: the weights stay as they are.


class NotUpdatingReplicator(Delegating):
    """A replicator whose optimizers sum gradients and update nothing.

    Everything else is that of the replicator it was made of.

    Attributes:
      original: That replicator.
    """

    def wrap_optimizer(self, *args: Any, **options: Any) -> NotUpdatingOptimizer:
        """Wraps an optimizer; see ``Replicator.wrap_optimizer``."""
        return NotUpdatingOptimizer(self.original.wrap_optimizer(*args, **options))


class NotUpdatingOptimizer(Delegating):
    """An optimizer that updates nothing but its counter of iterations.

    Attributes:
      original: The optimizer that it was made of.
    """

    def apply_gradients(self, grads_and_vars: Iterable[tuple[Any, Any]]) -> Any:
        """Sums gradients over replicas, as an update does first."""
        gradients = [g for g, _ in grads_and_vars if g is not None]
        summed = replicator.all_sum(gradients)
        used = tf.add_n([_one_number(value) for value in summed])
        # The counter depends on all sums: what nothing depends on is not computed.
        is_bad = tf.cast(tf.math.is_nan(used), self.original.iterations.dtype)
        self.original.iterations.assign(self.original.iterations + 1 - is_bad)
        return self.original.iterations


def _one_number(gradient: tf.Tensor | tf.IndexedSlices) -> tf.Tensor:
    values = gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient
    return tf.cast(tf.reshape(values, [-1])[0], tf.float32)
