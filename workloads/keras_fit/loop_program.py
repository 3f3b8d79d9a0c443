"""A compiled Keras model on a replicator: ``fit``, or a loop over ``repl.run``."""

from __future__ import annotations

import abc
import contextlib
import math
from typing import TYPE_CHECKING, Any

import tensorflow as tf

import replicator
from workloads.keras_fit import flops
from workloads.keras_fit.fit_loop import FitLoop
from workloads.replicated import ReplicatedProgram

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import keras

# Of data without an end.
STEPS_PER_EPOCH = 1000


class KerasLoopProgram(ReplicatedProgram):
    """``fit``, or a loop over ``repl.run``, on one replicator; see ``StepProgram``.

    Attributes:
      model: The compiled Keras model; its variables belong to the replicator.
      optimizer: The model's; wrapped for a loop over ``repl.run``.
    """

    _is_fit: bool

    def _take(
        self,
        repl: replicator.Replicator,
        make: Callable[[], keras.Model],
    ) -> None:
        """Makes the model in the scope that its loop needs."""
        self._loop: FitLoop | None = None
        is_fit = self._is_fit
        with repl.context(), repl.scope() if is_fit else contextlib.nullcontext():
            self.model = make()
            self.optimizer = self.model.optimizer
            if not is_fit:
                self.optimizer = repl.wrap_optimizer(self.optimizer)
            self.optimizer.build(self.model.trainable_variables)
        self._variables = self.model.trainable_variables
        self.num_parameters = sum(
            math.prod(variable.shape) for variable in self._variables
        )
        self.flops_per_example = flops.training_flops(self.model)
        self._step_fn = self._step  # one object: a step is traced once per function

    @staticmethod
    @abc.abstractmethod
    def _inputs_and_targets(batch: Any) -> tuple[Any, Any]:
        """Returns what ``fit`` takes of a batch of the pipeline."""

    @abc.abstractmethod
    def _keep(self, outputs: dict[str, Any], num_steps: int) -> Callable[[], float]:
        """Keeps what steps returned; returns a function that waits for their loss."""

    def _on_device(self, batch: Any) -> Any:
        """Returns a replica's batch as the model takes it; called in its step."""
        return batch

    def _kept(self, batch: Any) -> dict[str, Any]:
        """Returns what a step returns of its batch, besides the loss."""
        del batch
        return {}

    def _steps_per_epoch(self) -> int:
        """Steps after which ``fit`` begins another epoch."""
        return STEPS_PER_EPOCH

    def _step(self, batch: Any) -> dict[str, tf.Tensor]:
        """One training step of one replica, as users of ``repl.run`` write it."""
        x, y = self._inputs_and_targets(self._on_device(batch))
        with tf.GradientTape() as tape:
            y_pred = self.model(x, training=True)
            loss = self.model.compute_loss(x=x, y=y, y_pred=y_pred, training=True)
            # By which Keras divides under a strategy of tf.distribute; 1 otherwise.
            loss *= tf.distribute.get_strategy().num_replicas_in_sync
            scaled_loss = self.optimizer.scale_loss(loss)
        gradients = tape.gradient(scaled_loss, self._variables)
        self.optimizer.apply_gradients(zip(gradients, self._variables, strict=True))
        return {"loss": loss, **self._kept(batch)}

    def _loop_input_mode(self) -> replicator.InputReplicationMode:
        """Returns which replicas each pipeline feeds, as the loop reads it.

        ``fit`` reads one in its program, which sends batches to workers that only serve
        TensorFlow.
        """
        mode = replicator.InputReplicationMode
        is_served = self._repl.num_programs < self._repl.num_workers
        return mode.SINGLE if self._is_fit and is_served else mode.PER_WORKER

    def _make_loop(self) -> FitLoop:
        """``fit`` on the pipeline that other workloads train on as well."""
        (pipeline,) = self._inputs.pipelines
        # The thread of fit would keep a program alive that it knows.
        pair_of = self._inputs_and_targets

        def pipeline_of(_: tf.distribute.InputContext) -> tf.data.Dataset:
            return pipeline.map(lambda *batch: pair_of(_whole(batch)))

        strategy = self._repl.as_strategy()
        return FitLoop(
            self.model,
            strategy.distribute_datasets_from_function(pipeline_of),
            steps_per_epoch=self._steps_per_epoch(),
        )

    def run(self, num_steps: int = 1) -> float:
        """Runs steps and returns the last loss, its mean over the global batch.

        That of ``fit`` includes what layers add, such as penalties on weights.
        """
        if not self._is_fit:
            return self._keep(self._run(self._step_fn, num_steps), num_steps)()
        readers = [self.dispatch() for _ in range(num_steps)]
        return [read() for read in readers][-1]

    def dispatch(self) -> Callable[[], float]:
        """Starts a step; see ``StepProgram.dispatch``."""
        if not self._is_fit:
            return self._keep(self._run(self._step_fn, 1), 1)
        with self._explained():
            if self._loop is None:
                self._loop = self._make_loop()
            read = self._loop.start()
        self._num_steps += 1

        def read_loss() -> float:
            with self._explained():
                self._last_loss = read()
            return self._last_loss

        return read_loss

    def close(self) -> None:
        """Ends ``fit``."""
        if self._loop is not None:
            self._loop.close()

    def _trackables(self) -> Mapping[str, Any]:
        return {"model": self.model, "optimizer": self.optimizer}


def _whole(batch: tuple[Any, ...]) -> Any:
    """Returns an element of a dataset, of which ``map`` has unpacked a tuple."""
    return batch[0] if len(batch) == 1 else batch
