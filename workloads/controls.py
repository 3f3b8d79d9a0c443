"""Controls of a study, which leave one part of training out, and matching.

Each is a replicator or a program around another one, whose attributes it has but for
its own.
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import tensorflow as tf

import replicator
from replicator import catalog
from workloads.spec import SanityCheck

if TYPE_CHECKING:
    from workloads.spec import QualityMetric, WorkloadInfo


class Delegating:
    """Has the attributes of the object that it was made of, but for its own."""

    def __init__(self, original: Any) -> None:
        self.original = original

    def __getattr__(self, name: str) -> Any:
        if name == "original":  # not yet set while unpickling or copying
            raise AttributeError(name)
        return getattr(self.original, name)


class InputOnlyProgram(Delegating):
    """Reads the batches of steps to the replicas' devices, and computes nothing.

    Where that takes as long as a step of the case, faster replicas would wait.
    """

    flops_per_example = None  # nothing is computed
    compute_dtype = "float32"

    def run(self, num_steps: int = 1) -> float:
        self.original.read(num_steps)
        return 0.0

    def dispatch(self) -> Callable[[], float]:
        loss = self.run()
        return lambda: loss

    def evaluate(self) -> tuple[QualityMetric, ...]:
        return ()

    def losses_of_replicas(self) -> tuple[float, ...]:
        return ()

    def samples(self) -> None:
        """Makes no picture."""

    def save(self, directory: str) -> None:
        """Writes nothing."""

    def sanity(self) -> tuple[SanityCheck, ...]:
        detail = "not checked: this control reads batches and runs no step"
        return (SanityCheck("input_only", is_passed=True, detail=detail),)


class _OtherInputs(Delegating):
    """A replicator whose pipelines read other batches than an input function returns.

    ``batches`` makes them, of the function and the context of a pipeline.
    """

    batches: Callable[..., tf.data.Dataset]

    def make_input_iterator(self, input_fn: Any, *args: Any, **options: Any) -> Any:
        batches = functools.partial(self.batches, input_fn)
        return self.original.make_input_iterator(batches, *args, **options)


class ReusingReplicator(_OtherInputs):
    """A replicator whose pipelines repeat the first batch of each replica, from memory.

    What a case takes longer is the input that its steps wait for. The copy from the
    host to another device stays in the step.
    """

    @staticmethod
    def batches(input_fn: Any, context: replicator.InputContext) -> Any:
        # A pipeline feeds its replicas in turn, so each gets its own batch again.
        num_fed = context.num_replicas_in_sync // context.num_input_pipelines
        return input_fn(context).take(num_fed).cache().repeat()


class NotUpdatingReplicator(Delegating):
    """A replicator whose optimizers sum gradients and update nothing.

    One number of each sum is used, so that TensorFlow computes all of it.
    """

    def wrap_optimizer(self, *args: Any, **options: Any) -> NotUpdatingOptimizer:
        return NotUpdatingOptimizer(self.original.wrap_optimizer(*args, **options))


class _OtherUpdates(Delegating):
    """An optimizer that does in ``apply`` what its ``apply_gradients`` does."""

    def apply(self, grads: Iterable[Any], trainable_variables: Iterable[Any]) -> Any:
        return self.apply_gradients(zip(grads, trainable_variables, strict=True))


class NotUpdatingOptimizer(_OtherUpdates):
    """An optimizer that updates nothing but its counter of iterations."""

    def apply_gradients(self, grads_and_vars: Iterable[tuple[Any, Any]]) -> Any:
        """Sums gradients over replicas, as an update does first."""
        gradients = [g for g, _ in grads_and_vars if g is not None]
        summed = replicator.all_sum(gradients)
        values = [g.values if isinstance(g, tf.IndexedSlices) else g for g in summed]
        used = tf.add_n([tf.cast(tf.reshape(v, [-1])[0], tf.float32) for v in values])
        # The counter depends on all sums: what nothing depends on is not computed.
        is_bad = tf.cast(tf.math.is_nan(used), self.original.iterations.dtype)
        self.original.iterations.assign(self.original.iterations + 1 - is_bad)
        return self.original.iterations


# Matching: N replicas have to compute what one replica computes on the same examples.
# Both sides train a few steps on the same global batches. The pipeline of the workload
# makes them once, as for one replica, and every replica gets its share by position; so
# is noise that a step draws (``own_rows``). What a workload changes for this, such as
# batch normalization over the global batch, is its ``spec.EquivalenceCheck``.
#
# Losses show what replicas read, and later what they learned. What training changed
# shows the mistakes that a loss hides: replicas that do not communicate, a replica that
# is forgotten, a sum in place of a mean, which Adam's state has and its update does
# not. Changes are compared by sketches: sums of randomly signed elements. The distance
# of two sketches estimates the distance of all elements, and has 64 numbers instead of
# millions.

NUM_CHANGING_STEPS: Final = 2
"""Steps after which changes are compared; ``results/study/equivalence.py`` has the same
number. One more amplifies rounding to percents where the learning rate is high, as with
the preset ``laptop`` of ResNet-50; in the first one it can be zero."""
SKETCH_SIZE: Final = 64
"""Numbers of a sketch: its length is that of all elements to about 9 %."""


class MatchingReplicator(_OtherInputs):
    """A replicator whose pipelines divide the global batches of one pipeline."""

    @staticmethod
    def batches(input_fn: Any, context: replicator.InputContext) -> Any:
        num_replicas = context.num_replicas_in_sync
        num_fed = num_replicas // context.num_input_pipelines
        first = context.input_pipeline_id * num_fed

        def divide(*parts: Any) -> Any:  # map unpacks a tuple
            return tf.nest.map_structure(
                lambda v: _by_replica(v, num_replicas)[first : first + num_fed],
                parts[0] if len(parts) == 1 else parts,
            )

        whole = input_fn(replicator.InputContext())
        return whole.map(divide).unbatch()

    def wrap_optimizer(self, *args: Any, **options: Any) -> Any:
        wrapped = self.original.wrap_optimizer(*args, **options)
        is_dense = "shared_rows" in catalog.entry_of(type(self.original)).lacks
        return _DenseGradients(wrapped) if is_dense else wrapped


class _DenseGradients(_OtherUpdates):
    """An optimizer that gets dense gradients; otherwise the one it was made of."""

    def apply_gradients(self, grads_and_vars: Any) -> Any:
        return self.original.apply_gradients(
            [(tf.convert_to_tensor(g), variable) for g, variable in grads_and_vars]
        )


def _by_replica(values: tf.Tensor, num_replicas: int) -> tf.Tensor:
    """Returns [examples, ...] as [replicas, examples of each, ...]."""
    num_rows = values.shape[0] // num_replicas
    return tf.reshape(values, [num_replicas, num_rows, *values.shape[1:]])


def own_rows(values: tf.Tensor) -> tf.Tensor:
    """Returns this replica's share of rows that belong to the global batch."""
    context = replicator.get_replica_context()
    by_replica = _by_replica(values, context.num_replicas_in_sync)
    return tf.gather(by_replica, context.replica_id_in_sync_group)


