"""Base of the programs of all workloads on images."""

from __future__ import annotations

import contextlib
import json
import math
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

import replicator
from workloads.data import audit
from workloads.matching import Delegating, MatchingReplicator
from workloads.spec import SanityCheck, StepProgram

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from replicator.checkpoint.manager import CheckpointManager
    from workloads.data.sources import Examples
    from workloads.spec import QualityMetric


# A GPU takes about a hundred times as many examples per second as a CPU core, and one
# pipeline feeds all GPUs of a process. Where replicas compute on CPUs, which pipelines
# would take from them, nothing changes.

NUM_PREFETCHED = 2
"""Batches that wait on each GPU: one is read by the step while the next is copied."""


def make_iterator(
    repl: replicator.Replicator,
    input_fn: Callable[[replicator.InputContext], tf.data.Dataset],
    mode: replicator.InputReplicationMode = (
        replicator.InputReplicationMode.PER_WORKER
    ),
) -> replicator.InputIterator:
    """Makes the pipelines of a workload; on GPUs, batches are prefetched to them."""
    return repl.make_input_iterator(
        input_fn, mode, prefetch_to_device=NUM_PREFETCHED if repl.feeds_gpus else 0
    )


# The batch is made once, by the pipeline of the workload, and kept in memory, so a step
# has its real inputs without what it costs to read, decode and shuffle them. What a
# case takes longer than this control is the input that its steps wait for. The copy
# from the host to another device stays in the step. Learning means nothing.


class ReusingReplicator(Delegating):
    """A replicator whose pipelines repeat the first batch of each replica.

    Everything else is that of the replicator it was made of.

    Attributes:
      original: That replicator.
    """

    def make_input_iterator(
        self,
        input_fn: Callable[[replicator.InputContext], tf.data.Dataset],
        *args: Any,
        **options: Any,
    ) -> replicator.InputIterator:
        """Makes pipelines that repeat; see ``Replicator.make_input_iterator``."""

        def reusing_fn(context: replicator.InputContext) -> tf.data.Dataset:
            # A pipeline feeds its replicas in turn, so each gets its own batch again.
            num_fed = context.num_replicas_in_sync // context.num_input_pipelines
            return input_fn(context).take(num_fed).cache().repeat()

        return self.original.make_input_iterator(reusing_fn, *args, **options)


def not_checked(name: str) -> SanityCheck:
    """What stands for a check of the examples that were read."""
    return SanityCheck(
        name=name,
        is_passed=True,
        detail="not checked: this control repeats the first batch of each replica",
    )


