"""ResNet-50 as a workload: builds the step on a replicator, and checks it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

import replicator
from workloads import catalog, quality
from workloads.data import audit, pipeline
from workloads.data.sources import open_source
from workloads.resnet50 import config as config_lib
from workloads.resnet50 import losses
from workloads.resnet50.model import ResNet50
from workloads.resnet50.schedule import GoyalSchedule
from workloads.spec import QualityMetric, SanityCheck, StepProgram, Workload

if TYPE_CHECKING:
    from collections.abc import Mapping

    from workloads.data.sources import Source

SYNTHETIC = "synthetic"
_NUM_IMAGENET_EXAMPLES = 1_281_167
_TOP_5 = 5


class ResNet50Program(StepProgram):
    """ResNet-50 on one replicator; see ``StepProgram``.

    Attributes:
      model: The Keras model; its variables belong to the replicator.
      optimizer: The wrapped optimizer.
      source: The data set, or None for synthetic data.
    """

    def __init__(
        self,
        repl: replicator.Replicator,
        config: config_lib.ResNet50Config,
        *,
        source: Source | None,
        per_replica_batch_size: int,
        seed: int,
    ) -> None:
        self.per_replica_batch_size = per_replica_batch_size
        self.global_batch_size = per_replica_batch_size * repl.num_replicas_in_sync
        self.source = source
        self._repl = repl
        self._config = config
        self._pipeline = pipeline.PipelineConfig(
            per_replica_batch_size=per_replica_batch_size,
            image_size=config.image_size,
            seed=seed,
            shuffle_buffer_size=config.shuffle_buffer_size,
            num_threads=config.num_input_threads,
        )
        with repl.context():
            self.model = ResNet50(
                num_classes=config.num_classes,
                version=config.version,
                zero_gamma=config.zero_gamma,
                symmetric_padding=config.symmetric_padding,
                compute_dtype=config.compute_dtype,
                seed=seed,
            )
            self.optimizer = repl.wrap_optimizer(
                keras.optimizers.SGD(self._schedule(), momentum=config.momentum)
            )
            self.optimizer.build(self.model.trainable_variables)
        self._variables = self.model.trainable_variables
        self.num_parameters = sum(
            math.prod(variable.shape) for variable in self._variables
        )
        self._contexts: list[replicator.InputContext] = []
        self._inputs = repl.make_input_iterator(self._input_fn)
        # Ids stay on their devices until sanity(): reading them here would be timed.
        self._consumed: list[tuple[int, Any]] = []
        self._num_steps = 0
        self._last_loss = math.nan
        self._count_correct = tf.function(self._count_correct_in_batch, autograph=False)

    def _schedule(self) -> GoyalSchedule:
        num_train_examples = (
            _NUM_IMAGENET_EXAMPLES
            if self.source is None
            else self.source.num_train_examples
        )
        return GoyalSchedule(
            global_batch_size=self.global_batch_size,
            num_train_examples=num_train_examples,
            learning_rate_per_256=self._config.learning_rate_per_256,
            lr_warmup_epochs=self._config.lr_warmup_epochs,
        )

    def _input_fn(self, context: replicator.InputContext) -> tf.data.Dataset:
        self._contexts.append(context)
        if self.source is None:
            return pipeline.synthetic_dataset(
                self._pipeline, num_classes=self._config.num_classes
            )
        return pipeline.train_dataset(self.source, context, self._pipeline)

    def _step(self, batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """One training step of one replica."""
        with tf.GradientTape() as tape:
            logits = self.model(batch["image"], training=True)
            loss = tf.reduce_mean(
                losses.softmax_cross_entropy(
                    batch["label"],
                    logits,
                    label_smoothing=self._config.label_smoothing,
                )
            )
        gradients = losses.add_weight_decay(
            tape.gradient(loss, self._variables),
            self._variables,
            weight_decay=self._config.weight_decay,
        )
        self.optimizer.apply_gradients(zip(gradients, self._variables, strict=True))
        return {"loss": loss, "example_id": batch["example_id"]}

    def run(self, num_steps: int = 1) -> float:
        """Runs steps and returns the last loss, its mean over the global batch.

        The value is the cross-entropy (with smoothing, without the weight decay term).
        """
        outputs = self._repl.run(self._step, self._inputs, num_steps=num_steps)
        # Reading the losses waits for the replicas; updates are part of the same graph.
        self._last_loss = float(self._repl.reduce("mean", outputs["loss"]))
        self._num_steps += num_steps
        if self.source is not None:
            num_consumed = self._num_steps * self.global_batch_size
            self._consumed.append((num_consumed, outputs["example_id"]))
        return self._last_loss

    def evaluate(self) -> tuple[QualityMetric, ...]:
        """Measures top-1 (and top-5) accuracy on the whole held-out split.

        Runs on one device, with the moving statistics of batch norm. Synthetic data has
        no held-out split, so it has no quality.
        """
        if self.source is None:
            return ()
        dataset = pipeline.evaluation_dataset(self.source, self._evaluation_pipeline())
        counts = [self._count_correct(batch).numpy() for batch in dataset]
        num_top_1, num_top_5, num_examples = (int(n) for n in sum(counts))
        expected = self.source.num_evaluation_examples
        if num_examples != expected:
            raise RuntimeError(
                f"evaluation counted {num_examples} examples of {self.source.name!r}, "
                f"but its {self.source.evaluation_split!r} split has {expected}"
            )
        return (
            quality.accuracy("top_1", num_top_1, num_examples),
            quality.accuracy("top_5", num_top_5, num_examples),
        )

    def _evaluation_pipeline(self) -> pipeline.PipelineConfig:
        return pipeline.PipelineConfig(
            per_replica_batch_size=self._config.evaluation_batch_size,
            image_size=self._config.image_size,
            seed=0,
            shuffle_buffer_size=1,
            num_threads=self._config.num_input_threads,
        )

    def _count_correct_in_batch(self, batch: dict[str, tf.Tensor]) -> tf.Tensor:
        """Returns [3]: top-1 correct, top-5 correct and examples of one batch."""
        logits = self.model(batch["image"], training=False)
        is_example = batch["is_example"]
        top_k = min(_TOP_5, self._config.num_classes)
        hits = (
            tf.math.in_top_k(batch["label"], logits, k=1) & is_example,
            tf.math.in_top_k(batch["label"], logits, k=top_k) & is_example,
            is_example,
        )
        return tf.stack([tf.math.count_nonzero(hit) for hit in hits])

    def sanity(self) -> tuple[SanityCheck, ...]:
        """Checks the loss, the copies of the variables, and the examples."""
        checks = [self._check_loss(), self._check_sync()]
        if self.source is not None:
            checks.append(audit.check_shards(self.source, self._contexts))
            checks.append(self._check_consumed(self.source))
        return tuple(checks)

    def _check_consumed(self, source: Source) -> SanityCheck:
        steps = (
            (num_consumed, [int(i) for ids in per_replica for i in ids.numpy()])
            for num_consumed, per_replica in self._consumed
        )
        # Every pipeline gives the same number of examples to a step, so the smallest
        # share ends first.
        num_pipelines = self._contexts[0].num_input_pipelines
        smallest_share = source.num_train_examples // num_pipelines
        return audit.check_consumed(
            steps, first_epoch_size=smallest_share * num_pipelines
        )

    def _check_loss(self) -> SanityCheck:
        return SanityCheck(
            name="loss_is_finite",
            is_passed=math.isfinite(self._last_loss),
            detail=f"last loss {self._last_loss}",
        )

    def _check_sync(self) -> SanityCheck:
        count = self._repl.num_replicas
        try:
            self._repl.assert_in_sync()
        except replicator.ReplicatorError as error:
            is_passed, detail = False, str(error)
        else:
            is_passed, detail = True, f"variables of {count} replicas are identical"
        return SanityCheck(name="replicas_in_sync", is_passed=is_passed, detail=detail)

    def agree(self, value: int) -> int:
        """Returns the value of worker 0, on all of them."""
        return int(self._repl.gather_bytes(str(value).encode("ascii"))[0])

    def explain(self) -> str:
        """Returns the replicator's account of the collectives in one step."""
        return self._repl.explain()


