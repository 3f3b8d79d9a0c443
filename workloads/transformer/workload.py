"""The language model as a workload: builds the step on a replicator, and checks it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf

import replicator
from workloads import quality
from workloads.catalog import SYNTHETIC
from workloads.common import training
from workloads.common.training import compiled
from workloads.data import text
from workloads.program import CatalogWorkload, DataProgram
from workloads.transformer import config as config_lib
from workloads.transformer.config import METRICS, UNSHARDED
from workloads.transformer.model import InverseSquareRoot, Stage, Transformer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from workloads.data.text import TextSource
    from workloads.spec import QualityMetric, SanityCheck
    from workloads.transformer.config import TransformerConfig

_BETAS = 0.9, 0.98
_EPSILON = 1e-9
_LARGEST_SEED = 2**31 - 1
_BITS_PER_NAT = 1 / math.log(2)


class TransformerProgram(DataProgram):
    """The language model on one replicator; see ``StepProgram``.

    Its batch sizes count tokens, of which a sequence has ``sequence_length``.

    Attributes:
      model: The Keras model; its variables belong to the replicator.
      optimizer: The wrapped optimizer.
    """

    source: TextSource | None

    def __init__(
        self,
        repl: replicator.Replicator,
        config: TransformerConfig,
        *,
        source: TextSource | None,
        per_replica_batch_size: int,
        seed: int,
    ) -> None:
        """Creates variables, pipelines and the step."""
        super().__init__(
            repl, source=source, per_replica_batch_size=per_replica_batch_size
        )
        self._config = config
        self.batch_per_example = config.sequence_length
        self.compute_dtype = config.compute_dtype.removeprefix("mixed_")
        self._pipeline = text.TextPipeline(
            num_sequences=self.pipeline_batch_size // config.sequence_length,
            sequence_length=config.sequence_length,
            seed=seed,
            shuffle_buffer_size=config.shuffle_buffer_size,
        )
        self._open_inputs()
        with repl.context():
            self.model = Transformer(config, seed=seed)
            self.optimizer = repl.wrap_optimizer(
                keras.optimizers.Adam(
                    InverseSquareRoot(
                        factor=config.learning_rate_factor,
                        width=config.width,
                        lr_warmup_steps=config.lr_warmup_steps,
                    ),
                    *_BETAS,
                    epsilon=_EPSILON,
                ),
                sharded_update=(
                    config.sharded_update
                    if config.sharded_update != UNSHARDED
                    else False
                ),
            )
            self.optimizer.build(self.model.trainable_variables)
        self._variables = self.model.trainable_variables
        self.num_parameters = sum(
            math.prod(variable.shape) for variable in self._variables
        )
        self._differentiate = (
            self._in_stages(config)
            if config.is_pipeline
            else compiled(self._loss_and_gradients, config.jit)
        )
        self.flops_per_example = config_lib.training_flops(config)
        self._score = tf.function(self._nats, autograph=False)

    def _dataset(self, context: replicator.InputContext) -> tf.data.Dataset:
        if self.source is None:
            return text.synthetic_dataset(self._pipeline)
        return text.train_dataset(self.source, context, self._pipeline)

    def _step(self, batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """One training step of one replica."""
        seed: tuple[tf.Tensor, ...] = ()
        if self._config.dropout:
            # Drawn once: what a compiled or a repeated pass drops depends on it alone.
            seed = (_draw_seed(),)
        loss, gradients = self._differentiate(batch["token"], *seed)
        self.optimizer.apply_gradients(zip(gradients, self._variables, strict=True))
        return {"loss": loss, "example_id": batch["example_id"]}

    def _loss_and_gradients(
        self, token: tf.Tensor, seed: tf.Tensor | None = None
    ) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """Returns the mean loss in nats, and its gradients."""
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(self._nats(token, seed))
        gradients = tape.gradient(loss, self._variables)
        # The table has 256 rows, and a batch more tokens: its sum is smaller dense.
        return loss, [tf.convert_to_tensor(gradient) for gradient in gradients]

    def _in_stages(self, config: TransformerConfig) -> Callable[..., Any]:
        """Returns the same as a pipeline, a stage on each logical device."""
        pipeline = replicator.Pipeline(
            [Stage(parts) for parts in self.model.stages],
            num_microbatches=config.num_microbatches,
            schedule=config.schedule,
            recompute=config.recompute,
        )

        def mean_nats(outputs: tuple[tf.Tensor, ...], token: tf.Tensor) -> tf.Tensor:
            return tf.reduce_mean(cross_entropy(outputs[0], token))

        def differentiate(token: tf.Tensor, *seed: tf.Tensor) -> Any:
            token = tf.cast(token, tf.int64)
            # Each micro-batch has a seed of its own: that of its first sequence.
            seeds = [one + tf.range(token.shape[0])[:, None] * [1, 0] for one in seed]
            loss, pairs = pipeline.loss_and_gradients(
                ((token, *seeds), token), mean_nats
            )
            return loss, [gradient for gradient, _ in pairs]

        return differentiate

    def _nats(self, token: tf.Tensor, seed: tf.Tensor | None = None) -> tf.Tensor:
        """Returns the cross-entropy of each token, [sequences, length], in nats."""
        # GPUs leave what is done with int32 to the host, for which steps would wait.
        token = tf.cast(token, tf.int64)
        losses = cross_entropy(self.model(token, seed), token)
        return tf.reshape(losses, [-1, self._config.sequence_length])

    def run(self, num_steps: int = 1) -> float:
        """Runs steps and returns the last loss, its mean over the global batch.

        The value is the cross-entropy of a token in nats: ln 256 = 5.5 where every byte
        is as likely.
        """
        return self._finish(self._run(self._step, num_steps), num_steps)

    def dispatch(self) -> Callable[[], float]:
        """Starts a step; see ``StepProgram.dispatch``."""
        return self._keep(self._run(self._step, 1), 1)

    def _trackables(self) -> Mapping[str, Any]:
        return {"model": self.model, "optimizer": self.optimizer}

    def sanity(self) -> tuple[SanityCheck, ...]:
        """Checks what all programs check, and says which text was read."""
        checks = super().sanity()
        if self.source is None:
            return checks
        return (*checks, text.check(self.source))

    def evaluate(self) -> tuple[QualityMetric, ...]:
        """Measures bits per byte on held-out files.

        Runs on one device, without dropout. Bytes of a file are alike, so the interval
        is one over files. Synthetic data has no held-out split, so it has no quality.
        """
        if self.source is None:
            return ()
        tokens, files = text.held_out(
            self.source,
            num_sequences=self._config.num_evaluation_examples,
            sequence_length=self._config.sequence_length,
        )
        size = self._config.evaluation_batch_size
        nats = [
            self._score(tf.constant(tokens[first : first + size])).numpy()
            for first in range(0, len(tokens), size)
        ]
        bits = np.concatenate(nats).mean(axis=1, dtype=np.float64) * _BITS_PER_NAT
        (metric,) = METRICS
        return (quality.mean_over_groups(metric, bits, files),)


def cross_entropy(logits: tf.Tensor, token: tf.Tensor) -> tf.Tensor:
    """Returns that of each token, flat, in nats."""
    return tf.nn.sparse_softmax_cross_entropy_with_logits(
        tf.reshape(token, [-1]), logits
    )


def _draw_seed() -> tf.Tensor:
    # Kernels read seeds in host memory: of a GPU's, steps would wait for the copy.
    with tf.device("/device:CPU:0"):
        return tf.random.uniform([2], 0, _LARGEST_SEED, tf.int32)


class TransformerWorkload(CatalogWorkload):
    """The catalogue's ``transformer``."""

    def build(
        self,
        replicator: replicator.Replicator,
        *,
        preset: str,
        data: str,
        per_replica_batch_size: int,
        seed: int,
        options: Mapping[str, Any],
    ) -> TransformerProgram:
        """Builds the program on ``replicator``; see ``Workload.build``."""
        config = self.make_config(preset, options)
        unit = config.sequence_length * config.num_microbatches
        if per_replica_batch_size < 1 or per_replica_batch_size % unit:
            parts = f" times num_microbatches={config.num_microbatches!r}"
            raise ValueError(
                f"per_replica_batch_size {per_replica_batch_size!r} counts tokens, and "
                "must be a multiple of option sequence_length="
                f"{config.sequence_length!r}{parts if config.is_pipeline else ''}: use "
                f"for example {unit}"
            )
        training.set_tf32(replicator, is_on=config.tf32)
        return TransformerProgram(
            replicator,
            config,
            source=None if data == SYNTHETIC else text.open_source(data),
            per_replica_batch_size=per_replica_batch_size,
            seed=seed,
        )

    def prepare(self, *, data: str) -> None:
        """Writes the text once per machine; see ``Workload.prepare``."""
        if data != SYNTHETIC:
            text.open_source(data)


WORKLOAD = TransformerWorkload("transformer")
