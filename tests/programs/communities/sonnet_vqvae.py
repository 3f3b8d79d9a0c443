"""Sonnet: a vector-quantized autoencoder, whose gradients the step itself averages."""

import sonnet as snt
import tensorflow as tf

from communities.data import GLOBAL_BATCH, regression, weights_of


class Autoencoder(snt.Module):
    """Statistics of the encoder are those of the global batch."""

    def __init__(self):
        super().__init__()
        initializers = {"w_init": snt.initializers.Constant(0.3)}
        self.encoder = snt.Linear(3, with_bias=False, **initializers)
        self.norm = snt.distribute.CrossReplicaBatchNorm(
            create_scale=True,
            create_offset=True,
            moving_mean=snt.ExponentialMovingAverage(0.9),
            moving_variance=snt.ExponentialMovingAverage(0.9),
        )
        self.quantizer = snt.nets.VectorQuantizer(
            embedding_dim=3, num_embeddings=5, commitment_cost=0.25
        )
        self.decoder = snt.nets.MLP([4, 4], **initializers)

    def __call__(self, x):
        encoded = self.norm(self.encoder(x) + x[:, :3], is_training=True)
        quantized = self.quantizer(encoded, is_training=True)
        restored = self.decoder(quantized["quantize"])
        return tf.reduce_mean((restored - x) ** 2) + quantized["loss"]


def take_steps(strategy, model, optimizer):
    """The losses of three steps, whose gradients ``all_reduce`` averages."""

    def step(x):
        with tf.GradientTape() as tape:
            loss = model(x)
        parameters = model.trainable_variables
        context = tf.distribute.get_replica_context()
        grads = context.all_reduce("mean", tape.gradient(loss, parameters))
        optimizer.apply(grads, parameters)
        return context.all_reduce("mean", loss)

    @tf.function
    def train_step(batch):
        return strategy.experimental_local_results(strategy.run(step, args=(batch,)))

    data = tf.data.Dataset.from_tensor_slices(regression()[0]).repeat()
    batches = strategy.experimental_distribute_dataset(data.batch(GLOBAL_BATCH))
    return [
        float(train_step(batch)[0]) for batch, _ in zip(batches, range(3), strict=False)
    ]


def train(strategy):
    tf.random.set_seed(1)
    with strategy.scope():
        model = Autoencoder()
        values = tf.reshape(tf.linspace(-1.0, 1.0, 15), [3, 5])
        model.quantizer.embeddings.assign(values)
        optimizer = snt.optimizers.Adam(0.01)
    return [*take_steps(strategy, model, optimizer), *weights_of(model)]