class ResNet50Workload(Workload):
    """The catalogue's ``resnet50``."""

    def __init__(self) -> None:
        info = catalog.WORKLOADS["resnet50"]
        self.name = info.name
        self.version = info.version
        self.example_unit = info.example_unit

    def prepare(self, *, data: str) -> None:
        """Writes the embedded digits once per machine; see ``Workload.prepare``."""
        if data != SYNTHETIC:
            open_source(data)

    def build(
        self,
        replicator: replicator.Replicator,
        *,
        preset: str,
        data: str,
        per_replica_batch_size: int,
        seed: int,
        options: Mapping[str, Any],
    ) -> ResNet50Program:
        """Builds ResNet-50 on ``replicator``; see ``Workload.build``."""
        config = config_lib.make_config(preset, options)
        if per_replica_batch_size < 1:
            raise ValueError(
                f"per_replica_batch_size {per_replica_batch_size!r} must be at least 1"
            )
        source = None if data == SYNTHETIC else open_source(data)
        if source is not None and source.num_classes > config.num_classes:
            raise ValueError(
                f"data {data!r} has {source.num_classes} classes, but the network has "
                f"{config.num_classes} outputs: set option num_classes to at least "
                f"{source.num_classes}"
            )
        return ResNet50Program(
            replicator,
            config,
            source=source,
            per_replica_batch_size=per_replica_batch_size,
            seed=seed,
        )


WORKLOAD = ResNet50Workload()
