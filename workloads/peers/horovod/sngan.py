"""The training step of SN-GAN, as ``workloads/sngan`` defines it, in Horovod.

horovodrun -np 2 --gloo python -m workloads.peers.horovod.sngan [NAME=VALUE ...]
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from workloads.peers import exported, inputs
from workloads.peers.horovod import layers
from workloads.peers.horovod.process import Process

_EPSILON = 2e-5
"""Of batch normalization."""
_OF_NORMS = 1e-12  # added to the lengths of vectors of spectral norms
_FIRST_SIZE = 4
_NUM_DOWNSAMPLED = 2
"""Blocks of the discriminator that halve the image, of layout ``cifar``."""
_KEPT = ("u", "moving_mean", "moving_variance")

Draws = dict[str, tf.Tensor]


class Networks:
    """Generator and discriminator; a call updates what they keep.

    Attributes:
      images: Makes images in [-1, 1] of latents and labels.
      logits: Judges images, with labels.
      variables: By our paths.
      trained: Those of each network that are trained, in order.
    """

    def __init__(self, process: Process) -> None:
        self.variables = {
            name: tf.Variable(value, trainable=name.rpartition(".")[2] not in _KEPT)
            for name, value in process.export.part("weights").items()
        }
        self.trained = {
            network: [
                of
                for name, of in self.variables.items()
                if of.trainable and name.startswith(network)
            ]
            for network in ("generator", "discriminator")
        }
        self.images = process.compiled(self._images)
        self.logits = process.compiled(self._logits)

    def _images(self, latents: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        of = self.variables
        flat = latents @ of["generator.dense.kernel"] + of["generator.dense.bias"]
        hidden = tf.reshape(flat, [latents.shape[0], _FIRST_SIZE, _FIRST_SIZE, -1])
        for path in exported.block_paths(self.variables, "generator"):
            inner = self._conditional(hidden, f"{path}.norm_1", labels)
            inner = self._conv(_doubled(inner), f"{path}.conv_1")
            inner = self._conditional(inner, f"{path}.norm_2", labels)
            shortcut = _doubled(self._conv(hidden, f"{path}.shortcut"))
            hidden = self._conv(inner, f"{path}.conv_2") + shortcut
        path = "generator.last_norm"
        hidden = self._norm(hidden, path, of[f"{path}.gamma"], of[f"{path}.beta"])
        return tf.tanh(self._conv(tf.nn.relu(hidden), "generator.last_conv"))

    def _logits(self, images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        hidden = images
        blocks = exported.block_paths(self.variables, "discriminator")
        paths = ["discriminator.first_block", *blocks]
        for index, path in enumerate(paths):
            inner = tf.nn.relu(hidden) if index else hidden
            inner = self._conv(inner, f"{path}.conv_1")
            inner = self._conv(tf.nn.relu(inner), f"{path}.conv_2")
            if index < _NUM_DOWNSAMPLED:
                inner, hidden = _halved(inner), _halved(hidden)
            if f"{path}.shortcut.kernel" in self.variables:
                hidden = self._conv(hidden, f"{path}.shortcut")
            hidden = inner + hidden
        features = tf.reduce_sum(tf.nn.relu(hidden), axis=[1, 2])
        path = "discriminator.embedding"  # the rows of its matrix are classes
        table = tf.transpose(self.variables[f"{path}.kernel"])
        of_class = _chosen(tf.transpose(self._divided(path, table)), labels)
        path = "discriminator.dense"
        logits = features @ self._divided(path, self.variables[f"{path}.kernel"])
        return logits[:, 0] + tf.reduce_sum(features * of_class, axis=1)

    def _conv(self, images: tf.Tensor, path: str) -> tf.Tensor:
        kernel = self.variables[f"{path}.kernel"]
        if f"{path}.u" in self.variables:
            kernel = self._divided(path, kernel)
        found = tf.nn.conv2d(images, kernel, 1, "SAME")
        return found + self.variables[f"{path}.bias"]

    def _divided(self, path: str, kernel: tf.Tensor) -> tf.Tensor:
        """Returns a kernel over its spectral norm, of which it takes a power step.

        Args:
          path: That of the layer.
          kernel: [..., rows].
        """
        matrix = tf.reshape(kernel, [-1, kernel.shape[-1]])
        fixed, of_rows = tf.stop_gradient(matrix), self.variables[f"{path}.u"]
        v = _unit(tf.linalg.matvec(fixed, of_rows))
        u = _unit(tf.linalg.matvec(fixed, v, transpose_a=True))
        of_rows.assign(u)
        return kernel / tf.tensordot(v, tf.linalg.matvec(matrix, u), 1)

    def _conditional(
        self, images: tf.Tensor, path: str, labels: tf.Tensor
    ) -> tf.Tensor:
        """Returns the positive part of what is normalized by batch and class."""
        ones = tf.ones([images.shape[-1]])
        normal = self._norm(images, f"{path}.norm", ones, 0 * ones)
        gamma, beta = (
            _chosen(self.variables[f"{path}.{name}"], labels)[:, None, None]
            for name in ("gamma", "beta")
        )
        return tf.nn.relu(normal * gamma + beta)

    def _norm(
        self, images: tf.Tensor, path: str, gamma: tf.Tensor, beta: tf.Tensor
    ) -> tf.Tensor:
        return layers.norm(images, self.variables, path, gamma, beta, _EPSILON)


def _chosen(table: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """Returns the row of each label; its gradient is no slices, which are gathered."""
    return tf.matmul(tf.one_hot(labels, table.shape[0]), table)


def _doubled(images: tf.Tensor) -> tf.Tensor:
    examples, height, width, channels = images.shape
    tiled = tf.tile(images[:, :, None, :, None], [1, 1, 2, 1, 2, 1])
    return tf.reshape(tiled, [examples, 2 * height, 2 * width, channels])


def _halved(images: tf.Tensor) -> tf.Tensor:
    return tf.nn.avg_pool2d(images, 2, 2, "VALID")


def _unit(vector: tf.Tensor) -> tf.Tensor:
    return vector / (tf.norm(vector) + _OF_NORMS)


class Training:
    """Both networks and what updates them.

    Args:
      process: The replica.
    """

    def __init__(self, process: Process) -> None:
        self._process = process
        self._config: dict[str, Any] = process.export.settings["config"]
        self._networks = Networks(process)
        betas = self._config["beta_1"], self._config["beta_2"]
        self._adams = {}
        for name, of in self._networks.trained.items():
            adam = tf.keras.optimizers.Adam(0.0, *betas, jit_compile=False)
            adam.build(of)
            self._adams[name] = adam
        is_averaged = self._config["ema_decay"] > 0
        averaged = self._networks.trained["generator"] if is_averaged else []
        self._averages = [(tf.Variable(of, trainable=False), of) for of in averaged]
        self.discriminator_step = tf.function(self._step, autograph=False)
        self.both_step = tf.function(self._both_step, autograph=False)

    def _update(self, name: str, tape: tf.GradientTape, loss: tf.Tensor) -> None:
        trained, adam = self._networks.trained[name], self._adams[name]
        gradients = self._process.gradients(tape, loss, trained)
        adam.apply_gradients(zip(gradients, trained, strict=True))

    def _both_step(
        self, images: tf.Tensor, labels: tf.Tensor, draws: Draws
    ) -> tf.Tensor:
        """Updates the generator, then the discriminator; returns the latter's loss."""
        networks, classes = self._networks, draws["generator_labels"]
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(networks.trained["generator"])
            made = networks.images(draws["generator_latents"], classes)
            loss = -tf.reduce_mean(networks.logits(made, classes))
        self._update("generator", tape, loss)
        share = 1 - self._config["ema_decay"]
        for average, of in self._averages:
            average.assign_add(share * (of - average))
        return self._step(images, labels, draws)

    def _step(self, images: tf.Tensor, labels: tf.Tensor, draws: Draws) -> tf.Tensor:
        """Updates the discriminator, and returns its loss."""
        networks, classes = self._networks, draws["discriminator_labels"]
        fake = networks.images(draws["discriminator_latents"], classes)
        both = tf.concat([images + draws["pixels"], fake], 0)
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(networks.trained["discriminator"])
            logits = networks.logits(both, tf.concat([labels, classes], 0))
            real, made = tf.split(logits, 2)
            loss = tf.reduce_mean(tf.nn.relu(1 - real))
            loss += tf.reduce_mean(tf.nn.relu(1 + made))
        self._update("discriminator", tape, loss)
        return loss

    def set_rates(self, step: int) -> None:
        """Sets the learning rates of a step."""
        config = self._config
        decay = inputs.linear_decay(config, step, config["num_steps"])
        for name, adam in self._adams.items():
            adam.learning_rate.assign(config[f"{name}_learning_rate"] * decay)


def main() -> None:
    """Takes as many steps as the harness asks for."""
    process = Process()
    training = Training(process)
    every = process.export.settings["config"]["num_discriminator_steps"]
    batches, draws = process.batches(), process.draws()
    steps = training.both_step, training.discriminator_step
    for step in process.run.steps():
        training.set_rates(step.index)
        images, labels = next(batches)
        step_of = steps[step.index % every > 0]
        loss = step_of(images, labels, next(draws))
        step.done(loss=float(loss), examples=len(labels) * process.num_ranks)
    process.end()


if __name__ == "__main__":
    main()
