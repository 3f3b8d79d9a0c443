"""Sentences of mixed lengths, padded batch by batch; an embedding learns from them."""

import keras
import numpy as np
import tensorflow as tf

from tutorials.sharing import arrays, mean_of_all

NUM_STEPS = 3
VOCABULARY = 12
GLOBAL_BATCH_SIZE = 4


def _sentences():
    """Lengths 1 to 6; words 1 to 11 that come up again and again; 0 is the padding."""
    rng = np.random.default_rng(5)
    lengths = [3, 1, 6, 2, 5, 5, 2, 4, 1, 6, 3, 2]
    return [rng.integers(1, VOCABULARY, length).tolist() for length in lengths]


def train(repl):
    """A classifier of sentences, with Adagrad: an optimizer that is not linear."""
    sentences = _sentences()
    labels = [float(sum(words) % 2) for words in sentences]
    with repl.context():
        embedding = keras.layers.Embedding(VOCABULARY, 3)
        embedding.build([None])
        head = keras.layers.Dense(1)
        head.build([None, 3])
        optimizer = repl.wrap_optimizer(keras.optimizers.Adagrad(0.1))
    weights = [*embedding.trainable_variables, *head.trainable_variables]

    def input_fn(ctx):
        size = ctx.get_per_replica_batch_size(GLOBAL_BATCH_SIZE)
        words = tf.ragged.constant(sentences, dtype=tf.int32).to_tensor()
        lengths = [len(sentence) for sentence in sentences]
        data = tf.data.Dataset.from_tensor_slices((words, lengths, labels))
        data = data.map(lambda row, length, label: (row[:length], label))
        # In turns to the replicas of all workers: shares of the batches of one device.
        data = data.padded_batch(size, ([None], []))
        return data.shard(ctx.num_input_pipelines, ctx.input_pipeline_id)

    def step(batch):
        words, label = batch
        with tf.GradientTape() as tape:
            mask = tf.cast(words > 0, tf.float32)[..., None]
            mean = tf.reduce_sum(embedding(words) * mask, axis=1) / tf.reduce_sum(
                mask, axis=1
            )
            losses = tf.nn.sigmoid_cross_entropy_with_logits(label, head(mean)[:, 0])
            loss = tf.reduce_mean(losses)
        grads = tape.gradient(loss, weights)
        optimizer.apply_gradients(zip(grads, weights, strict=True))
        return mean_of_all(loss)

    inputs = repl.make_input_iterator(input_fn)
    losses = [float(repl.run(step, inputs)[0]) for _ in range(NUM_STEPS)]
    return {"losses": losses, "weights": arrays(weights)}
