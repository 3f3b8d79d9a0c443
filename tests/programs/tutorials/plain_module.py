"""A plain ``tf.Module`` with lazily made variables, and an update written by hand."""

import tensorflow as tf

import replicator
from tutorials.sharing import arrays, mean_of_all, normal, share

NUM_STEPS = 3


class Dense(tf.Module):
    """Makes its weights when it first sees an input, as in TensorFlow's guide."""

    def __init__(self, num_outputs, seed):
        super().__init__()
        self.num_outputs, self.seed, self.weight = num_outputs, seed, None

    def __call__(self, x):
        if self.weight is None:
            self.weight = tf.Variable(normal(self.seed, x.shape[-1], self.num_outputs))
            self.bias = tf.Variable(tf.zeros([self.num_outputs]))
        return tf.tanh(x @ self.weight + self.bias)


class Net(tf.Module):
    """Two layers and a count of what it has seen."""

    def __init__(self):
        super().__init__()
        self.layers = [Dense(4, seed=1), Dense(1, seed=2)]
        self.num_seen = tf.Variable(0, trainable=False)

    def __call__(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def train(repl):
    """Gradients are averaged and subtracted by the step itself."""
    with repl.context():
        net = Net()
        net(tf.zeros([1, 3]))  # makes the variables, before the step

    def step(batch):
        x, y = batch
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((net(x) - y) ** 2)
        grads = tape.gradient(loss, net.trainable_variables)
        for grad, weight in zip(
            replicator.all_mean(grads), net.trainable_variables, strict=True
        ):
            weight.assign_sub(0.1 * grad)
        net.num_seen.assign_add(replicator.all_sum(tf.shape(x)[0]))
        return mean_of_all(loss)

    losses = []
    for index in range(NUM_STEPS):
        batch = share(repl, normal(index, 8, 3), normal(10 + index, 8, 1))
        losses.append(float(repl.run(step, batch)[0]))
    return {
        "losses": losses,
        "weights": arrays(net.trainable_variables),
        "num_seen": int(net.num_seen.numpy()),
    }
