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
from workloads.common.images import Images

from . import config as config_lib
from . import models, study

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy as np


class KerasTraining:
    """A compiled model with its optimizer on one replicator.

    Attributes:
      is_fit: Whether ``fit`` of Keras has the loop.
      model: The compiled Keras model; its variables belong to the replicator.
      optimizer: The model's; wrapped for a loop over ``repl.run``.
      trackables: What a checkpoint holds, by name.
      source: The data set; None for synthetic data, and for data of the user's.
    """

    source: Any = None

    def __init__(
        self,
        repl: replicator.Replicator,
        config: Any,
        make: Callable[[], keras.Model],
        *,
        per_replica_batch_size: int,
    ) -> None:
        """Makes the model in the scope that its loop needs."""
        training.set_up(repl, config)
        self.config = config
        self.global_batch_size = per_replica_batch_size * repl.num_replicas_in_sync
        self.is_fit = config.loop == "fit"
        with repl.context(), repl.scope() if self.is_fit else contextlib.nullcontext():
            self.model = make()
            self.optimizer = self.model.optimizer
            if not self.is_fit:
                self.optimizer = repl.wrap_optimizer(self.optimizer)
            self.optimizer.build(self.model.trainable_variables)
        self.trackables = {"model": self.model, "optimizer": self.optimizer}
        self._variables = self.model.trainable_variables

    @staticmethod
    def inputs_and_targets(batch: Any) -> tuple[Any, Any]:
        """Returns what ``fit`` takes of a batch of the pipeline."""
        x, y = batch
        return x, y

    def on_device(self, batch: Any) -> Any:
        """Returns a replica's batch as the model takes it; called in its step."""
        return batch

    def step_fn(self, batch: Any) -> dict[str, tf.Tensor]:
        """One training step of one replica, as users of ``repl.run`` write it."""
        x, y = self.inputs_and_targets(self.on_device(batch))
        with tf.GradientTape() as tape:
            y_pred = self.model(x, training=True)
            loss = self.model.compute_loss(x=x, y=y, y_pred=y_pred, training=True)
            # By which Keras divides under a strategy of tf.distribute; 1 otherwise.
            loss *= tf.distribute.get_strategy().num_replicas_in_sync
            scaled_loss = self.optimizer.scale_loss(loss)
        gradients = tape.gradient(scaled_loss, self._variables)
        self.optimizer.apply_gradients(zip(gradients, self._variables, strict=True))
        return {"loss": loss}


class Training(KerasTraining):
    """A classifier of images."""

    def __init__(
        self,
        repl: replicator.Replicator,
        config: config_lib.KerasFitConfig,
        *,
        data: str,
        per_replica_batch_size: int,
        seed: int,
    ) -> None:
        self.images = Images(repl, config, data=data, seed=seed)
        self.source = self.images.source
        super().__init__(
            repl,
            config,
            lambda: models.make(config),
            per_replica_batch_size=per_replica_batch_size,
        )
        self._predict = tf.function(
            lambda images: self.model(images, training=False), autograph=False
        )

    def input_fn(self, context: replicator.InputContext) -> tf.data.Dataset:
        """Returns the batches of one input pipeline, each for one replica."""
        size = context.get_per_replica_batch_size(self.global_batch_size)
        return self.images.batches(context, size)

    @staticmethod
    def inputs_and_targets(batch: Any) -> tuple[Any, Any]:
        """Returns images and labels."""
        return batch["image"], batch["label"]

    def on_device(self, batch: Any) -> Any:
        """Returns a batch with normalised images."""
        return self.images.normalised(batch)

    def step_fn(self, batch: Any) -> dict[str, tf.Tensor]:
        """One training step of one replica; also names its examples."""
        return {**super().step_fn(batch), "example_id": batch["example_id"]}

    def predictions(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yields logits and labels of the held-out split, computed on one device."""
        return self.images.predictions(self._predict)


def main() -> None:
    """Trains, and measures what was learned."""
    args = command.parse(
        __doc__ or "",
        config_lib.make_config,
        config_lib.PRESETS,
        data="digits",
        per_replica_batch_size=8,
    )
    repl = replicator.create(args.backend, num_replicas=args.replicas)
    made = Training(repl, args.config, **args.batches)
    progress = command.Progress(args.steps, "images", made.global_batch_size)
    if made.is_fit:
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
    else:
        inputs = repl.make_input_iterator(made.input_fn)
        for step in range(args.steps):
            outputs = repl.run(made.step_fn, inputs)
            progress.update(step + 1, repl.reduce("mean", outputs["loss"]))
    if made.source is not None:
        top_1, *_ = study.evaluate(made)
        print(f"held-out top-1: {top_1.value:.3f} (n = {top_1.num_examples})")


if __name__ == "__main__":
    main()
