"""Sonnet: a vector quantizer whose codes are moving averages of what is assigned."""

import sonnet as snt
import tensorflow as tf

from communities.data import weights_of
from communities.sonnet_vqvae import take_steps


class OfAllReplicas(snt.ExponentialMovingAverage):
    """An average of sums over the global batch."""

    def update(self, value):
        """Sums over replicas first; on one device, this is that value."""
        context = tf.distribute.get_replica_context()
        super().update(context.all_reduce("sum", value))


class Autoencoder(snt.Module):
    def __init__(self, average):
        super().__init__()
        initializers = {"w_init": snt.initializers.Constant(0.3)}
        self.encoder = snt.Linear(3, with_bias=False, **initializers)
        self.quantizer = snt.nets.VectorQuantizerEMA(
            embedding_dim=3, num_embeddings=5, commitment_cost=0.25, decay=0.9
        )
        codes = tf.reshape(tf.linspace(-1.0, 1.0, 15), [3, 5])
        self.quantizer.embeddings.assign(codes)
        if average is not None:
            self.quantizer.ema_cluster_size = average(decay=0.9)
            self.quantizer.ema_cluster_size.initialize(tf.zeros([5]))
            self.quantizer.ema_dw = average(decay=0.9)
            self.quantizer.ema_dw.initialize(codes)
        self.decoder = snt.nets.MLP([4, 4], **initializers)

    def __call__(self, x):
        quantized = self.quantizer(self.encoder(x) + x[:, :3], is_training=True)
        restored = self.decoder(quantized["quantize"])
        return tf.reduce_mean((restored - x) ** 2) + quantized["loss"]


def train(strategy, average=OfAllReplicas):
    """Three steps; ``average=None`` leaves the quantizer as Sonnet has it."""
    with strategy.scope():
        model = Autoencoder(average)
        optimizer = snt.optimizers.Adam(0.01)
    losses = take_steps(strategy, model, optimizer)
    codes = model.quantizer.embeddings.numpy()
    return [*losses, codes, *weights_of(model)]