class MatchedProgram(Delegating):
    """A program that also records what its first steps changed."""

    def __init__(self, original: Any, record: Callable[..., None]) -> None:
        super().__init__(original)
        self._record = record
        self._before = original.trained_values()
        self._num_steps = 0

    def run(self, num_steps: int = 1) -> float:
        loss = self.original.run(num_steps)
        self._num_steps += num_steps
        if self._num_steps == NUM_CHANGING_STEPS:
            after = self.original.trained_values()
            for (group, name), sketch in sketches(self._before, after).items():
                self._record(group=group, name=name, sketch=sketch)
            self._before = {}
        return loss


def sketches(
    before: Mapping[tuple[str, str], Sequence[np.ndarray]],
    after: Mapping[tuple[str, str], Sequence[np.ndarray]],
) -> dict[tuple[str, str], list[float]]:
    """Returns sums of changes by group; each has a random sign, by position."""
    by_variable = {}
    for key, values in after.items():
        generator = np.random.default_rng(zlib.crc32(" ".join(key).encode()))
        sums = np.zeros(SKETCH_SIZE)
        for old, new in zip(before[key], values, strict=True):
            change = np.ravel(new).astype(np.float64) - np.ravel(old)
            change *= generator.integers(0, 2, change.size, dtype=np.int8) * 2.0 - 1.0
            rest = -change.size % SKETCH_SIZE
            sums += np.pad(change, (0, rest)).reshape(-1, SKETCH_SIZE).sum(axis=0)
        by_variable[key] = sums.tolist()
    return by_variable


_REPLICATORS: Final[Mapping[str, Callable[..., Any]]] = {
    "match": MatchingReplicator,
    "no_update": NotUpdatingReplicator,
    "synthetic": ReusingReplicator,
}


def build_control(
    info: WorkloadInfo,
    replicator: replicator.Replicator,
    *,
    control: str,
    record: Callable[..., None] | None = None,
    **settings: Any,
) -> Any:
    """Builds a program of which a part is left out; returns it.

    Args:
      info: The workload.
      replicator: What runs the step.
      control: ``synthetic`` repeats the first batch of each replica, from memory;
        ``no_update`` sums gradients and updates nothing; ``input_only`` reads batches
        and runs no step; with ``match``, N replicas share the batches and the random
        numbers of one. Any other word leaves out nothing.
      record: Takes ``group``, ``name`` and ``sketch`` of what the first two steps
        changed, once for each group of variables.
      **settings: Of ``WorkloadInfo.build``.
    """
    if control in _REPLICATORS:
        replicator = _REPLICATORS[control](replicator)
    program = info.build(replicator, **settings)
    if control == "input_only":
        return InputOnlyProgram(program)
    return MatchedProgram(program, record) if record else program
