"""A compiled Keras model on a replicator: ``fit``, or a loop over ``repl.run``."""

from __future__ import annotations

import importlib
import queue
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

import replicator
from workloads.keras_fit.study import AS_WRITTEN
from workloads.keras_fit.train import KerasTraining
from workloads.program import StepProgram
from workloads.spec import SanityCheck

if TYPE_CHECKING:
    from workloads.data.sources import Examples
    from workloads.keras_fit.own_model import OwnModelConfig


# ``fit`` runs in a thread of its own. Before each batch a callback waits until a step
# is asked for; that is outside of Keras' and of the replicator's step. The callback
# reads the logs where ``fit`` does without it: beside the loop, in Keras' own executor.


class _EndOfLoop(BaseException):
    """No further step is asked for; not an error that anything else handles."""


class _Turns(keras.callbacks.Callback):
    """Waits before each batch, and passes its logs on."""

    # Keras calls on_train_batch_end in its executor then, as without any callback.
    async_safe = True

    def __init__(self, steps_per_epoch: int) -> None:
        super().__init__()
        self.asked: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self.found: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._steps_per_epoch = steps_per_epoch
        self._first_step = 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        del logs
        self._first_step = epoch * self._steps_per_epoch

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        del batch, logs
        if not self.asked.get():
            raise _EndOfLoop

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.found.put((self._first_step + batch, float((logs or {})["loss"])))


_ENDLESS = 2**31


class FitLoop:
    """One call of ``fit``, which waits before each of its steps."""

    def __init__(
        self, model: keras.Model, dataset: Any, *, steps_per_epoch: int
    ) -> None:
        self._turns = turns = _Turns(steps_per_epoch)
        self._num_read = 0
        self._steps_per_epoch = steps_per_epoch
        self._means: dict[int, float] = {}
        self._last_mean = 0.0

        # Not of this object: the thread must not keep it, or it would never end.
        def train() -> None:
            try:
                model.fit(
                    dataset,
                    epochs=_ENDLESS,
                    steps_per_epoch=steps_per_epoch,
                    shuffle=False,  # the pipelines do it
                    verbose=0,
                    callbacks=[turns],
                )
            except _EndOfLoop:
                pass
            except BaseException as error:  # noqa: BLE001 (raised where it is waited for)
                turns.found.put(error)

        self._thread = threading.Thread(target=train, name="fit", daemon=True)
        self._thread.start()

    def start(self) -> Callable[[], float]:
        """Starts a step; returns what waits for its loss, to be called in order."""
        self._turns.asked.put(True)
        return self._read

    def _read(self) -> float:
        step = self._num_read
        while step not in self._means:
            item = self._turns.found.get()
            if isinstance(item, BaseException):
                raise item
            self._means[item[0]] = item[1]
        mean = self._means.pop(step)
        self._num_read += 1
        # Keras logs the mean since the epoch has begun.
        number = step % self._steps_per_epoch
        loss = mean + number * (mean - self._last_mean)
        self._last_mean = mean
        return loss

    def close(self) -> None:
        self._turns.asked.put(False)
        self._thread.join()

    def __del__(self) -> None:
        self._turns.asked.put(False)


class KerasProgram(StepProgram):
    """``fit``, or a loop over ``repl.run``, on one replicator; see ``StepProgram``."""

    training: KerasTraining
    steps_per_epoch = 1000  # of data without an end
    _loop: FitLoop | None = None

    def __init__(
        self, repl: replicator.Replicator, training: KerasTraining, info: Any
    ) -> None:
        super().__init__(repl, training, info)
        if training.config.compute_dtype == AS_WRITTEN:
            self.compute_dtype = "float32"

    def _input_mode(self) -> replicator.InputReplicationMode:
        """``fit`` reads one pipeline, also for workers that only serve TensorFlow."""
        mode = replicator.InputReplicationMode
        is_served = self._repl.num_programs < self._repl.num_workers
        return mode.SINGLE if self.training.is_fit and is_served else mode.PER_WORKER

    def _make_loop(self) -> FitLoop:
        """``fit`` on the pipeline that other workloads train on as well."""
        (pipeline,) = self._inputs.pipelines
        # The thread of fit would keep a program alive that it knows.
        pair_of = self.training.inputs_and_targets

        def pipeline_of(_: tf.distribute.InputContext) -> tf.data.Dataset:
            # Of an element that is a tuple, map has unpacked it.
            return pipeline.map(lambda *b: pair_of(b[0] if len(b) == 1 else b))

        steps_per_epoch = self.steps_per_epoch
        if self.source is not None:
            count = self.source.num_train_examples // self.global_batch_size
            steps_per_epoch = max(1, count)
        dataset = self._repl.as_strategy().distribute_datasets_from_function(
            pipeline_of
        )
        return FitLoop(self.training.model, dataset, steps_per_epoch=steps_per_epoch)

    def _start(self, num_steps: int) -> Callable[[], float]:
        if not self.training.is_fit:
            return super()._start(num_steps)
        with self._explained():
            if self._loop is None:
                self._loop = self._make_loop()
            reads = [self._loop.start() for _ in range(num_steps)]
        self._num_steps += num_steps

        def read_last() -> float:
            with self._explained():
                for read in reads:
                    self._last_loss = read()
            return self._last_loss

        return read_last

    def close(self) -> None:
        if self._loop is not None:
            self._loop.close()

    def _check_consumed(self, source: Examples) -> SanityCheck:
        """Counts the updates: examples have no names in ``fit``."""
        if not self.training.is_fit or self.reuses_batch:
            return super()._check_consumed(source)
        count = int(self.training.optimizer.iterations.numpy())
        detail = f"{count} updates in {self._num_steps} steps"
        is_passed = count == self._num_steps
        return SanityCheck("fit_updates_once_per_step", is_passed, detail)


_PREFETCHED_STEPS = 2
_PAIR = 2


class Training(KerasTraining):
    """A model and data that two functions of the user's make."""

    def __init__(
        self, repl: replicator.Replicator, config: OwnModelConfig, **batches: Any
    ) -> None:
        super().__init__(repl, config, **batches)
        self._make(repl, _function(config.model), config.model)

    def input_fn(self, context: replicator.InputContext) -> tf.data.Dataset:
        dataset = _function(self.data)()
        if not isinstance(dataset, tf.data.Dataset):
            raise ValueError(  # noqa: TRY004 (of the user's function, not of a call)
                f"{self.data} returned {type(dataset).__name__}, which is not a "
                "tf.data.Dataset of single (inputs, targets)"
            )
        spec = dataset.element_spec
        if not isinstance(spec, tuple) or len(spec) != _PAIR:
            raise ValueError(
                f"{self.data} returned a dataset of {spec}; its elements have to be "
                "pairs (inputs, targets) of one example"
            )
        dataset = dataset.shard(context.num_input_pipelines, context.input_pipeline_id)
        batches_per_step = context.num_replicas_in_sync // context.num_input_pipelines
        size = context.get_per_replica_batch_size(self.global_batch_size)
        return (
            dataset.repeat()
            .batch(size, drop_remainder=True)
            .prefetch(_PREFETCHED_STEPS * max(1, batches_per_step))
        )


def _function(reference: str) -> Callable[[], Any]:
    module, _, name = reference.partition(":")
    function: Callable[[], Any] = getattr(importlib.import_module(module), name)
    return function
