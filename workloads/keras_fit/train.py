"""A compiled Keras model on a replicator, by ``fit`` or by a loop over ``repl.run``.

    python -m workloads.keras_fit.train --replicas 2 --steps 50
    python -m workloads.keras_fit.train --replicas 2 --steps 50 --loop run

``study.py`` attaches both to the harness.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

import replicator
from workloads.common import command, training

from . import models, study

if TYPE_CHECKING:
    from collections.abc import Callable


class KerasTraining(training.Training):
    """A compiled model with its optimizer on one replicator."""

    def _make(self, repl: replicator.Replicator, make: Callable[[], Any]) -> None:
        self.is_fit = self.config.loop == "fit"
        with repl.context(), repl.scope() if self.is_fit else contextlib.nullcontext():
            self.model = make()
            self.optimizer = self.model.optimizer
            if not self.is_fit:
                self.optimizer = repl.wrap_optimizer(self.optimizer)
            self.optimizer.build(self.model.trainable_variables)
        self.trackables = {"model": self.model, "optimizer": self.optimizer}
        self._variables = self.model.trainable_variables

    def flops(self) -> int | None:
        return models.training_flops(self.model)

    def match(self, num_replicas: int) -> None:
        """Drops nothing: replicas draw other numbers than one does."""
        del num_replicas
        for layer in models.layers_of(self.model):
            if isinstance(layer, keras.layers.Dropout):
                layer.rate = 0.0

    @staticmethod
    def inputs_and_targets(batch: Any) -> tuple[Any, Any]:
        """Returns what ``fit`` takes of a batch of the pipeline."""
        x, y = batch
        return x, y

    def step_fn(self, batch: Any) -> dict[str, tf.Tensor]:
        """One training step of one replica, as users of ``repl.run`` write it."""
        x, y = self.inputs_and_targets(batch)
        with tf.GradientTape() as tape:
            y_pred = self.model(x, training=True)
            loss = self.model.compute_loss(x=x, y=y, y_pred=y_pred, training=True)
            # By which Keras divides under a strategy of tf.distribute; 1 otherwise.
            loss *= tf.distribute.get_strategy().num_replicas_in_sync
            scaled_loss = self.optimizer.scale_loss(loss)
        gradients = tape.gradient(scaled_loss, self._variables)
        self.optimizer.apply_gradients(zip(gradients, self._variables, strict=True))
        return {"loss": loss}


class Training(KerasTraining, training.ImageTraining):
    def __init__(
        self, repl: replicator.Replicator, config: study.KerasFitConfig, **batches: Any
    ) -> None:
        super().__init__(repl, config, **batches)
        self._make(repl, lambda: models.make(config))

    @staticmethod
    def inputs_and_targets(batch: Any) -> tuple[Any, Any]:
        return batch["image"], batch["label"]

    def step_fn(self, batch: Any) -> dict[str, tf.Tensor]:
        return {**super().step_fn(batch), "example_id": batch["example_id"]}


def main() -> None:
    args = command.parse(__doc__, study.WORKLOAD)
    repl = replicator.create(args.backend, num_replicas=args.replicas)
    made = Training(repl, args.config, **args.batches)
    if made.is_fit:
        progress = command.Progress(made, args)
        made.model.fit(
            repl.as_strategy().distribute_datasets_from_function(
                lambda context: made.input_fn(context).map(made.inputs_and_targets)
            ),
            steps_per_epoch=args.steps,
            shuffle=False,  # the pipelines do it
            verbose=0,
            callbacks=[
                keras.callbacks.LambdaCallback(
                    on_train_batch_end=lambda step, logs: progress.update(
                        step + 1, logs["loss"]
                    )
                )
            ],
        )
        command.evaluate(made, args)
    else:
        command.train(repl, made, args)


if __name__ == "__main__":
    main()
