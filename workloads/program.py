"""What a trial steps and times: a training, with what the harness asks of it."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import json
import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

import replicator
from workloads.controls import MatchingReplicator, ReusingReplicator
from workloads.data import sources
from workloads.spec import SanityCheck

if TYPE_CHECKING:
    from replicator.checkpoint.manager import CheckpointManager
    from workloads.common.training import Training
    from workloads.data.sources import Examples
    from workloads.spec import QualityMetric, WorkloadInfo

NUM_PREFETCHED = 2
"""Batches that wait on each GPU: one is read by the step while the next is copied.

Where replicas compute on CPUs, which pipelines would take from them, none does."""

CONSUMED = "no_example_twice_in_an_epoch"
"""Name of the check of the examples that steps consumed."""

_IDS_AT_ONCE = 1024


class StepProgram:
    """Steps a training on one replicator, and checks which examples it reads.

    Every process of a trial calls each method, outside of timed windows but for ``run``
    and ``dispatch``.
    """

    most_ids_read = 100_000  # of a longer split, only the ranges of shards are checked

    def __init__(
        self, repl: replicator.Replicator, training: Training, info: WorkloadInfo
    ) -> None:
        self._repl = repl
        self.training = training
        self.source: Examples | None = training.source
        self.global_batch_size = training.global_batch_size
        count = training.global_batch_size // repl.num_replicas_in_sync
        self.per_replica_batch_size = count
        self.reuses_batch = isinstance(repl, ReusingReplicator)
        if isinstance(repl, MatchingReplicator):
            training.match(repl.num_replicas_in_sync)
        self._info = info
        self.flops_per_example = training.flops()
        dtype = getattr(training.config, "compute_dtype", "float32")
        self.compute_dtype = dtype.removeprefix("mixed_")
        self.num_parameters = sum(
            math.prod(variable.shape)
            for trackable in training.trackables.values()
            if not hasattr(trackable, "apply_gradients")
            for variable in getattr(trackable, "trainable_variables", ())
        )
        self._num_steps = 0
        self._last_loss = math.nan
        # Those of this process's replicas; they stay on their devices until requested.
        self._replica_losses: tuple[Any, ...] = ()
        self._checkpoints: CheckpointManager | None = None
        self._contexts: list[replicator.InputContext] = []
        # Ids stay on their devices until sanity(): reading them here would be measured.
        self._consumed: list[tuple[int, Any]] = []
        self._inputs = repl.make_input_iterator(
            self._input_fn,
            self._input_mode(),
            prefetch_to_device=NUM_PREFETCHED if repl.feeds_gpus else 0,
        )

    def _input_mode(self) -> replicator.InputReplicationMode:
        return replicator.InputReplicationMode.PER_WORKER

    def _input_fn(self, context: replicator.InputContext) -> tf.data.Dataset:
        self._contexts.append(context)
        return self.training.input_fn(context)

    def batches(self) -> Iterator[Any]:
        """Reads the batches of all replicas without training on them."""
        while True:
            yield self._inputs.get_next()

    def trained_values(self) -> dict[tuple[str, str], list[np.ndarray]]:
        """Returns copies of what training changes, of ``model`` or ``optimizer``."""
        by_part = {}
        for name, trackable in self.training.trackables.items():
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
                by_part["optimizer" if is_optimizer else "model", name] = values
        return by_part

    def read(self, num_steps: int = 1) -> None:
        """Reads batches to the replicas' devices, and waits for the last."""
        with self._explained():
            for output in self._repl.run(_touch, self._inputs, num_steps=num_steps):
                float(output)

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

    def run(self, num_steps: int = 1) -> float:
        """Runs steps; returns the last mean loss, when all device work is done."""
        if len(self.training.cycle) == 1:
            return self._start(num_steps)()
        loss = math.nan
        for _ in range(num_steps):
            loss = self.dispatch()()
        return loss

    def dispatch(self) -> Callable[[], float]:
        """Starts a step; returns a function that waits for it and returns its loss.

        Several can be started before the first is waited for; wait in their order.
        """
        return self._start(1)

    def _start(self, num_steps: int) -> Callable[[], float]:
        cycle = self.training.cycle
        step = cycle[self._num_steps % len(cycle)]
        with self._explained():
            outputs = self._repl.run(step, self._inputs, num_steps=num_steps)
        # Reading the losses waits for the replicas; updates are part of the same graph.
        read_loss = self._reader_of(outputs["loss"])
        self._num_steps += num_steps
        if self.source is not None and not self.reuses_batch:
            num_read = self._num_steps * self.global_batch_size
            num_consumed = num_read // self.training.batch_per_example
            is_first = not self._consumed
            if is_first or num_consumed <= self._first_epoch_size(self.source):
                self._consumed.append((num_consumed, outputs["example_id"]))
        return read_loss

    def _reader_of(self, losses: Any) -> Callable[[], float]:
        """Returns a function that waits for losses, maybe after further steps."""
        # Queued here: behind further steps, it would wait for them.
        mean = self._repl.reduce("mean", losses)

        def read() -> float:
            self._replica_losses = tuple(losses)
            self._last_loss = float(mean)
            return self._last_loss

        return read

    def losses_of_replicas(self) -> tuple[float, ...]:
        """Returns the last loss of each replica; empty if they are not separate."""
        by_process = self._gather([float(loss) for loss in self._replica_losses])
        return tuple(loss for own in by_process for loss in own)

    def _gather(self, value: Any) -> list[Any]:
        """Returns the values of all processes, in their order."""
        # Python's JSON can represent NaN and infinity.
        texts = self._repl.gather_bytes(json.dumps(value).encode("ascii"))
        return [json.loads(text) for text in texts]

    def save(self, directory: str) -> str | None:
        """Replaces the previous checkpoint; returns the prefix of its files.

        Raises:
          FloatingPointError: A variable is not finite; the previous checkpoint is kept.
        """
        trackables = self.training.trackables
        if self._checkpoints is None:
            self._checkpoints = self._repl.make_checkpoint_manager(
                directory, max_to_keep=1, **trackables
            )
        # The loss of a step was computed before its update, so it does not show that.
        for name, trackable in trackables.items():
            for variable in getattr(trackable, "trainable_variables", ()):
                if not np.isfinite(variable.numpy()).all():
                    raise FloatingPointError(
                        f"variable {variable.path!r} of {name!r} is not finite after "
                        f"{self._num_steps} steps"
                    )
        return self._checkpoints.save(self._num_steps)

    def sanity(self) -> tuple[SanityCheck, ...]:
        """Checks the loss, the copies of the variables, and the examples."""
        is_finite = math.isfinite(self._last_loss)
        checks = [
            SanityCheck("loss_is_finite", is_finite, f"last loss {self._last_loss}"),
            self._check_sync(),
        ]
        if self.source is not None:
            checks.append(self._check_shards(self.source))
            checks.append(self._check_consumed(self.source))
        return (*checks, *self.training.check())

    def _check_sync(self) -> SanityCheck:
        count = self._repl.num_replicas
        is_passed, detail = True, f"variables of {count} replicas are identical"
        if self._repl.without_communication:
            detail = (
                f"not checked: this control keeps its {count} replicas from "
                "communicating, so their variables differ"
            )
        else:
            try:
                self._repl.assert_in_sync()
            except replicator.ReplicatorError as error:
                is_passed, detail = False, str(error)
        return SanityCheck("replicas_in_sync", is_passed, detail)

    def _check_shards(self, source: Examples) -> SanityCheck:
        """Checks that the pipelines' shards cover the training split exactly once."""
        contexts = [*self._contexts]
        num_pipelines = contexts[0].num_input_pipelines
        if len(contexts) < num_pipelines:  # others are in other processes of the job
            own_ids = {context.input_pipeline_id for context in contexts}
            contexts += [
                dataclasses.replace(contexts[0], input_pipeline_id=index)
                for index in sorted(set(range(num_pipelines)) - own_ids)
            ]
        shards = [sources.shard(source, context) for context in contexts]
        total = source.num_train_examples
        if total > self.most_ids_read:
            reached = 0
            for part in sorted(shards, key=lambda part: part.start):
                if part.start != reached:
                    break
                reached = part.stop
            is_passed = reached == total
            detail = (
                f"{len(shards)} ranges cover {reached} of {total} examples without gap "
                "or overlap (ranges checked, ids not read: the split is large)"
            )
        else:
            expected = collections.Counter(_read_ids(source.ids()))
            counts: collections.Counter[int] = collections.Counter()
            for shard in shards:
                counts.update(_read_ids(source.ids(shard)))
            missing = (expected - counts).total()
            surplus = (counts - expected).total()
            is_passed = not missing and not surplus and expected.total() == total
            detail = (
                f"{len(contexts)} input pipelines read {counts.total()} ids in one "
                f"epoch of {total} examples: {missing} missing, {surplus} read more "
                "than once"
            )
        return SanityCheck("each_training_example_once_per_epoch", is_passed, detail)

    def _check_consumed(self, source: Examples) -> SanityCheck:
        """Checks that no example reached two replicas, or two steps, in the epoch."""
        if self.reuses_batch:
            detail = "not checked: this control repeats the first batch of each replica"
            return SanityCheck(CONSUMED, is_passed=True, detail=detail)
        size = self._first_epoch_size(source)
        of_epoch = [ids for num_consumed, ids in self._consumed if num_consumed <= size]
        seen = [int(i) for ids in of_epoch for of_one in ids for i in of_one.numpy()]
        num_repeated = len(seen) - len(set(seen))
        detail = (
            f"{len(seen)} examples in {len(of_epoch)} steps of the first epoch "
            f"({len(self._consumed)} recorded), {num_repeated} of them seen before in "
            "it"
        )
        is_passed = bool(self._consumed) and not num_repeated
        return SanityCheck(CONSUMED, is_passed, detail)

    def _first_epoch_size(self, source: Examples) -> int:
        # Every pipeline contributes the same number of examples to a step, so the
        # smallest shard ends first.
        num_pipelines = self._contexts[0].num_input_pipelines
        return source.num_train_examples // num_pipelines * num_pipelines

    def evaluate(self) -> tuple[QualityMetric, ...]:
        """Measures what was learned; random data has nothing to learn."""
        return self.training.evaluate(self._info.metrics)

    def samples(self) -> bytes | None:
        """Returns a picture of what the program makes, as PNG, or None."""
        return self.training.samples()

    def start_window(self) -> None:
        """Starts what ``window_metrics`` describes, right before a measured step."""

    def pause(self) -> None:
        """Stops what runs in the background, such as actors, until ``resume``."""

    def resume(self) -> None:
        """Continues what ``pause`` stopped."""

    def window_metrics(self) -> tuple[QualityMetric, ...]:
        """Returns rates and fractions of the whole trial since ``start_window``."""
        return ()

    def num_environment_steps(self) -> int | None:
        """Returns the environment steps of the whole trial so far; None without any."""
        return None

    def agree(self, value: int) -> int:
        """Returns the value of the first process, on all of them."""
        return int(self._gather(value)[0])

    def explain(self) -> str:
        return self._repl.explain()


def _touch(batch: Any) -> tf.Tensor:
    """Uses a little of every part of a batch, which has to be there for it."""
    leaves = tf.nest.flatten(batch, expand_composites=True)
    return tf.add_n([tf.reduce_sum(tf.cast(leaf[:1], tf.float32)) for leaf in leaves])


def _read_ids(dataset: tf.data.Dataset) -> Iterator[int]:
    # Many at once: bringing one element to Python takes longer than reading it.
    dataset = dataset.batch(_IDS_AT_ONCE)
    dataset = dataset.with_options(replicator.default_data_options(num_threads=1))
    return (number for ids in dataset.as_numpy_iterator() for number in ids.tolist())
