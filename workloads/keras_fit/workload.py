"""``fit`` of Keras as a workload: a compiled model on a replicator's strategy."""

from __future__ import annotations

import contextlib
import math
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from workloads.classifier import ClassifierProgram
from workloads.keras_fit import flops, models
from workloads.keras_fit.fit_loop import FitLoop
from workloads.program import ImageWorkload
from workloads.spec import SanityCheck

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import replicator
    from workloads.data.sources import Source
    from workloads.keras_fit.config import KerasFitConfig

# Of data without an end.
_STEPS_PER_EPOCH = 1000


class KerasFitProgram(ClassifierProgram):
    """``fit``, or a loop over ``repl.run``, on one replicator; see ``StepProgram``.

    Attributes:
      model: The compiled Keras model; its variables belong to the replicator.
      optimizer: The model's; wrapped for a loop over ``repl.run``.
    """

    def __init__(
        self,
        repl: replicator.Replicator,
        config: KerasFitConfig,
        *,
        source: Source | None,
        per_replica_batch_size: int,
        seed: int,
    ) -> None:
        super().__init__(
            repl,
            config,
            source=source,
            per_replica_batch_size=per_replica_batch_size,
            seed=seed,
        )
        self._is_fit = config.loop == "fit"
        self._loop: FitLoop | None = None
        with repl.context(), repl.scope() if self._is_fit else contextlib.nullcontext():
            self.model = models.make(config, is_matched=self.is_matched)
            self.optimizer = self.model.optimizer
            if not self._is_fit:
                self.optimizer = repl.wrap_optimizer(self.optimizer)
            self.optimizer.build(self.model.trainable_variables)
        self._variables = self.model.trainable_variables
        self.num_parameters = sum(
            math.prod(variable.shape) for variable in self._variables
        )
        self.flops_per_example = flops.training_flops(self.model)
        self._step_fn = self._step  # one object: a step is traced once per function

    def _step(self, batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """One training step of one replica, as users of ``repl.run`` write it."""
        x, y = _of_fit(self._on_device(batch))
        with tf.GradientTape() as tape:
            y_pred = self.model(x, training=True)
            loss = self.model.compute_loss(x=x, y=y, y_pred=y_pred, training=True)
            # By which Keras divides under a strategy of tf.distribute; 1 otherwise.
            loss *= tf.distribute.get_strategy().num_replicas_in_sync
            scaled_loss = self.optimizer.scale_loss(loss)
        gradients = tape.gradient(scaled_loss, self._variables)
        self.optimizer.apply_gradients(zip(gradients, self._variables, strict=True))
        return {"loss": loss, "example_id": batch["example_id"]}

    def _make_loop(self) -> FitLoop:
        """``fit`` on the pipelines that other workloads train on as well."""
        pipelines = self._inputs.pipelines
        steps_per_epoch = _STEPS_PER_EPOCH
        if self.source is not None:
            num_examples = self.source.num_train_examples
            steps_per_epoch = max(1, num_examples // self.global_batch_size)

        def pipeline_of(context: tf.distribute.InputContext) -> tf.data.Dataset:
            merged = pipelines[0]
            if len(pipelines) > 1:  # one per worker: each feeds its own replicas
                num_each = context.num_replicas_in_sync // len(pipelines)
                turns = [p for p in range(len(pipelines)) for _ in range(num_each)]
                order = tf.data.Dataset.from_tensor_slices(turns).repeat()
                order = order.map(lambda index: tf.cast(index, tf.int64))
                merged = tf.data.Dataset.choose_from_datasets(list(pipelines), order)
            return merged.map(_of_fit)

        strategy = self._repl.as_strategy()
        return FitLoop(
            self.model,
            strategy.distribute_datasets_from_function(pipeline_of),
            steps_per_epoch=steps_per_epoch,
        )

    def run(self, num_steps: int = 1) -> float:
        """Runs steps and returns the last loss, its mean over the global batch.

        That of ``fit`` includes what layers add, such as penalties on weights.
        """
        if not self._is_fit:
            return self._finish(self._run(self._step_fn, num_steps), num_steps)
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

    def _check_consumed(self, source: Source) -> SanityCheck:
        """Counts the updates: examples have no names in ``fit``."""
        if not self._is_fit:
            return super()._check_consumed(source)
        count = int(self.optimizer.iterations.numpy())
        return SanityCheck(
            name="fit_updates_once_per_step",
            is_passed=count == self._num_steps,
            detail=f"{count} updates in {self._num_steps} steps",
        )


def _of_fit(batch: dict[str, Any]) -> tuple[Any, Any]:
    return batch["image"], batch["label"]


WORKLOAD = ImageWorkload("keras_fit", KerasFitProgram)
