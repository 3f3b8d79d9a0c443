"""A compiled Keras model on a replicator, by ``fit`` or by a loop over ``repl.run``.

    python -m workloads.keras_fit.train --replicas 2 --steps 50
    python -m workloads.keras_fit.train --replicas 2 --steps 50 --loop run

``study.py`` attaches both to the harness.
"""

from __future__ import annotations

import contextlib
import math
import runpy
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

import replicator
from workloads.common import command, training

from . import study


class KerasTraining(training.Training):
    """A compiled model with its optimizer on one replicator."""

    def _make(
        self, repl: replicator.Replicator, make: Callable[[], Any], what: str
    ) -> None:
        config = self.config
        self.is_fit = config.loop == "fit"
        is_written = config.compute_dtype == study.AS_WRITTEN
        policy = None if is_written else training.dtype_policy(config.compute_dtype)
        with repl.context(), repl.scope() if self.is_fit else contextlib.nullcontext():
            with policy or contextlib.nullcontext():
                self.model = make()
            if not isinstance(self.model, keras.Model) or not self.model.compiled:
                raise ValueError(
                    f"{what} returned {type(self.model).__name__}, which is not a "
                    "compiled model; call model.compile(...) in it, and return the "
                    "model"
                )
            for layer in _layers_of(self.model):
                if hasattr(layer, "synchronized"):
                    layer.synchronized = config.batch_norm != "local"
            self.optimizer = self.model.optimizer
            if not self.is_fit:
                self.optimizer = repl.wrap_optimizer(self.optimizer)
            self.optimizer.build(self.model.trainable_variables)
        self.trackables = {"model": self.model, "optimizer": self.optimizer}
        self._variables = self.model.trainable_variables

    def flops(self) -> int | None:
        """Of a model of layers whose products are known: convolutions and dense."""
        products = []
        for layer in _layers_of(self.model):
            if isinstance(layer, _KERNELS):
                try:
                    output = layer.output.shape
                except AttributeError:  # a model of one's own class, without a graph
                    return None
                kernels = [w for w in layer.trainable_weights if "kernel" in w.name]
                size = sum(math.prod(kernel.shape) for kernel in kernels)
                products.append(size * math.prod(output[1:-1]))
            elif layer.weights and not isinstance(layer, _NO_PRODUCTS):
                return None
        return training.flops_of(products) if products else None

    def match(self, num_replicas: int) -> None:
        """Drops nothing: replicas draw other numbers than one does."""
        del num_replicas
        for layer in _layers_of(self.model):
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
        self.optimizer.apply(gradients, self._variables)
        return {"loss": loss}


_KERNELS = (
    keras.layers.Conv2D,
    keras.layers.Dense,
    keras.layers.DepthwiseConv2D,
    keras.layers.SeparableConv2D,
)
_NO_PRODUCTS = (
    keras.layers.BatchNormalization,
    keras.layers.LayerNormalization,
    keras.layers.Rescaling,
    keras.Model,
)


def _layers_of(model: Any) -> Iterator[Any]:
    """All layers of a model, also of models within it."""
    for layer in getattr(model, "layers", ()):
        yield layer
        yield from _layers_of(layer)


class Training(KerasTraining, training.ImageTraining):
    def __init__(
        self, repl: replicator.Replicator, config: study.KerasFitConfig, **batches: Any
    ) -> None:
        super().__init__(repl, config, **batches)
        what = f"option model={config.model!r}: the"

        def make() -> Any:
            if config.function is None:
                return _application(config)
            path, name = config.function
            model = runpy.run_path(str(path), run_name=path.stem)[name]()
            size = (config.image_size, config.image_size, 3)
            shape = getattr(model, "input_shape", None)
            if shape is not None and tuple(shape)[1:] != size:
                raise ValueError(
                    f"{what} model takes {shape}, but images are {size}; set option "
                    "image_size, or change the model"
                )
            return model

        self._make(repl, make, f"{what} function")

    @staticmethod
    def inputs_and_targets(batch: Any) -> tuple[Any, Any]:
        return batch["image"], batch["label"]

    def step_fn(self, batch: Any) -> dict[str, tf.Tensor]:
        return {**super().step_fn(batch), "example_id": batch["example_id"]}


def _application(config: study.KerasFitConfig) -> keras.Model:
    """A network of ``keras.applications``, compiled as in Keras' guides."""
    size = config.image_size
    model: keras.Model = getattr(keras.applications, config.model)(
        weights=None,
        input_shape=(size, size, 3),
        classes=config.num_classes,
        classifier_activation=None,
    )
    model.compile(
        keras.optimizers.SGD(config.learning_rate, momentum=config.momentum),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        jit_compile=False,
    )
    return model


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