class ReplicatedProgram(StepProgram):
    """Base of programs on a replicator: agreement, explanation, sanity checks.

    Attributes:
      reuses_batch: Whether every step gets the first batch again: a measuring control.
      is_matched: Whether N replicas are compared with one, which takes batches and
        noise that are drawn for all replicas (``workloads/matching.py``).
    """

    _inputs: replicator.InputIterator

    def __init__(
        self, repl: replicator.Replicator, *, per_replica_batch_size: int
    ) -> None:
        """Stores the batch sizes.

        Raises:
          ValueError: A batch size below 1.
        """
        if per_replica_batch_size < 1:
            raise ValueError(
                f"per_replica_batch_size {per_replica_batch_size!r} must be at least 1"
            )
        self.per_replica_batch_size = per_replica_batch_size
        self.global_batch_size = per_replica_batch_size * repl.num_replicas_in_sync
        self._repl = repl
        self.reuses_batch = isinstance(repl, ReusingReplicator)
        self.is_matched = isinstance(repl, MatchingReplicator)
        self._num_steps = 0
        self._last_loss = math.nan
        # Those of this process's replicas; they stay on their devices until requested.
        self._replica_losses: tuple[Any, ...] = ()
        self._checkpoints: CheckpointManager | None = None

    @property
    def pipeline_batch_size(self) -> int:
        """Examples of a batch that the input function makes."""
        return (
            self.global_batch_size if self.is_matched else self.per_replica_batch_size
        )

    def trained_values(self) -> dict[tuple[str, str], list[np.ndarray]]:
        """Returns copies of what training changes, by group and name.

        A group is ``model`` or ``optimizer``.
        """
        found = {}
        for name, trackable in self._trackables().items():
            is_optimizer = hasattr(trackable, "apply_gradients")
            variables = getattr(
                trackable, "variables" if is_optimizer else "trainable_variables", ()
            )
            # Counters would hide the rest, and are equal wherever steps are.
            values = [
                np.array(variable.numpy(), copy=True)
                for variable in variables
                if tf.as_dtype(variable.dtype).is_floating
            ]
            if values:
                found["optimizer" if is_optimizer else "model", name] = values
        return found

    def matched_draws(self) -> dict[str, np.ndarray]:
        """Returns what every matched step draws, by name, for all replicas.

        Rows first; nothing, unless a workload draws random numbers in its steps.
        """
        return {}

    def read(self, num_steps: int = 1) -> None:
        """Reads the batches of steps to the devices of the replicas; no step runs.

        Returns after the last batch has arrived.
        """
        with self._explained():
            for output in self._run(_touch, num_steps):
                float(output)

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        """Says what is wrong with the data, where a pipeline fails."""
        yield

    def _run(self, step: Callable[[Any], Any], num_steps: int) -> Any:
        """Runs steps on the next batches; returns what the last one returned."""
        with self._explained():
            return self._repl.run(step, self._inputs, num_steps=num_steps)

    def _keep_losses(self, losses: Any) -> float:
        """Waits for the losses of a step and returns their mean over replicas."""
        return self._reader_of(losses)()

    def _reader_of(self, losses: Any) -> Callable[[], float]:
        """Returns a function that does the same later, maybe after further steps."""
        # Queued here: behind further steps, it would wait for them.
        mean = self._repl.reduce("mean", losses)

        def read() -> float:
            self._replica_losses = tuple(losses)
            self._last_loss = float(mean)
            return self._last_loss

        return read

    def losses_of_replicas(self) -> tuple[float, ...]:
        """Returns the losses of the last step, one per replica of the whole trial."""
        own = [float(loss) for loss in self._replica_losses]
        # Python's JSON can represent NaN and infinity.
        of_workers = self._repl.gather_bytes(json.dumps(own).encode("ascii"))
        return tuple(loss for text in of_workers for loss in json.loads(text))

    def _trackables(self) -> Mapping[str, Any]:
        """Returns the objects to checkpoint, by name; empty if there are none."""
        return {}

    def save(self, directory: str) -> str | None:
        """Writes a checkpoint of models and optimizers; see ``StepProgram.save``.

        The position in the data is not part of it.
        """
        trackables = self._trackables()
        if not trackables:
            return None
        if self._checkpoints is None:
            self._checkpoints = self._repl.make_checkpoint_manager(
                directory, max_to_keep=1, **trackables
            )
        self._check_variables(trackables)
        return self._checkpoints.save(self._num_steps)

    def _check_variables(self, trackables: Mapping[str, Any]) -> None:
        """Raises if a value of a model is not finite.

        The loss of a step was computed before its update, so it does not show that.
        """
        for name, trackable in trackables.items():
            for variable in getattr(trackable, "trainable_variables", ()):
                if not np.isfinite(variable.numpy()).all():
                    raise FloatingPointError(
                        f"variable {variable.path!r} of {name!r} is not finite after "
                        f"{self._num_steps} steps"
                    )

    def sanity(self) -> tuple[SanityCheck, ...]:
        """Checks the loss and the copies of the variables."""
        return (self._check_loss(), self._check_sync())

    def _check_loss(self) -> SanityCheck:
        return SanityCheck(
            name="loss_is_finite",
            is_passed=math.isfinite(self._last_loss),
            detail=f"last loss {self._last_loss}",
        )

    def _check_sync(self) -> SanityCheck:
        count = self._repl.num_replicas
        if self._repl.without_communication:
            return SanityCheck(
                name="replicas_in_sync",
                is_passed=True,
                detail=f"not checked: this control keeps its {count} replicas from "
                "communicating, so their variables differ",
            )
        try:
            self._repl.assert_in_sync()
        except replicator.ReplicatorError as error:
            is_passed, detail = False, str(error)
        else:
            is_passed, detail = True, f"variables of {count} replicas are identical"
        return SanityCheck(name="replicas_in_sync", is_passed=is_passed, detail=detail)

    def agree(self, value: int) -> int:
        """Returns the value of worker 0, on all workers."""
        return int(self._repl.gather_bytes(str(value).encode("ascii"))[0])

    def explain(self) -> str:
        """Returns the replicator's description of the collectives in one step."""
        return self._repl.explain()


def _touch(batch: Any) -> tf.Tensor:
    """Uses a little of every part of a batch, which has to be there for it."""
    leaves = tf.nest.flatten(batch, expand_composites=True)
    return tf.add_n([tf.reduce_sum(tf.cast(leaf[:1], tf.float32)) for leaf in leaves])


