"""A decoder-only Transformer that predicts bytes, from data to update.

    python -m workloads.transformer.train --replicas 2 --steps 50

The step is code for a single device. ``study.py`` attaches it to the harness. Batch
sizes count tokens, of which a sequence has ``sequence_length``.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf

import replicator
from workloads.common import command, training
from workloads.data import sources
from workloads.data.text_files import CHUNK_SIZE, NUM_TOKENS
from workloads.metrics import quality
from workloads.spec import SYNTHETIC, SanityCheck

from . import model as model_lib
from . import study

if TYPE_CHECKING:
    from workloads.spec import Metric, QualityMetric

_BETAS = 0.9, 0.98
_EPSILON = 1e-9
_LARGEST_SEED = 2**31 - 1
_BITS_PER_NAT = 1 / math.log(2)
_CROP_STREAM = 2  # of random numbers; see ``sources.SHUFFLE_STREAM``
_NUM_INPUT_THREADS = 1  # nothing is decoded


class Training(training.Training):
    """Data, model, optimizer and step of one replicator."""

    def __init__(
        self,
        repl: replicator.Replicator,
        config: study.TransformerConfig,
        *,
        per_replica_batch_size: int,
        **batches: Any,
    ) -> None:
        size = per_replica_batch_size
        _check_batch(config, size)
        super().__init__(repl, config, per_replica_batch_size=size, **batches)
        self.batch_per_example = config.sequence_length
        self.source = None if self.data == SYNTHETIC else sources.open_text(self.data)
        is_sharded = config.sharded_update != study.UNSHARDED
        with repl.context():
            self.model = model_lib.Transformer(config, seed=self.seed)
            self.optimizer = repl.wrap_optimizer(
                keras.optimizers.Adam(
                    model_lib.InverseSquareRoot(
                        factor=config.learning_rate_factor,
                        width=config.width,
                        lr_warmup_steps=config.lr_warmup_steps,
                    ),
                    *_BETAS,
                    epsilon=_EPSILON,
                ),
                sharded_update=config.sharded_update if is_sharded else False,
            )
            self.optimizer.build(self.model.trainable_variables)
        self.trackables = {"model": self.model, "optimizer": self.optimizer}
        self._variables = self.model.trainable_variables
        self.differentiate = (
            self._in_stages()
            if config.is_pipeline
            else training.compiled(self.loss_and_gradients, config.jit)
        )
        self._score = tf.function(self._nats, autograph=False)

    def input_fn(self, context: replicator.InputContext) -> tf.data.Dataset:
        """Returns batches: ``token`` [sequences, length] uint8, and ``example_id``.

        Every epoch has a sequence at a random place of each piece of the shard.
        """
        length, pipeline_id = self.config.sequence_length, context.input_pipeline_id
        size = context.get_per_replica_batch_size(self.global_batch_size) // length
        stream = sources.fold(self.seed, _CROP_STREAM, pipeline_id)
        draw = functools.partial(tf.random.stateless_uniform, dtype=tf.int32)
        if self.source is None:
            first_stream = sources.fold(self.seed, _CROP_STREAM, 0)
            token = draw([size, length], [first_stream, 0], maxval=NUM_TOKENS)
            batch = {"token": tf.cast(token, tf.uint8)}
            return sources.repeated(batch, size, _NUM_INPUT_THREADS)
        dataset = sources.shuffled(
            self.source.read(sources.TRAIN_SPLIT, sources.shard(self.source, context)),
            self.config.shuffle_buffer_size,
            self.seed,
            pipeline_id,
        )

        def crop(index: tf.Tensor, batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
            seed = tf.stack([tf.constant(stream, tf.int64), index])
            first = draw([size, 1], seed, maxval=CHUNK_SIZE - length + 1)
            position = first + tf.range(length)
            return {
                "token": tf.gather(batch["text"], position, batch_dims=1),
                "example_id": batch["example_id"],
            }

        dataset = dataset.batch(size, drop_remainder=True).enumerate().map(crop)
        return sources.prefetched(dataset, context, _NUM_INPUT_THREADS)

    def step_fn(self, batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """One training step of one replica; the loss is in nats, at first ln 256."""
        seed: tuple[tf.Tensor, ...] = ()
        if self.config.dropout:
            # Drawn once: what a compiled or a repeated pass drops depends on it alone.
            # Kernels read seeds in host memory: of a GPU's, steps would wait for the
            # copy.
            with tf.device("/device:CPU:0"):
                seed = (tf.random.uniform([2], 0, _LARGEST_SEED, tf.int32),)
        loss, gradients = self.differentiate(batch["token"], *seed)
        self.optimizer.apply(gradients, self._variables)
        return {"loss": loss, "example_id": batch["example_id"]}

    def loss_and_gradients(
        self, token: tf.Tensor, seed: tf.Tensor | None = None
    ) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """Returns the mean loss in nats, and its gradients."""
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(self._nats(token, seed))
        gradients = tape.gradient(loss, self._variables)
        # The table has 256 rows, and a batch more tokens: its sum is smaller dense.
        return loss, [tf.convert_to_tensor(gradient) for gradient in gradients]

    def _in_stages(self) -> Callable[..., Any]:
        pipeline = replicator.Pipeline(
            [model_lib.Stage(parts) for parts in self.model.stages],
            num_microbatches=self.config.num_microbatches,
            schedule=self.config.schedule,
            recompute=self.config.recompute,
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
        return tf.reshape(losses, [-1, self.config.sequence_length])

    def flops(self) -> int:
        # Of one token in a step: six per weight, as in PaLM.
        return 2 * 3 * sum(study.flops_by_part(self.config))

    def check(self) -> tuple[SanityCheck, ...]:
        """Says which text was read: figures of two digests are of two texts."""
        if self.source is None:
            return ()
        name, read = "text_is_that_of_the_wheel", self.source.description
        return (SanityCheck(name, is_passed=True, detail=read),)

    def evaluate(self, metrics: Sequence[Metric]) -> tuple[QualityMetric, ...]:
        """Measures bits per byte of held-out sequences; n counts files."""
        if self.source is None:
            return ()
        # The first pieces of the split, whose order is random and always the same.
        config, held_out = self.config, self.source.splits["test"]
        tokens = held_out["text"][: config.num_evaluation_examples]
        tokens = tokens[:, : config.sequence_length]
        files, size = held_out["file"][: len(tokens)], config.evaluation_batch_size
        nats = [
            self._score(tf.constant(tokens[first : first + size])).numpy()
            for first in range(0, len(tokens), size)
        ]
        means = np.concatenate(nats).mean(axis=1, dtype=np.float64)
        (metric,) = metrics
        return (quality.mean(metric, means * _BITS_PER_NAT, files),)


def cross_entropy(logits: tf.Tensor, token: tf.Tensor) -> tf.Tensor:
    """Returns the cross-entropy of each token, flat, in nats."""
    return tf.nn.sparse_softmax_cross_entropy_with_logits(
        tf.reshape(token, [-1]), logits
    )


def _check_batch(config: study.TransformerConfig, size: int) -> None:
    unit = config.sequence_length * config.num_microbatches
    if size < 1 or size % unit:
        parts = f" times num_microbatches={config.num_microbatches!r}"
        raise ValueError(
            f"per_replica_batch_size {size!r} counts tokens, and must be a multiple of "
            f"option sequence_length={config.sequence_length!r}"
            f"{parts if config.is_pipeline else ''}: use for example {unit}"
        )


def main() -> None:
    args = command.parse(__doc__, study.WORKLOAD)
    split: dict[str, Any] = {}
    if args.backend == "dtensor":
        split = study.WORKLOAD.on_mesh(args.replicas, args.config.num_mesh_devices)
    elif args.config.pipeline_stages > 1:  # a stage has a device of its own
        split = {"logical_devices_per_replica": args.config.pipeline_stages}
    repl = replicator.create(args.backend, num_replicas=args.replicas, **split)
    made = Training(repl, args.config, **args.batches)
    command.train(repl, made, args)


if __name__ == "__main__":
    main()
