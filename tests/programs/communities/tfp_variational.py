"""TensorFlow Probability: a variational posterior, one step of Adam at a time."""

import tensorflow as tf
import tensorflow_probability as tfp
import tf_keras

from communities.data import GLOBAL_BATCH, regression

tfd = tfp.distributions


def surrogate():
    raw_scale = tf.Variable([0.1, 0.2])
    scale = tfp.util.DeferredTensor(raw_scale, tf.nn.softplus)
    posterior = tfd.MultivariateNormalDiag(tf.Variable([0.0, 0.0]), scale)
    return posterior, tf_keras.optimizers.Adam(0.05)


def prior(z):
    """The logarithm of the probability of samples."""
    return tfd.MultivariateNormalDiag(tf.zeros([2]), tf.ones([2])).log_prob(z)


def likelihood(z, values):
    """The logarithm of the probability of examples, by sample."""
    scale = tf.nn.softplus(z[..., 1:]) + 0.1
    return tf.reduce_sum(tfd.Normal(z[..., :1], scale).log_prob(values), axis=-1)


def train(strategy):
    """What ``fit_surrogate_posterior`` does, with the loop outside of the step."""
    with strategy.scope():
        posterior, optimizer = surrogate()

    def step(values, seed):
        # All replicas draw the same samples, and divide what is no sum over examples.
        num_replicas = tf.distribute.get_replica_context().num_replicas_in_sync

        def target(z):
            return prior(z) + num_replicas * likelihood(z, values)

        with tf.GradientTape() as tape:
            loss = tfp.vi.monte_carlo_variational_loss(
                target, posterior, sample_size=3, seed=seed
            )
            loss = loss / num_replicas
        variables = posterior.trainable_variables
        grads = tape.gradient(loss, variables)
        optimizer.apply_gradients(zip(grads, variables, strict=True))
        return loss

    @tf.function
    def train_step(values, seed):
        loss = strategy.run(step, args=(values, seed))
        return strategy.reduce("SUM", loss, axis=None)

    data = tf.data.Dataset.from_tensor_slices(regression()[0][:, 0]).repeat()
    data = data.batch(GLOBAL_BATCH, drop_remainder=True)
    batches = strategy.experimental_distribute_dataset(data)
    losses = [
        float(train_step(values, tf.constant([1, index])))
        for index, values in zip(range(4), batches, strict=False)
    ]
    return [*losses, *(v.numpy() for v in posterior.trainable_variables)]
