"""ResNet-50 with the recipe of Goyal et al. 2017, from data to update.

    python -m workloads.resnet50.train --replicas 2 --steps 50

The step is code for a single device. ``study.py`` attaches it to the harness.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

from workloads.common import command, training

from . import model as model_lib
from . import study

if TYPE_CHECKING:
    import replicator

_NUM_IMAGENET_EXAMPLES = 1_281_167


class Training(training.ImageTraining):
    """Data, model, optimizer and step of one replicator."""

    def __init__(
        self, repl: replicator.Replicator, config: study.ResNet50Config, **batches: Any
    ) -> None:
        super().__init__(repl, config, **batches)
        self._is_scaled = config.compute_dtype == "mixed_float16"
        with repl.context():
            self.model = model_lib.ResNet50(config, seed=self.seed)
            self.optimizer = repl.wrap_optimizer(
                self._make_optimizer(),
                # Small gradients are zero in float16, but not in bfloat16.
                loss_scale="dynamic" if self._is_scaled else None,
            )
            self.optimizer.build(self.model.trainable_variables)
        self.trackables = {"model": self.model, "optimizer": self.optimizer}
        self._variables = self.model.trainable_variables
        self.differentiate = training.compiled(self.loss_and_gradients, config.jit)

    def _make_optimizer(self) -> keras.optimizers.Optimizer:
        config, source = self.config, self.source
        length: dict[str, Any] = {
            "global_batch_size": self.global_batch_size,
            "num_train_examples": (
                source.num_train_examples if source else _NUM_IMAGENET_EXAMPLES
            ),
            "num_epochs": config.num_epochs,
        }
        if config.optimizer == "lars":
            schedule = model_lib.PolynomialSchedule(**length)
            return model_lib.LARS(
                schedule, momentum=config.momentum, decay=config.weight_decay
            )
        schedule = model_lib.GoyalSchedule(
            **length,
            learning_rate_per_256=config.learning_rate_per_256,
            lr_warmup_epochs=config.lr_warmup_epochs,
        )
        return keras.optimizers.SGD(schedule, momentum=config.momentum)

    def step_fn(self, batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        loss, gradients = self.differentiate(
            {name: batch[name] for name in ("image", "label")}
        )
        self.optimizer.apply(self._decayed(gradients), self._variables)
        return {"loss": loss, "example_id": batch["example_id"]}

    def loss_and_gradients(
        self, batch: dict[str, tf.Tensor]
    ) -> tuple[tf.Tensor, list[tf.Tensor]]:
        batch = self.images.normalised(batch)
        with tf.GradientTape() as tape:
            logits = self.model(batch["image"], training=True)
            losses = model_lib.softmax_cross_entropy(
                batch["label"], logits, label_smoothing=self.config.label_smoothing
            )
            loss = tf.reduce_mean(losses)
            scaled_loss = self.optimizer.scale_loss(loss) if self._is_scaled else loss
        return loss, tape.gradient(scaled_loss, self._variables)

    def _decayed(self, gradients: list[tf.Tensor]) -> list[tf.Tensor]:
        """Returns ``g + weight_decay * w`` for kernels, ``g`` for vectors.

        As published: the gradient of the L2 penalty, without the cost of that sum.
        """
        factor = self.config.weight_decay
        # LARS scales its update, so it adds the decay itself.
        if not factor or self.config.optimizer == "lars":
            return gradients
        if self._is_scaled:  # the optimizer divides all its gradients by the loss scale
            factor = self.optimizer.scale_loss(factor)
        return [
            gradient + factor * tf.convert_to_tensor(variable)
            if len(variable.shape) > 1
            else gradient
            for gradient, variable in zip(gradients, self._variables, strict=True)
        ]

    def flops(self) -> int:
        products = model_lib.products(self.model, self.config.image_size)
        return training.flops_of(products)


if __name__ == "__main__":
    command.main(__doc__, study.WORKLOAD, Training)
