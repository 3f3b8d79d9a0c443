"""The training step of ResNet-50, as ``workloads/resnet50`` defines it, in Horovod.

horovodrun -np 2 --gloo python -m workloads.peers.horovod.resnet50 [NAME=VALUE ...]
"""

from __future__ import annotations

import tensorflow as tf

from workloads.peers import inputs
from workloads.peers.horovod import layers
from workloads.peers.horovod.process import Process

_NUM_BLOCKS = (3, 4, 6, 3)
_EPSILON = 1e-5
"""Of batch normalization."""


class ResNet50:
    """The 50-layer residual network of He et al. 2015.

    Attributes:
      variables: By our paths.
      trained: Those that are trained, in order.
    """

    def __init__(self, process: Process) -> None:
        config = process.export.settings["config"]
        self._first, self._second = (0, 1) if config["version"] == "v1" else (1, 0)
        self.variables = {
            name: tf.Variable(
                value, trainable=not name.rpartition(".")[2].startswith("moving_")
            )
            for name, value in process.export.part("weights").items()
        }
        self.trained = [of for of in self.variables.values() if of.trainable]

    def logits(self, images: tf.Tensor) -> tf.Tensor:
        """Returns logits; updates the moving statistics."""
        features = tf.nn.relu(self._conv_norm(images, "model.stem", 2))
        # Zeros are no maximum of what is not negative, unless all are zero.
        features = tf.nn.max_pool2d(_padded(features, 1), 3, 2, "VALID")
        index = 0
        for group, count in enumerate(_NUM_BLOCKS):
            for number in range(count):
                stride = 2 if group and not number else 1
                features = self._block(features, f"model.blocks.{index}", stride)
                index += 1
        pooled = tf.reduce_mean(features, axis=[1, 2])
        kernel = self.variables["model.classifier.kernel"]
        return tf.matmul(pooled, kernel) + self.variables["model.classifier.bias"]

    def _block(self, features: tf.Tensor, path: str, stride: int) -> tf.Tensor:
        shortcut = features
        if f"{path}.projection.kernel" in self.variables:
            shortcut = self._conv_norm(features, f"{path}.projection", stride)
        for number, is_strided in enumerate((not self._first, not self._second)):
            own = stride if is_strided else 1
            inner = self._conv_norm(features, f"{path}.convs.{number}", own)
            features = tf.nn.relu(inner)
        return tf.nn.relu(self._conv_norm(features, f"{path}.convs.2", 1) + shortcut)

    def _conv_norm(self, images: tf.Tensor, path: str, stride: int) -> tf.Tensor:
        kernel = self.variables[f"{path}.kernel"]
        pad, padding = (kernel.shape[0] - 1) // 2, "SAME"
        if stride > 1 and pad:  # SAME would add nothing before an even size
            images, padding = _padded(images, pad), "VALID"
        outputs = tf.nn.conv2d(images, kernel, stride, padding)
        path = f"{path}.norm"
        gamma, beta = (self.variables[f"{path}.{name}"] for name in ("gamma", "beta"))
        return layers.norm(outputs, self.variables, path, gamma, beta, _EPSILON)


def _padded(images: tf.Tensor, pad: int) -> tf.Tensor:
    return tf.pad(images, [[0, 0], [pad, pad], [pad, pad], [0, 0]])


def make_step(
    process: Process, network: ResNet50, optimizer: tf.keras.optimizers.Optimizer
) -> tf.types.experimental.GenericFunction:
    """Returns the step of a replica, as a function of images, labels and the rate."""
    decay = process.export.settings["config"]["weight_decay"]

    def loss_of(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        return tf.reduce_mean(
            tf.nn.sparse_softmax_cross_entropy_with_logits(
                labels, network.logits(images)
            )
        )

    compiled = process.compiled(loss_of)

    @tf.function(autograph=False)
    def step(images: tf.Tensor, labels: tf.Tensor, rate: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = compiled(images, labels)
        gradients = process.gradients(tape, loss, network.trained)
        gradients = [
            gradient + decay * variable
            if decay and variable.shape.rank > 1
            else gradient
            for gradient, variable in zip(gradients, network.trained, strict=True)
        ]
        optimizer.learning_rate.assign(rate)
        optimizer.apply_gradients(zip(gradients, network.trained, strict=True))
        return loss

    return step


def main() -> None:
    """Takes as many steps as the harness asks for."""
    process = Process()
    momentum = process.export.settings["config"]["momentum"]
    network = ResNet50(process)
    optimizer = tf.keras.optimizers.SGD(0.0, momentum=momentum, jit_compile=False)
    optimizer.build(network.trained)
    step_of = make_step(process, network, optimizer)
    batches = process.batches()
    for step in process.run.steps():
        images, labels = next(batches)
        rate = tf.constant(inputs.goyal_rate(process.export, step.index), tf.float32)
        loss = step_of(images, labels, rate)
        step.done(loss=float(loss), examples=len(labels) * process.num_ranks)
    process.end()


if __name__ == "__main__":
    main()
