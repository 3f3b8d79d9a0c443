"""ResNet-50 as a workload: builds the step on a replicator, and checks it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

from workloads.classifier import ClassifierProgram
from workloads.common.training import LARS, compiled
from workloads.program import ImageWorkload
from workloads.resnet50 import model
from workloads.resnet50.model import GoyalSchedule, PolynomialSchedule, ResNet50
from workloads.spec import JIT_OFF

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import replicator
    from workloads.data.sources import Source
    from workloads.resnet50.config import ResNet50Config

_NUM_IMAGENET_EXAMPLES = 1_281_167


class ResNet50Program(ClassifierProgram):
    """ResNet-50 on one replicator; see ``StepProgram``.

    Attributes:
      model: The Keras model; its variables belong to the replicator.
      optimizer: The wrapped optimizer.
    """

    def __init__(
        self,
        repl: replicator.Replicator,
        config: ResNet50Config,
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
        self._is_scaled = config.compute_dtype == "mixed_float16"
        with repl.context():
            self.model = ResNet50(
                num_classes=config.num_classes,
                version=config.version,
                zero_gamma=config.zero_gamma,
                statistics=config.batch_norm,
                compute_dtype=config.compute_dtype,
                pads_pooling=config.jit != JIT_OFF,
                seed=seed,
            )
            self.optimizer = repl.wrap_optimizer(
                self._make_optimizer(),
                # Small gradients are zero in float16, but not in bfloat16.
                loss_scale="dynamic" if self._is_scaled else None,
            )
            self.optimizer.build(self.model.trainable_variables)
        self._variables = self.model.trainable_variables
        self.num_parameters = sum(
            math.prod(variable.shape) for variable in self._variables
        )
        self._differentiate = compiled(self._loss_and_gradients, config.jit)
        self.flops_per_example = model.training_flops(
            image_size=config.image_size,
            num_classes=config.num_classes,
            version=config.version,
        )

    def _make_optimizer(self) -> keras.optimizers.Optimizer:
        config = self._config
        num_train_examples = (
            _NUM_IMAGENET_EXAMPLES
            if self.source is None
            else self.source.num_train_examples
        )
        if config.optimizer == "lars":
            schedule = PolynomialSchedule(
                global_batch_size=self.global_batch_size,
                num_train_examples=num_train_examples,
                num_epochs=config.num_epochs,
            )
            return LARS(schedule, momentum=config.momentum, decay=config.weight_decay)
        schedule = GoyalSchedule(
            global_batch_size=self.global_batch_size,
            num_train_examples=num_train_examples,
            learning_rate_per_256=config.learning_rate_per_256,
            lr_warmup_epochs=config.lr_warmup_epochs,
            num_epochs=config.num_epochs,
        )
        return keras.optimizers.SGD(schedule, momentum=config.momentum)

    def _step(self, batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """One training step of one replica."""
        loss, gradients = self._differentiate(
            {name: batch[name] for name in ("image", "label")}
        )
        gradients = model.add_weight_decay(
            gradients, self._variables, weight_decay=self._weight_decay()
        )
        self.optimizer.apply_gradients(zip(gradients, self._variables, strict=True))
        return {"loss": loss, "example_id": batch["example_id"]}

    def _loss_and_gradients(
        self, batch: dict[str, tf.Tensor]
    ) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """Returns the loss, and the gradients of its scaled value."""
        batch = self._on_device(batch)
        with tf.GradientTape() as tape:
            logits = self.model(batch["image"], training=True)
            loss = tf.reduce_mean(
                model.softmax_cross_entropy(
                    batch["label"],
                    logits,
                    label_smoothing=self._config.label_smoothing,
                )
            )
            scaled_loss = self.optimizer.scale_loss(loss) if self._is_scaled else loss
        return loss, tape.gradient(scaled_loss, self._variables)

    def _weight_decay(self) -> float | tf.Tensor:
        """Returns the factor of the weights that is added to their gradients."""
        factor = self._config.weight_decay
        # LARS scales its update, so it adds the decay itself.
        if not factor or self._config.optimizer == "lars":
            return 0.0
        # The optimizer divides all its gradients by the loss scale.
        return self.optimizer.scale_loss(factor) if self._is_scaled else factor

    def run(self, num_steps: int = 1) -> float:
        """Runs steps and returns the last loss, its mean over the global batch.

        The value is the cross-entropy (with smoothing, without the weight decay term).
        """
        return self._finish(self._run(self._step, num_steps), num_steps)

    def dispatch(self) -> Callable[[], float]:
        """Starts a step; see ``StepProgram.dispatch``."""
        return self._keep(self._run(self._step, 1), 1)

    def _trackables(self) -> Mapping[str, Any]:
        return {"model": self.model, "optimizer": self.optimizer}


WORKLOAD = ImageWorkload("resnet50", ResNet50Program)