class TrainingProgram(ReplicatedProgram):
    """Steps a training that stands by itself, and checks which examples it reads.

    Attributes:
      training: Its data, models, optimizers and step (``workloads/NAME/train.py``).
      source: The data set, or None for synthetic data.
      batch_per_example: What a batch size counts of one example of the data set: 1, or
        the tokens of a sequence.
    """

    def __init__(self, repl: replicator.Replicator, training: Any, study: Any) -> None:
        """Creates the pipelines and counts the parameters.

        Args:
          repl: The replicator, maybe one that leaves something out.
          training: A ``Training`` of the workload.
          study: The ``Study`` that built it.
        """
        count = training.global_batch_size // repl.num_replicas_in_sync
        super().__init__(repl, per_replica_batch_size=count)
        self.training = training
        self.source: Examples | None = training.source
        self._contexts: list[replicator.InputContext] = []
        # Ids stay on their devices until sanity(): reading them here would be measured.
        self._consumed: list[tuple[int, Any]] = []
        self._evaluate, self._check = study.evaluate, study.check
        self.batch_per_example = getattr(training, "batch_per_example", 1)
        self.flops_per_example = study.flops(training)
        self.compute_dtype = training.config.compute_dtype.removeprefix("mixed_")
        self.num_parameters = sum(
            math.prod(variable.shape)
            for trackable in training.trackables.values()
            if not hasattr(trackable, "apply_gradients")
            for variable in getattr(trackable, "trainable_variables", ())
        )
        # Each one object: a step is traced once per function.
        self._cycle = getattr(training, "cycle", None) or (training.step_fn,)
        self._inputs = make_iterator(repl, self._input_fn, self._input_mode())

    def _input_mode(self) -> replicator.InputReplicationMode:
        """Returns which replicas each pipeline feeds."""
        return replicator.InputReplicationMode.PER_WORKER

    def _input_fn(self, context: replicator.InputContext) -> tf.data.Dataset:
        self._contexts.append(context)
        dataset: tf.data.Dataset = self.training.input_fn(context)
        return dataset

    def batches(self) -> Iterator[Any]:
        """Reads the batches of all replicas without training on them."""
        while True:
            yield self._inputs.get_next()

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        """Says what is wrong with the data, where a pipeline fails."""
        try:
            yield
        except tf.errors.InvalidArgumentError as error:
            reason = self.source and self.source.explain(error)
            if reason is None:
                raise
            raise ValueError(reason) from error

    def _finish(self, outputs: dict[str, Any], num_steps: int) -> float:
        """Waits for the device work of steps, keeps ids, returns the mean loss."""
        return self._keep(outputs, num_steps)()

    def _keep(self, outputs: dict[str, Any], num_steps: int) -> Callable[[], float]:
        """Keeps the ids of steps; returns a function that waits for their loss."""
        # Reading the losses waits for the replicas; updates are part of the same graph.
        read_loss = self._reader_of(outputs["loss"])
        self._num_steps += num_steps
        num_consumed = (
            self._num_steps * self.global_batch_size // self.batch_per_example
        )
        is_first = not self._consumed
        if (self.source is not None and not self.reuses_batch) and (
            is_first or num_consumed <= self._first_epoch_size(self.source)
        ):
            self._consumed.append((num_consumed, outputs["example_id"]))
        return read_loss

    def sanity(self) -> tuple[SanityCheck, ...]:
        """Checks the loss, the copies of the variables, and the examples."""
        checks = [*super().sanity()]
        if self.source is not None:
            checks.append(audit.check_shards(self.source, self._contexts))
            checks.append(
                not_checked(audit.CONSUMED)
                if self.reuses_batch
                else self._check_consumed(self.source)
            )
            if self._check is not None:
                checks.append(self._check(self.training))
        return tuple(checks)

    def _check_consumed(self, source: Examples) -> SanityCheck:
        steps = (
            (num_consumed, [int(i) for ids in per_replica for i in ids.numpy()])
            for num_consumed, per_replica in self._consumed
        )
        return audit.check_consumed(
            steps, first_epoch_size=self._first_epoch_size(source)
        )

    def _first_epoch_size(self, source: Examples) -> int:
        # Every pipeline contributes the same number of examples to a step, so the
        # smallest shard ends first.
        num_pipelines = self._contexts[0].num_input_pipelines
        return source.num_train_examples // num_pipelines * num_pipelines

    def run(self, num_steps: int = 1) -> float:
        """Runs steps and returns the last loss, its mean over the global batch."""
        if len(self._cycle) == 1:
            return self._finish(self._run(self._cycle[0], num_steps), num_steps)
        loss = math.nan
        for _ in range(num_steps):
            loss = self.dispatch()()
        return loss

    def dispatch(self) -> Callable[[], float]:
        """Starts a step; see ``StepProgram.dispatch``."""
        step = self._cycle[self._num_steps % len(self._cycle)]
        return self._keep(self._run(step, 1), 1)

    def _trackables(self) -> Mapping[str, Any]:
        trackables: Mapping[str, Any] = self.training.trackables
        return trackables

    def evaluate(self) -> tuple[QualityMetric, ...]:
        """Measures what was learned; random data has nothing to learn."""
        if self.source is None or self._evaluate is None:
            return ()
        measured: tuple[QualityMetric, ...] = self._evaluate(self.training)
        return measured
